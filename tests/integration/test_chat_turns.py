"""The next turn of a chat is billed what the prefix cache had of the turn before. tests/oracle has what was found."""

from __future__ import annotations

import pytest

from tests.support.live_engine import MODEL, LiveEngine

pytestmark = pytest.mark.timeout(600)


def test_over_http_the_next_turn_is_billed_what_was_found(engine: LiveEngine) -> None:
    first = [{"role": "user", "content": "Name a colour of the rainbow, please."}]
    options = {"model": MODEL, "temperature": 0, "max_tokens": 12}
    one = engine.openai.chat.completions.create(messages=first, **options)
    second = [
        *first,
        {"role": "assistant", "content": one.choices[0].message.content},
        {"role": "user", "content": "Another?"},
    ]
    two = engine.openai.chat.completions.create(messages=second, **options)
    before = one.usage.prompt_tokens + one.usage.completion_tokens - 1
    assert two.usage.prompt_tokens_details.cached_tokens in (before, before + 1)
    salted = engine.openai.chat.completions.create(messages=second, **options, extra_body={"cache_salt": "another"})
    assert salted.usage.prompt_tokens_details.cached_tokens == 0
    assert salted.choices[0].message.content == two.choices[0].message.content
    again = engine.openai.chat.completions.create(messages=second, **options, extra_body={"cache_salt": "another"})
    assert again.usage.prompt_tokens_details.cached_tokens == again.usage.prompt_tokens - 1
