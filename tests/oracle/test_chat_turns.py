"""The next turn of a chat finds all of the turn before in the prefix cache, its answer included, and answers alike."""

from __future__ import annotations

from dataclasses import replace
from itertools import takewhile

import pytest

from kvik_engine.api.messages import chat_prompt
from kvik_engine.api.schema import ChatMessage
from kvik_engine.config import EngineConfig
from kvik_engine.convert import converted
from kvik_engine.ipc.messages import FinishReason
from kvik_engine.params import SamplingParams
from kvik_engine.runner.runner import ModelRunner
from kvik_engine.text.chat_template import ChatTemplate
from kvik_engine.text.tokenizer import TextModel, load_text_model
from tests.support.demo_model import demo_model
from tests.support.real_core import RealCore, Settings

pytestmark = pytest.mark.timeout(600)

QUESTIONS = ("What is the capital of France?", "And of Italy?", "Which of the two is larger?")
STEPS = 16
SHORTENS_ANSWERS = """{% for m in messages %}<|im_start|>{{ m.role }}
{% if m.role == 'assistant' and not loop.last %}{{ m.content[:9] }}{% else %}{{ m.content }}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
"""As templates do that leave the reasoning out of earlier answers."""


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> TextModel:
    return load_text_model(converted(demo_model(), tmp_path_factory.mktemp("text")))


def chat(core: RealCore, text: TextModel) -> tuple[list[str], list[int], list[int]]:
    """All turns of a chat: the answers, the tokens found for each turn, and those that could have been."""
    params = SamplingParams(max_tokens=STEPS, seed=0, temperature=0.0, stop_token_ids=text.stop_token_ids)
    messages: list[ChatMessage] = []
    answers: list[str] = []
    found: list[int] = []
    shared: list[int] = []
    computed: list[int] = []
    for question in QUESTIONS:
        messages.append(ChatMessage(role="user", content=question))
        prompt = chat_prompt(text, messages, max_chars=10_000)
        (heard,) = core.generate([prompt], params)
        answers.append(text.tokenizer.decode(heard.tokens))
        messages.append(ChatMessage(role="assistant", content=answers[-1]))
        found.append(heard.cached_tokens)
        shared.append(len(list(takewhile(lambda pair: pair[0] == pair[1], zip(prompt, computed, strict=False)))))
        # The last sampled token has no KV. A stop token is not among heard.tokens.
        computed = [*prompt, *heard.tokens] if heard.finish is FinishReason.STOP else [*prompt, *heard.tokens[:-1]]
    return answers, found, shared


@pytest.mark.long
@pytest.mark.parametrize("overlap", [0, 1], ids=["overlap-0", "overlap-1"])
def test_each_turn_finds_all_of_the_one_before(
    runner: ModelRunner, config: EngineConfig, text: TextModel, overlap: int
) -> None:
    cold, nothing, _ = chat(RealCore(runner, config, Settings(at_once=1, chunk=512, prefix_cache="disabled")), text)
    core = RealCore(runner, config, Settings(at_once=1, chunk=512, overlap=overlap))
    warm, found, shared = chat(core, text)
    assert warm == cold
    assert found == shared
    assert nothing == [0, 0, 0]
    # All of the turn before, not a part: its prompt and answer alone are longer than this.
    assert found[1] > 40
    assert found[2] > found[1] + STEPS


def test_where_a_template_leaves_out_earlier_answers_the_hit_ends_and_nothing_breaks(
    runner: ModelRunner, config: EngineConfig, text: TextModel
) -> None:
    shortening = replace(text, template=ChatTemplate(SHORTENS_ANSWERS, {}))
    cold, _, _ = chat(RealCore(runner, config, Settings(at_once=1, chunk=512, prefix_cache="disabled")), shortening)
    warm, found, shared = chat(RealCore(runner, config, Settings(at_once=1, chunk=512)), shortening)
    assert warm == cold
    assert found == shared
    assert 0 < found[1] < found[2]
