"""What a quantised KV cache costs the model at hand, as a start measures it, and what is refused."""

import logging
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from kvik_engine.attention.cpu_backend import CpuBackend
from kvik_engine.attention.cpu_dequantised import DequantisingPath
from kvik_engine.attention.kv_layout import KVFormats
from kvik_engine.errors import StartError, StartReason
from kvik_engine.models.config import WindowAttention
from kvik_engine.models.random_weights import RandomTensors
from kvik_engine.models.registry import Model, build
from kvik_engine.runner.kv_quality import CHUNK_TOKENS, MOST_SECONDS, KVTrial, Rise, check_rise, largest_rise
from kvik_engine.runner.load import make_runner
from kvik_engine.runner.runner import RunnerLimits
from tests.support.kv_model import MODEL

CPU = torch.device("cpu")


def formats(key: str, value: str) -> KVFormats:
    return KVFormats.of("fp32", key, value)


def model(*, window: WindowAttention | None = None, context: int = 400) -> Model:
    config = replace(MODEL, window=window, context_length=context)
    return build(config, RandomTensors(3, dtype=torch.float32, device=CPU))


def text(tokens: int) -> list[int]:
    return torch.randint(0, MODEL.vocab_size, (tokens,), generator=torch.Generator().manual_seed(5)).tolist()


def measure(
    kept: KVFormats, of: Model | None = None, *, tokens: int = 300, clock: Callable[[], float] = lambda: 0.0
) -> Rise | None:
    trial = KVTrial(text(tokens), refuse=True, clock=clock)
    return trial.measure(of or model(), CpuBackend(DequantisingPath()), kept, dtype="fp32", device=CPU)


def test_a_rise_is_that_of_the_mean_loss_with_two_standard_errors() -> None:
    rise = Rise.of([0.0, 0.02, 0.04, 0.02])

    assert rise.percent == pytest.approx((math.exp(0.02) - 1) * 100)
    assert rise.uncertainty == pytest.approx(2 * math.sqrt(0.0008 / 3) / 2 * math.exp(0.02) * 100)
    assert rise.tokens == 4


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_no_number_is_surely_too_much(odd: float, caplog: pytest.LogCaptureFixture) -> None:
    rise = Rise.of([0.0, odd, 0.01])
    assert rise.surely_above(5.0)
    with pytest.raises(StartError, match="costs this model too much"):
        check_rise(rise, formats("int8", "int8"), refuse=True)
    check_rise(rise, formats("int8", "int8"), refuse=False)
    assert "costs too much and is served" in caplog.text


@pytest.mark.parametrize(
    ("key", "value", "percent"),
    [("int8", "int8", 0.5), ("fp8", "auto", 0.5), ("int8", "int4", 1.5), ("int4", "int8", 5.0), ("int4", "int4", 5.0)],
)
def test_bounds_are_those_of_the_coarser_half(key: str, value: str, percent: float) -> None:
    assert largest_rise(formats(key, value)) == percent


def test_what_surely_costs_too_much_is_refused_with_what_was_measured_and_what_to_do() -> None:
    with pytest.raises(
        StartError, match=r"fp8 .*\+0\.90 % \(give or take 0\.30, .*bound 0\.5 %.*--kv-dtype-check=warn"
    ) as it:
        check_rise(Rise(0.9, 0.3, 1000), formats("fp8", "int8"), refuse=True)

    assert it.value.reason is StartReason.CONFIG_INVALID


def test_what_may_still_lie_in_its_bound_is_served(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "kvik_engine"):
        check_rise(Rise(0.7, 0.3, 1000), formats("int8", "int8"), refuse=True)

    assert [(record.levelname, vars(record)["perplexity_percent"]) for record in caplog.records] == [("INFO", 0.7)]


def test_what_costs_too_much_is_served_with_a_warning_where_that_is_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "kvik_engine"):
        check_rise(Rise(0.9, 0.3, 1000), formats("int8", "int8"), refuse=False)

    assert [record.levelname for record in caplog.records] == ["WARNING"]


@pytest.mark.parametrize(
    "window", [None, WindowAttention(tokens=20, layers=(1, 2), rope_theta=10000.0)], ids=["full", "window"]
)
def test_coarser_caches_are_further_off_and_a_full_one_is_not_off_at_all(window: WindowAttention | None) -> None:
    rises = [measure(formats(kept, kept), model(window=window)) for kept in ("auto", "int8", "int4")]
    spreads = [rise.uncertainty for rise in rises if rise is not None]

    assert len(spreads) == 3
    assert spreads[0] == 0.0
    assert 0.0 < spreads[1] < spreads[2] / 4


def test_a_text_longer_than_the_models_context_is_cut() -> None:
    rise = measure(formats("int8", "int8"), model(context=200), tokens=500)

    assert rise is not None
    assert rise.tokens == 199


def test_no_chunk_is_begun_when_the_time_is_over() -> None:
    seconds = iter((0.0, MOST_SECONDS + 1))
    rise = measure(formats("int8", "int8"), clock=lambda: next(seconds))

    assert rise is not None
    assert rise.tokens == CHUNK_TOKENS


def test_a_text_of_two_tokens_says_nothing() -> None:
    assert measure(formats("int8", "int8"), tokens=2) is None


class Costly(KVTrial):
    """Finds that whatever is tried costs too much."""

    def measure(self, *_: object, **__: object) -> Rise:
        return Rise(9.0, 0.1, 1000)


def start(kept: KVFormats, *, refuse: bool) -> str:
    """What the keys of a runner are kept as."""
    runner = make_runner(
        MODEL,
        RandomTensors(3, dtype=torch.float32, device=CPU),
        dtype="fp32",
        formats=kept,
        backend=CpuBackend(DequantisingPath()),
        limits=RunnerLimits(max_requests=2, max_tokens=96, block_tokens=8),
        max_batch_tokens=16,
        progress=lambda _: None,
        trial=Costly(text(100), refuse=refuse),
    )
    return runner.facts.kv_key_dtype


def test_a_start_tries_quantised_formats_alone_and_refuses_what_costs_too_much() -> None:
    with pytest.raises(StartError, match=r"--kv-key-dtype=int8"):
        start(formats("int8", "auto"), refuse=True)

    assert start(formats("int8", "auto"), refuse=False) == "int8"
    assert start(formats("auto", "auto"), refuse=True) == "fp32"
