"""Rendering a chat with the model's own jinja2 template.

The template is data from the model's files: it sees plain lists and dicts, imports nothing, cannot change its input,
and stops with TemplateError at the bounds of `template_budget` (CVE-2026-5760, CVE-2025-62426). Clients cannot send
templates. `convert` renders a sample in a child process first.
"""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import jinja2

from kvik_engine.text.template_budget import BUDGET, Budget, TemplateError, TemplateOverrun, weigh
from kvik_engine.text.template_sandbox import bounded_environment

__all__ = ["MAX_TEMPLATE_CHARS", "ChatTemplate", "TemplateError", "TemplateOverrun"]

MAX_TEMPLATE_CHARS = 1 << 18
_MAX_SEPARATOR_CHARS = 2
"""What weighing a value counts for each item; JSON's own are `, ` and `: `."""


class ChatTemplate:
    """A compiled template. `render` may run in any thread."""

    def __init__(self, source: str, special_tokens: Mapping[str, str]) -> None:
        """`special_tokens` are bos_token and so on. Raises TemplateError if the template cannot be compiled."""
        if len(source) > MAX_TEMPLATE_CHARS:
            raise TemplateError(f"the chat template is longer than {MAX_TEMPLATE_CHARS} characters")
        self._special_tokens = dict(special_tokens)
        try:
            self._template = _environment().from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise TemplateError(f"the chat template cannot be compiled: {error}") from error

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, max_chars: int, add_generation_prompt: bool = True
    ) -> str:
        """The prompt text of `messages`. TemplateError when the template refuses, fails, overruns its bounds or
        writes over `max_chars`."""
        before = BUDGET.set(Budget())
        try:
            return self._render(messages, max_chars, add_generation_prompt)
        except TemplateError:
            raise
        except Exception as error:  # the template is foreign code: whatever it raises is its refusal
            raise TemplateError(f"the chat template failed: {type(error).__name__}: {error}"[:500]) from error
        finally:
            BUDGET.reset(before)

    def _render(self, messages: Sequence[Mapping[str, Any]], max_chars: int, add_generation_prompt: bool) -> str:
        pieces: list[str] = []
        size = 0
        for piece in self._template.generate(
            messages=messages,
            add_generation_prompt=add_generation_prompt,
            tools=None,
            documents=None,
            **self._special_tokens,
        ):
            size += len(piece)
            if size > max_chars:
                raise TemplateError(f"the chat template wrote more than {max_chars} characters")
            pieces.append(piece)
        return "".join(pieces)


def _environment() -> jinja2.Environment:
    """What templates expect to find, as transformers offers it."""
    environment = bounded_environment()
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = _strftime_now
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    if separators is not None and max(map(len, separators)) > _MAX_SEPARATOR_CHARS:
        raise TemplateError("the chat template writes JSON with long separators")
    indent = None if indent is None else min(indent, 8)
    weigh(value, text=True, indent=indent or 0)
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> NoReturn:
    raise TemplateError(str(message)[:500])


def _strftime_now(pattern: str) -> str:
    return dt.datetime.now(dt.UTC).strftime(pattern[:100])
