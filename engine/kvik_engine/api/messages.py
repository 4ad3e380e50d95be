"""From a chat's messages to the prompt's token ids. Pure; runs in a worker thread."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvik_engine.api.schema import ChatMessage
from kvik_engine.errors import UserError
from kvik_engine.text.chat_template import TemplateError
from kvik_engine.text.tokenizer import TextModel

_ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant", "tool": "tool"}
"""What clients may write, and the role that templates know."""


def chat_prompt(
    text: TextModel, messages: Sequence[ChatMessage], *, max_chars: int, add_generation_prompt: bool = True
) -> list[int]:
    """Token ids of the rendered chat. UserError when a message or the template refuses."""
    if text.template is None:
        raise UserError("This model has no chat template; use /v1/completions.", param="messages")
    if not messages:
        raise UserError("messages is empty.", param="messages")
    plain = [_plain(message, f"messages[{i}]") for i, message in enumerate(messages)]
    try:
        prompt = text.template.render(plain, max_chars=max_chars, add_generation_prompt=add_generation_prompt)
    except TemplateError as error:
        raise UserError(str(error), param="messages") from error
    return text.encode(prompt, add_special_tokens=False)


def _plain(message: ChatMessage, where: str) -> dict[str, Any]:
    if message.role not in _ROLES:
        raise UserError(f"{where}.role must be one of {', '.join(_ROLES)}.", param=f"{where}.role")
    if message.tool_calls or message.function_call:
        raise UserError("Tool calls are not supported by this server.", param=f"{where}.tool_calls")
    plain: dict[str, Any] = {"role": _ROLES[message.role], "content": _content(message, where)}
    if message.name is not None:
        plain["name"] = message.name
    if message.tool_call_id is not None:
        plain["tool_call_id"] = message.tool_call_id
    return plain


def _content(message: ChatMessage, where: str) -> str:
    content = message.content
    if content is None:
        if message.role != "assistant":
            raise UserError(f"{where}.content is required.", param=f"{where}.content")
        return ""
    if isinstance(content, str):
        return content
    for i, part in enumerate(content):
        if part.type != "text" or part.text is None:
            raise UserError("Only text parts are supported.", param=f"{where}.content[{i}]")
    return "\n".join(part.text or "" for part in content)
