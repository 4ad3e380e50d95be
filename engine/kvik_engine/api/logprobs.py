"""Log-probabilities in the two shapes of OpenAI's APIs. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvik_engine.api.choice import ShownToken
from kvik_engine.text.tokenizer import TextModel

LOWEST = -9999.0
"""JSON has no infinity; OpenAI sends this for a probability of zero."""


def chat_logprobs(text: TextModel, tokens: Iterable[ShownToken]) -> dict[str, Any]:
    """`{"content": [...]}`: the chosen token and its alternatives, with bytes."""
    content = [
        {
            **_entry(text, shown.token.token, shown.token.logprob),
            "top_logprobs": [_entry(text, top.token, top.logprob) for top in shown.token.top],
        }
        for shown in tokens
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(text: TextModel, tokens: Iterable[ShownToken]) -> dict[str, Any]:
    """Parallel lists; text_offset counts the characters of the choice before each token."""
    names, values, tops, offsets = [], [], [], []
    for shown in tokens:
        token = shown.token
        name = text.token_text(token.token)
        names.append(name)
        values.append(_finite(token.logprob))
        top = {text.token_text(t.token): _finite(t.logprob) for t in token.top}
        tops.append({**top, name: _finite(token.logprob)} if token.top else None)
        offsets.append(shown.offset)
    return {"tokens": names, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}


def _entry(text: TextModel, token: int, logprob: float | None) -> dict[str, Any]:
    return {
        "token": text.token_text(token),
        "logprob": _finite(logprob),
        "bytes": list(text.bytes.of(token)),
    }


def _finite(logprob: float | None) -> float:
    return LOWEST if logprob is None or logprob < LOWEST else logprob
