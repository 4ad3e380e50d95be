"""The requests as typed structs. Unknown fields are ignored, `null` means absent; sampling_fields checks ranges.

Fields that would change the answer and do not work yet are listed with the only values that are harmless (`HARMLESS`);
any other value is refused with 400 and `param`, never ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec

from kvik_engine.api.limits import MAX_JSON_DEPTH
from kvik_engine.bounded_json import nesting
from kvik_engine.errors import UserError


class StreamOptions(msgspec.Struct):
    include_usage: bool | None = None


class SamplingFields(msgspec.Struct, kw_only=True):
    """What chat and completions have in common."""

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: int | None = None
    best_of: int | None = None
    use_beam_search: bool | None = None
    length_penalty: float | None = None
    early_stopping: bool | str | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    max_tokens: int | None = None
    slo_class: str | None = None
    priority: int | None = None
    cache_salt: str | None = None

    allowed_token_ids: Any = None
    bad_words: Any = None
    prompt_logprobs: Any = None
    truncate_prompt_tokens: Any = None
    logits_processors: Any = None
    typical_p: Any = None
    skip_special_tokens: Any = None
    echo: Any = None
    max_new_tokens: Any = None
    n_predict: Any = None
    min_new_tokens: Any = None
    stop_regex: Any = None
    no_stop_trim: Any = None
    detokenize: Any = None
    return_token_ids: Any = None
    return_tokens_as_token_ids: Any = None
    mirostat: Any = None
    dry_multiplier: Any = None
    xtc_probability: Any = None
    dynatemp_range: Any = None
    lora_path: Any = None
    vllm_xargs: Any = None

    response_format: Any = None
    structured_outputs: Any = None
    structural_tag: Any = None
    guided_json: Any = None
    guided_json_object: Any = None
    guided_regex: Any = None
    guided_choice: Any = None
    guided_grammar: Any = None
    guided_decoding: Any = None
    guided_decoding_backend: Any = None
    guided_whitespace_pattern: Any = None
    json_schema: Any = None
    regex: Any = None
    ebnf: Any = None
    grammar: Any = None
    nvext: Any = None
    extra_body: Any = None


class TextPart(msgspec.Struct):
    type: str
    text: str | None = None


class ChatMessage(msgspec.Struct):
    role: str
    content: str | list[TextPart] | None = None
    name: str | None = None
    tool_call_id: str | None = None
    tool_calls: Any = None
    function_call: Any = None


class ChatRequest(SamplingFields, kw_only=True):
    """POST /v1/chat/completions."""

    messages: list[ChatMessage]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    tools: Any = None
    tool_choice: Any = None
    functions: Any = None
    function_call: Any = None
    audio: Any = None
    modalities: Any = None
    add_generation_prompt: Any = None
    add_special_tokens: bool | None = None
    continue_final_message: Any = None
    chat_template: Any = None
    chat_template_kwargs: Any = None
    documents: Any = None
    web_search_options: Any = None


class CompletionRequest(SamplingFields, kw_only=True):
    """POST /v1/completions."""

    prompt: str | list[Any] | None = None
    """A text, token ids, or a list of either."""
    add_special_tokens: bool | None = None
    """Whether texts begin with the model's own first token; true unless the client says otherwise."""
    logprobs: int | None = None
    suffix: Any = None


class TokenizeRequest(msgspec.Struct):
    """POST /tokenize: `prompt`, or `messages` through the chat template."""

    model: str | None = None
    prompt: str | None = None
    messages: list[ChatMessage] | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None


class DetokenizeRequest(msgspec.Struct):
    """POST /detokenize."""

    tokens: list[int]
    model: str | None = None


def _nothing(value: Any) -> bool:
    return not value


def _never(value: Any) -> bool:
    return False


