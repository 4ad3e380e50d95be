"""Bad requests and what they must get: fed to the API alone and to a running engine.

Sizes depend on the served context, so a case is a function of it where it has to be.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

CHAT, COMPLETIONS, TOKENIZE, DETOKENIZE = "/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"


@dataclass(frozen=True)
class Case:
    """One bad request. `param` None: the fault is in no single field."""

    name: str
    path: str
    body: bytes
    status: int = 400
    param: str | None = None
    code: str | None = None


def chat(name: str, param: str | None = None, code: str | None = None, status: int = 400, **fields: Any) -> Case:
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2} | fields
    return Case(f"chat: {name}", CHAT, json.dumps(body).encode(), status, param, code)


def completion(name: str, param: str | None = None, code: str | None = None, status: int = 400, **fields: Any) -> Case:
    body = {"prompt": "Hi", "max_tokens": 2} | fields
    return Case(f"completion: {name}", COMPLETIONS, json.dumps(body).encode(), status, param, code)


def raw(name: str, body: bytes, status: int = 400, path: str = CHAT, param: str | None = None) -> Case:
    return Case(f"raw: {name}", path, body, status, param)


def message(name: str, param: str, value: Any) -> Case:
    return chat(f"a message with {name}", param, messages=[value])


_HUGE = 1 << 70

RANGES = [
    *(chat(f"n={v!r}", "n", n=v) for v in (0, 9, 1_000_000, 1 << 63, -1, True, 1.5, "1", [], {})),
    *(chat(f"temperature={v!r}", "temperature", temperature=v) for v in (-0.1, 2.1, 1e308, "hot", True)),
    *(chat(f"top_p={v!r}", "top_p", top_p=v) for v in (0, -1, 1.1, "x")),
    *(chat(f"top_k={v!r}", "top_k", top_k=v) for v in (-2, -_HUGE, 1.5, "x")),
    *(chat(f"min_p={v!r}", "min_p", min_p=v) for v in (-0.1, 1.1)),
    *(chat(f"presence_penalty={v!r}", "presence_penalty", presence_penalty=v) for v in (-2.1, 2.1)),
    *(chat(f"frequency_penalty={v!r}", "frequency_penalty", frequency_penalty=v) for v in (-2.1, 2.1)),
    *(chat(f"repetition_penalty={v!r}", "repetition_penalty", repetition_penalty=v) for v in (0, -1, 1e-30, 1e9)),
    *(chat(f"seed={v!r}", "seed", seed=v) for v in (_HUGE, -_HUGE, 1.5, "x")),
    *(chat(f"max_tokens={v!r}", "max_tokens", max_tokens=v) for v in (0, -1, 1.5, "x")),
    chat("max_completion_tokens=0", "max_completion_tokens", max_completion_tokens=0),
    chat("max_tokens over the context", "max_tokens", "context_length_exceeded", max_tokens=10_000_000),
    chat("min_tokens=-1", "min_tokens", min_tokens=-1),
    chat("min_tokens over max_tokens", "min_tokens", min_tokens=3),
    chat("17 stops", "stop", stop=["x"] * 17),
    chat("10,000 stops", "stop", stop=["x"] * 10_000),
    chat("a long stop", "stop", stop="x" * 129),
    chat("an empty stop", "stop", stop=""),
    chat("an empty stop in a list", "stop", stop=["a", ""]),
    chat("stop is a number", "stop", stop=7),
    chat("stop token out of the vocabulary", "stop_token_ids", stop_token_ids=[10_000_000]),
    chat("a negative stop token", "stop_token_ids", stop_token_ids=[-1]),
    chat("logit_bias out of the vocabulary", "logit_bias", logit_bias={"10000000": 1}),
    chat("logit_bias of a word", "logit_bias", logit_bias={"hello": 1}),
    chat("logit_bias of a negative id", "logit_bias", logit_bias={"-1": 1}),
    chat("logit_bias too strong", "logit_bias", logit_bias={"1": 101}),
    chat("top_logprobs=21", "top_logprobs", logprobs=True, top_logprobs=21),
    chat("top_logprobs=-1", "top_logprobs", logprobs=True, top_logprobs=-1),
    chat("top_logprobs without logprobs", "top_logprobs", top_logprobs=2),
    completion("logprobs=21", "logprobs", logprobs=21),
    completion("logprobs=-1", "logprobs", logprobs=-1),
    chat("stream_options without stream", "stream_options", stream_options={"include_usage": True}),
    chat("an unknown slo_class", "slo_class", slo_class="platinum"),
    chat("a slo_class above the pool's", "slo_class", slo_class="interactive"),
    *(chat(f"priority={v}", "priority", priority=v) for v in (-101, 101)),
    *(chat(f"{field} of 1000 digits", field, **{field: 10**1000}) for field in ("seed", "n")),
    chat("max_tokens of 1000 digits", "max_tokens", "context_length_exceeded", max_tokens=10**1000),
    chat("an empty cache_salt", "cache_salt", cache_salt=""),
    chat("a long cache_salt", "cache_salt", cache_salt="s" * 257),
    *(chat(f"cache_salt is {v!r}", "cache_salt", cache_salt=v) for v in (7, True, ["s"], {"s": 1})),
    chat("stream is a word", "stream", stream="yes"),
]

_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
CONSTRAINTS: list[tuple[str, Any]] = [
    ("response_format", {"type": "json_object"}),
    ("response_format", {"type": "json_schema", "json_schema": {"name": "a", "schema": _SCHEMA, "strict": True}}),
    ("response_format", {"type": "json_schema", "json_schema": {}}),
    ("response_format", {"type": "structural_tag", "structures": []}),
    ("response_format", {"type": "grammar", "grammar": "root ::= 'a'"}),
    ("response_format", {"type": "regex", "regex": "a+"}),
    ("response_format", {}),
    ("response_format", "json_object"),
    ("structured_outputs", {"regex": "a+"}),
    ("structural_tag", "{}"),
    ("guided_json", _SCHEMA),
    ("guided_json", "{}"),
    ("guided_json", {}),
    ("guided_json_object", True),
    ("guided_regex", "a+"),
    ("guided_choice", ["a", "b"]),
    ("guided_grammar", "root ::= 'a'"),
    ("guided_decoding", {"choice": ["a"]}),
    ("guided_decoding_backend", "xgrammar"),
    ("guided_whitespace_pattern", " ?"),
    ("json_schema", _SCHEMA),
    ("json_schema", {}),
    ("regex", "a+"),
    ("ebnf", "root ::= 'a'"),
    ("grammar", "root ::= 'a'"),
    ("grammar", {"type": "json", "value": _SCHEMA}),
]
"""What asks for constrained output, by the fields of several servers: none may be dropped in silence."""

OTHER_SERVERS = [
    ("max_new_tokens", 5),
    ("n_predict", 5),
    ("min_new_tokens", 5),
    ("stop_regex", "a+"),
    ("no_stop_trim", True),
    ("detokenize", False),
    ("return_token_ids", True),
    ("return_tokens_as_token_ids", True),
    ("mirostat", 2),
    ("dry_multiplier", 0.8),
    ("xtc_probability", 0.5),
    ("dynatemp_range", 0.5),
    ("lora_path", "adapter"),
    ("vllm_xargs", {"a": 1}),
]
"""By which SGLang, TGI, vLLM and llama.cpp take lengths, stops, ways of sampling and of showing tokens."""

UNSUPPORTED = [
    *(
        make(f"{field}={value!r}", field, **{field: value})
        for make in (chat, completion)
        for field, value in [*CONSTRAINTS, *OTHER_SERVERS]
    ),
    *(
        make(f"{field}={value!r}", field, **{field: value})
        for make in (chat, completion)
        for field in ("nvext", "extra_body")
        for value in ({"guided_json": _SCHEMA}, {"top_k": 4}, {"unknown_field": None}, [], "top_k=4", False)
    ),
    chat("tools", "tools", tools=[{"type": "function", "function": {"name": "f"}}]),
    chat("functions", "functions", functions=[{"name": "f"}]),
    chat("tool_choice required", "tool_choice", tool_choice="required"),
    chat("tool_choice of a function", "tool_choice", tool_choice={"type": "function", "function": {"name": "f"}}),
    chat("function_call of a function", "function_call", function_call={"name": "f"}),
    chat("audio", "audio", audio={"voice": "alloy", "format": "wav"}),
    chat("audio modality", "modalities", modalities=["text", "audio"]),
    chat("prompt_logprobs", "prompt_logprobs", prompt_logprobs=1),
    chat("beam search that is no bool", "use_beam_search", use_beam_search="yes"),
    *(
        chat(f"beam search with {field}", field, use_beam_search=True, n=2, **{field: value})
        for field, value in {
            "stream": True,
            "temperature": 0.7,
            "top_p": 0.9,
            "top_k": 5,
            "min_p": 0.1,
            "presence_penalty": 0.5,
            "frequency_penalty": -0.5,
            "repetition_penalty": 1.1,
            "logit_bias": {"5": 1},
            "early_stopping": "always",
            "length_penalty": 10.5,
            "best_of": 1,
            "guided_regex": "a+",
            "response_format": {"type": "json_object"},
        }.items()
    ),
    chat("early_stopping without beams", "early_stopping", early_stopping=True),
    chat("best_of below n", "best_of", n=3, best_of=2),
    chat("best_of in a stream", "best_of", best_of=2, stream=True),
    chat("best_of of zero", "best_of", best_of=0),
    completion("best_of above what runs together", "best_of", best_of=9),
    completion("best_of times prompts", "best_of", prompt=["a"] * 17, best_of=8),
    chat("typical_p", "typical_p", typical_p=0.5),
    chat("a length penalty", "length_penalty", length_penalty=2),
    chat("a logits processor", "logits_processors", logits_processors=["x"]),
    chat("a chat template", "chat_template", chat_template="{{ 1 }}"),
    chat("template arguments", "chat_template_kwargs", chat_template_kwargs={"tokenize": True}),
    chat("no generation prompt", "add_generation_prompt", add_generation_prompt=False),
    chat("continue the last message", "continue_final_message", continue_final_message=True),
    completion("suffix", "suffix", suffix="the end"),
    completion("echo", "echo", echo=True),
    completion("echo alone, no output", "echo", prompt="Hi", echo=True, max_tokens=0),
    completion("prompt_logprobs=0", "prompt_logprobs", prompt_logprobs=0),
    message(
        "an image", "messages[0].content[0]", {"role": "user", "content": [{"type": "image_url", "image_url": {}}]}
    ),
    message("tool calls", "messages[0].tool_calls", {"role": "assistant", "content": "", "tool_calls": [{"id": "x"}]}),
]

PROMPTS = [
    chat("an unknown model", "model", "model_not_found", 404, model="gpt-5"),
    chat("no messages", "messages", messages=[]),
    chat("messages are a text", "messages", messages="Hi"),
    message("an unknown role", "messages[0].role", {"role": "wizard", "content": "Hi"}),
    message("no content", "messages[0].content", {"role": "user"}),
    message("content null", "messages[0].content", {"role": "user", "content": None}),
    message("a number as content", "messages[0].content", {"role": "user", "content": 5}),
    message("no role", "messages[0].role", {"content": "Hi"}),
    completion("an empty prompt", "prompt", prompt=""),
    completion("no prompts", "prompt", prompt=[]),
    completion("an empty prompt in a list", "prompt", prompt=["a", ""]),
    completion("an empty list of ids in a list", "prompt", prompt=[[1], []]),
    completion("a number as prompt", "prompt", prompt=5),
    completion("prompt null", "prompt", prompt=None),
    completion("mixed nonsense", "prompt[1]", prompt=["a", 5]),
    completion("ids and true", "prompt[0]", prompt=[1, True]),
    completion("an id out of the vocabulary", "prompt", prompt=[1, 10_000_000]),
    completion("a negative id", "prompt", prompt=[-1]),
    completion("an id of 2**63", "prompt", prompt=[1 << 63]),
    completion("65 prompts", "prompt", prompt=["a"] * 65),
    completion("too many choices", "n", prompt=["a"] * 60, n=8),
]

BODIES = [
    raw("no body", b""),
    raw("not JSON", b"{"),
    raw("a list", b"[]"),
    raw("a number", b"1"),
    raw("NaN", b'{"messages": [], "temperature": NaN}'),
    raw("infinity", b'{"messages": [], "temperature": Infinity}'),
    raw("1e400", b'{"messages": [{"role": "user", "content": "a"}], "temperature": 1e400}', param="temperature"),
    raw("invalid UTF-8", b'{"messages": [{"role": "user", "content": "\xff"}]}'),
    raw("a lone surrogate", rb'{"messages": [{"role": "user", "content": "\ud800"}]}'),
    raw("33 levels", b'{"x": ' + b"[" * 33 + b"]" * 33 + b"}"),
    raw("10,000 levels", b"[" * 10_000),
    raw("10,000 levels of objects", b'{"a":' * 10_000),
    raw("detokenize a text", b'{"tokens": "abc"}', path=DETOKENIZE, param="tokens"),
    raw("detokenize out of the vocabulary", b'{"tokens": [10000000]}', path=DETOKENIZE, param="tokens"),
    raw("tokenize nothing", b"{}", path=TOKENIZE, param="prompt"),
    raw("tokenize both", b'{"prompt": "a", "messages": []}', path=TOKENIZE, param="prompt"),
]

CASES = [*RANGES, *UNSUPPORTED, *PROMPTS, *BODIES]


def too_long(context: int) -> list[Case]:
    """Cases about the context and the body's size. `context` is in tokens; a token is at most 6 bytes of `word `."""
    words = "word " * (context + 10)
    code = "context_length_exceeded"
    return [
        chat("a prompt over the context", "messages", code, messages=[{"role": "user", "content": words}]),
        completion("prompt and max_tokens over the context", "prompt", code, prompt=[1] * (context - 1), max_tokens=2),
        completion("a prompt as long as the context", "prompt", code, prompt=[1] * context, max_tokens=1),
        Case("raw: a body over the limit", CHAT, b'{"x": "' + b"y" * ((64 << 10) + 16 * context) + b'"}', 413),
    ]


