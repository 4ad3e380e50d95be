"""On the embedded model in fp32, a beam search finds what transformers' `generate(num_beams=...)` does."""

from __future__ import annotations

import pytest

from kvik_engine.config import EngineConfig
from kvik_engine.params import BeamParams, SamplingParams
from kvik_engine.runner.runner import ModelRunner
from tests.support.demo_model import demo_model
from tests.support.oracle import load_oracle, oracle_prompts
from tests.support.real_core import RealCore, Settings

WIDTH, TOKENS = 4, 8
PROMPTS = (3,)
"""A short one of the oracle's."""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_beams_of_the_embedded_model_equal_those_of_transformers(runner: ModelRunner, config: EngineConfig) -> None:
    params = SamplingParams(max_tokens=TOKENS, seed=0, n=WIDTH, temperature=0.0, beam=BeamParams())
    prompts = [oracle_prompts()[place].prompt for place in PROMPTS]
    oracle = load_oracle(demo_model())
    want = [oracle.beams(prompt, WIDTH, TOKENS) for prompt in prompts]
    real = RealCore(runner, config, Settings(at_once=2, chunk=100, overlap=1))

    got = real.generate_choices(prompts, params)
    assert [[one.tokens for one in beams] for beams in got] == want