def _text_format(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") == "text"


CONSTRAINED_OUTPUT: dict[str, Callable[[Any], bool]] = {
    "response_format": _text_format,
    "structured_outputs": _nothing,
    "structural_tag": _nothing,
    "guided_json": _never,
    "guided_json_object": lambda v: v is False,
    "guided_regex": _nothing,
    "guided_choice": _nothing,
    "guided_grammar": _nothing,
    "guided_decoding": _nothing,
    "guided_decoding_backend": _nothing,
    "guided_whitespace_pattern": _nothing,
    "json_schema": _never,
    "regex": _nothing,
    "ebnf": _nothing,
    "grammar": _nothing,
}
"""How clients of OpenAI, vLLM, SGLang, TGI, llama.cpp, TensorRT-LLM and NIM ask for constrained output. An empty JSON
schema asks for JSON."""

CONTAINERS = ("nvext", "extra_body")
"""Fields that hold fields: NIM's, and an argument of OpenAI's Python client, which merges what is in it into the body.
Nobody looks into them here, so what is in them would be ignored."""

HARMLESS: dict[str, Callable[[Any], bool]] = {
    **CONSTRAINED_OUTPUT,
    "tools": _nothing,
    "functions": _nothing,
    "tool_choice": lambda v: v in ("none", "auto"),
    "function_call": lambda v: v in ("none", "auto"),
    "audio": _nothing,
    "modalities": lambda v: v == ["text"] or not v,
    "suffix": lambda v: v == "",
    "echo": lambda v: v is False,
    "prompt_logprobs": _never,
    "logits_processors": _nothing,
    "typical_p": lambda v: v == 1,
    "allowed_token_ids": _nothing,
    "bad_words": _nothing,
    "truncate_prompt_tokens": _never,
    "skip_special_tokens": lambda v: v is True,
    **dict.fromkeys(("max_new_tokens", "n_predict"), lambda v: v == -1),
    **dict.fromkeys(("min_new_tokens", "mirostat", "dry_multiplier", "xtc_probability", "dynatemp_range"), _nothing),
    **dict.fromkeys(("stop_regex", "lora_path", "vllm_xargs"), _nothing),
    **dict.fromkeys(("no_stop_trim", "return_token_ids", "return_tokens_as_token_ids"), lambda v: v is False),
    "detokenize": lambda v: v is True,
    "add_generation_prompt": lambda v: v is True,
    "continue_final_message": lambda v: v is False,
    "chat_template": _never,
    "chat_template_kwargs": _nothing,
    "documents": _nothing,
    "web_search_options": _never,
    **dict.fromkeys(CONTAINERS, lambda v: v == {}),
}
"""Unsupported fields, and which of their values change nothing."""

_Request = TypeVar("_Request", bound=msgspec.Struct)
_PATH = re.compile(r" - at `(?:key in )?\$\.?(?P<path>[^`]*)`")
_MISSING = re.compile(r"Object missing required field `(?P<field>[^`]+)`")


def parse(body: bytes, kind: type[_Request]) -> _Request:
    """Decode and type-check a request body. UserError (400) names the field as a dotted path."""
    if nesting(body) > MAX_JSON_DEPTH:
        raise UserError(f"The request body is nested deeper than {MAX_JSON_DEPTH} levels.")
    try:
        request = msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        raise _type_error(str(error)) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"The request body is not valid JSON: {error}") from error
    if isinstance(request, SamplingFields):
        refuse_unsupported(request)
    return request


def refuse_unsupported(request: SamplingFields) -> None:
    """UserError for the first unsupported field that would change the answer."""
    for field, harmless in HARMLESS.items():
        value = getattr(request, field, None)
        if value is not None and not harmless(value):
            if field in CONTAINERS:
                raise UserError(f"{field} is not read: its fields belong at the top level of the request.", param=field)
            raise UserError(
                f"{field} is not supported by this server with a value that would change the answer: leave it out.",
                param=field,
            )


def _type_error(text: str) -> UserError:
    """msgspec's message, with the path as `param`: `Expected int, got str - at $.max_tokens`."""
    path = _PATH.search(text)
    param = path["path"] if path else None
    message = _PATH.sub("", text)
    missing = _MISSING.match(text)
    if missing:
        param = f"{param}.{missing['field']}" if param else missing["field"]
        message = f"{param} is required."
    return UserError(f"{param}: {message}" if param and not missing else message, param=param or None)
