"""A model over a quantised KV cache through the engine core: chunks, prefix hits, preemption, swap, forks and steps
planned ahead change no token of what the same cache gives an undisturbed request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import torch

from kvik_engine.attention.backend import AttentionBackend
from kvik_engine.attention.cpu_backend import CpuBackend
from kvik_engine.attention.cpu_dequantised import DequantisingPath
from kvik_engine.attention.cpu_in_place import KernelPath
from kvik_engine.attention.kv_layout import KVFormats
from kvik_engine.models.config import ModelConfig, WindowAttention
from kvik_engine.models.random_weights import RandomTensors
from kvik_engine.params import SamplingParams
from kvik_engine.runner.load import make_runner
from kvik_engine.runner.runner import ModelRunner, RunnerLimits
from kvik_engine.scheduler.swap_or_recompute import PreemptionMode
from kvik_kernels.cpu.library import load_library
from tests.support.cpu_kernels import needs_kernels
from tests.support.engine_harness import Heard
from tests.support.kv_model import MODEL
from tests.support.real_core import RealCore, Settings, engine_config

BLOCK_TOKENS, ROWS, OUTPUTS = 8, 12, 12
GREEDY = SamplingParams(max_tokens=OUTPUTS, seed=0, temperature=0.0)
SEED = 3
LEAST_MARGIN = 0.01
"""Log-probability of the best token above the second."""
BACKENDS: dict[str, Callable[[], AttentionBackend]] = {
    "torch": lambda: CpuBackend(DequantisingPath()),
    "kernels": lambda: CpuBackend(KernelPath(load_library(), heads=MODEL.heads)),
}


def runner_of(backend: AttentionBackend, key: str, value: str, model: ModelConfig = MODEL) -> ModelRunner:
    return make_runner(
        model,
        RandomTensors(SEED, dtype=torch.float32, device=torch.device("cpu")),
        dtype="fp32",
        formats=KVFormats.of("fp32", key, value),
        backend=backend,
        limits=RunnerLimits(max_requests=ROWS, max_tokens=model.context_length, block_tokens=BLOCK_TOKENS),
        max_batch_tokens=64,
        progress=lambda _: None,
    )


def prompts() -> list[list[int]]:
    """Some begin alike, and end within a block."""
    draw = torch.Generator().manual_seed(9)
    shared = torch.randint(0, 101, (37,), generator=draw).tolist()
    alone = [torch.randint(0, 101, (length,), generator=draw).tolist() for length in (3, 21, 64)]
    return alone + [shared + torch.randint(0, 101, (length,), generator=draw).tolist() for length in (1, 9, 30)]


def core(runner: ModelRunner, folder: Path, **settings: Any) -> RealCore:
    values = {"at_once": ROWS, "chunk": 64, "blocks": 300, **settings}
    return RealCore(runner, engine_config(folder, dtype="fp32", max_requests=ROWS), Settings(**values))


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((backend, key, value, window), id=f"{backend}-{key}-{value}{'-window' * window}", marks=marks)
        for backend, key, value, window, marks in (
            ("kernels", "int8", "int8", False, needs_kernels),
            ("torch", "int8", "int8", True, ()),
            ("kernels", "fp8", "int8", True, needs_kernels),
            ("torch", "fp8", "fp8", False, ()),
            ("kernels", "int8", "int4", False, needs_kernels),
            ("kernels", "int4", "int4", True, needs_kernels),
            ("torch", "int4", "fp8-dynamic", False, ()),
        )
    ],
)
def runner(request: pytest.FixtureRequest) -> ModelRunner:
    backend, key, value, window = request.param
    model = replace(MODEL, window=WindowAttention(tokens=20, layers=(1, 2), rope_theta=10000.0)) if window else MODEL
    return runner_of(BACKENDS[backend](), key, value, model)


@pytest.fixture(scope="module")
def undisturbed(runner: ModelRunner, tmp_path_factory: pytest.TempPathFactory) -> list[list[int]]:
    """Each prompt alone, in one piece, with nothing cached; up to the first choice that rounding might change: by a
    matrix product over other rows, which may round a number to the next one of a quantised cache."""
    alone = core(runner, tmp_path_factory.mktemp("alone"), at_once=1, prefix_cache="disabled")
    heard = alone.generate(prompts(), replace(GREEDY, logprobs=2))
    sure = [[*takewhile(lambda margin: margin >= LEAST_MARGIN, one.margins)] for one in heard]
    assert sum(map(len, sure)) >= 0.7 * len(heard) * OUTPUTS, "choose another seed"
    return [one.tokens[: len(margins)] for one, margins in zip(heard, sure, strict=True)]


def beginnings(heard: Sequence[Heard], like: Sequence[Sequence[int]]) -> list[list[int]]:
    """As many tokens of each as are sure."""
    return [one.tokens[: len(want)] for one, want in zip(heard, like, strict=True)]


@pytest.mark.parametrize(("chunk", "overlap"), [(5, 1), (64, 0), (17, 1)])
def test_chunks_and_company_change_no_token(
    runner: ModelRunner, undisturbed: list[list[int]], tmp_path: Path, chunk: int, overlap: int
) -> None:
    heard = core(runner, tmp_path, chunk=chunk, overlap=overlap, prefix_cache="disabled").generate(prompts(), GREEDY)

    assert beginnings(heard, undisturbed) == undisturbed


@pytest.mark.parametrize("index", ["radix", "block-hash"])
def test_prefix_hits_change_no_token(
    runner: ModelRunner, undisturbed: list[list[int]], tmp_path: Path, index: str
) -> None:
    engine = core(runner, tmp_path, prefix_cache=index, chunk=20)
    engine.generate(prompts(), GREEDY)
    heard = engine.generate(prompts(), GREEDY)

    assert beginnings(heard, undisturbed) == undisturbed
    assert sum(one.cached_tokens for one in heard) > 60


@pytest.mark.parametrize("mode", [PreemptionMode.SWAP, PreemptionMode.RECOMPUTE], ids=str)
@pytest.mark.parametrize("overlap", [0, 1])
def test_preempted_requests_give_the_same_tokens(
    runner: ModelRunner, undisturbed: list[list[int]], tmp_path: Path, mode: PreemptionMode, overlap: int
) -> None:
    blocks = 26 if len(runner.facts.groups) == 1 else 38
    engine = core(runner, tmp_path, blocks=blocks, swap_slots=200, preemption_mode=mode, chunk=20, overlap=overlap)
    heard = engine.generate([*prompts(), *prompts()], GREEDY)
    counters = engine.core.scheduler.counters

    assert beginnings(heard, undisturbed * 2) == undisturbed * 2
    assert counters.preemptions > 0
    assert (counters.swaps > 0) == (mode is PreemptionMode.SWAP)


def test_forks_of_one_prompt_give_its_tokens(runner: ModelRunner, undisturbed: list[list[int]], tmp_path: Path) -> None:
    heard = core(runner, tmp_path, chunk=20).generate_choices(prompts(), replace(GREEDY, n=3))

    for choices, want in zip(heard, undisturbed, strict=True):
        assert beginnings(choices, [want] * 3) == [want] * 3


def test_a_prefix_from_the_host_gives_the_cold_answer(
    runner: ModelRunner, undisturbed: list[list[int]], tmp_path: Path
) -> None:
    """The pool has room for little more than one prompt, so that the next ones send it to the host."""
    engine = core(runner, tmp_path, at_once=1, blocks=20 * len(runner.facts.groups), swap_slots=300)
    engine.generate(prompts(), GREEDY)
    before = engine.core.scheduler.offload.use.swapped_in
    heard = engine.generate(prompts(), GREEDY)

    assert beginnings(heard, undisturbed) == undisturbed
    assert engine.core.scheduler.offload.use.swapped_in > before


def test_quantisation_is_what_is_served(tmp_path: Path) -> None:
    """Log-probabilities differ from those of the full cache, by little."""
    sums = []
    for key in ("auto", "int8"):
        backend = CpuBackend(DequantisingPath() if key == "int8" else None)
        heard = core(runner_of(backend, key, key), tmp_path).generate(prompts()[:1], replace(GREEDY, logprobs=0))
        sums.append(heard[0].logprob)

    assert sums[0] != sums[1]
    assert sums[0] == pytest.approx(sums[1], abs=0.5)