HARMLESS: list[dict[str, Any]] = [
    {"tools": [], "functions": [], "tool_choice": "none", "function_call": "auto"},
    {"tools": None, "response_format": {"type": "text"}, "modalities": ["text"], "audio": None},
    {"nvext": None, "extra_body": None},
    {"stop": None, "n": None, "temperature": None, "logit_bias": None, "max_tokens": None, "seed": None},
    {"stop": [], "logit_bias": {}, "stop_token_ids": [], "structured_outputs": None, "best_of": 1},
    {"use_beam_search": False, "length_penalty": 1.0, "early_stopping": False, "best_of": None},
    {"use_beam_search": True, "n": 2, "temperature": 0, "top_p": 1, "top_k": -1, "seed": 3, "early_stopping": "never"},
    {"use_beam_search": True, "temperature": 1.0, "min_p": 0, "logit_bias": {}, "stream": False},
    {"user": "u", "store": True, "metadata": {"a": {"b": [1]}}, "unknown_field": {"x": [1, 2]}, "service_tier": "auto"},
    {"stream": False, "parallel_tool_calls": True, "reasoning_effort": "low", "model": None},
    {"temperature": 1, "top_p": 1, "presence_penalty": 0, "seed": (1 << 63) - 1, "n": 1, "top_logprobs": None},
    {"top_k": _HUGE, "min_p": 0},
    {
        "structured_outputs": {},
        "guided_json": None,
        "guided_regex": "",
        "guided_choice": [],
        "guided_json_object": False,
    },
    {"nvext": {}, "extra_body": {}, "grammar": "", "ebnf": None, "guided_decoding_backend": None},
    {"max_new_tokens": -1, "n_predict": None, "min_new_tokens": 0, "mirostat": 0, "dry_multiplier": 0.0},
    {"stop_regex": "", "no_stop_trim": False, "detokenize": True, "return_token_ids": False, "vllm_xargs": {}},
]
"""Fields of a chat that change nothing: OpenAI's clients send them."""
