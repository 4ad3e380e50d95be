from __future__ import annotations

from tests.support.engine_harness import Harness
from tests.support.fake_runner import FakeRunner


def test_the_exported_rate_is_of_steps_full_of_prompts_whatever_short_prompts_come_after() -> None:
    """It fell from 64,000 to 6,127 tokens a second, and the predicted time to first token rose by as much."""
    harness = Harness(
        blocks=2000,
        chunked_prefill_tokens=64,
        max_batch_tokens=64,
        runner=FakeRunner(block_tokens=4, rows=8, seconds=0.05),
    )
    harness.submit(0, [1 + i % 60 for i in range(3200)], max_tokens=1)
    harness.run()
    assert harness.channel.stats is not None
    before = harness.channel.stats.prefill_tokens_per_second
    assert before is not None
    harness.submit(1, [2, 3, 4], max_tokens=400, min_tokens=400)
    for number in range(2, 60):
        harness.submit(number, [number] * 6, max_tokens=3)
        for _ in range(4):
            harness.step()

    assert harness.channel.stats.prefill_tokens_per_second == before


def test_before_any_full_step_the_rate_is_of_the_prompts_that_came() -> None:
    harness = Harness(chunked_prefill_tokens=16)
    harness.submit(1, [2, 3, 4], max_tokens=2)
    harness.run()

    assert harness.channel.stats is not None
    assert harness.channel.stats.prefill_tokens_per_second == 3 / harness.fake.seconds
