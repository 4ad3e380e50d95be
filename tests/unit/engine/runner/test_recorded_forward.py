"""Forward passes that are made again from a recording."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from kvik_engine.attention.backend import AttentionBatch, StepAttention
from kvik_engine.attention.cpu_backend import CpuBackend, CpuStep
from kvik_engine.attention.cpu_in_place import KernelPath
from kvik_engine.attention.kv_cache import KVCache
from kvik_engine.attention.kv_layout import KVFormats
from kvik_engine.layers.elementwise import CpuElementwise
from kvik_engine.layers.product import MakeProduct, PackedProduct, PanelProduct, PlainProduct
from kvik_engine.models.config import ModelConfig, WindowAttention
from kvik_engine.models.random_weights import RandomTensors
from kvik_engine.models.registry import Model, build
from kvik_engine.runner.dtypes import DTYPES
from kvik_engine.runner.recorded_forward import MOST_TOKENS, RecordedForward
from kvik_engine.runner.recorded_step import Buffers
from kvik_kernels.cpu.library import InstructionSet, load_library
from tests.support.cpu_kernels import SETS, needs_kernels
from tests.support.paged_steps import PagedModel
from tests.support.tiny_model import TINY

pytestmark = needs_kernels

CPU = torch.device("cpu")
LLAMA = replace(TINY, hidden_size=64, intermediate_size=96, head_dim=32)
GEMMA = replace(
    LLAMA,
    architecture="Gemma3ForCausalLM",
    sandwich_norms=True,
    window=WindowAttention(tokens=6, layers=(0, 2), rope_theta=1000.0),
)


class Recorded:
    """See registry.Model: its passes are recorded, and counted where they are not made from a recording."""

    def __init__(self, model: Model) -> None:
        self.config, self.logits, self.parameters = model.config, model.logits, model.parameters
        self.passes = 0
        self._pass = model.forward
        recorded = RecordedForward(_Counted(self, model), load_library())
        self.forward = recorded

    def count(self, token_ids: Tensor, positions: Tensor, attention: StepAttention) -> Tensor:
        self.passes += 1
        return self._pass(token_ids, positions, attention)


class _Counted:
    def __init__(self, recorded: Recorded, model: Model) -> None:
        self.config, self.logits, self.parameters = model.config, model.logits, model.parameters
        self.forward = recorded.count


def make(config: ModelConfig, dtype: str, product: MakeProduct = PlainProduct) -> Model:
    elementwise = CpuElementwise(load_library())
    return build(config, RandomTensors(0, dtype=DTYPES[dtype], device=CPU, product=product, elementwise=elementwise))


def paged(model: Model, dtype: str, formats: KVFormats | None = None) -> PagedModel:
    backend = CpuBackend(KernelPath(load_library(), heads=model.config.heads))
    return PagedModel(model, backend, blocks=200, block_tokens=16, dtype=DTYPES[dtype], formats=formats)


def prompts() -> list[Tensor]:
    draw = torch.Generator().manual_seed(2)
    return [torch.randint(0, TINY.vocab_size, (length,), generator=draw) for length in (40, 33, 25, 60)]


def require_equal(model: Model, dtype: str = "fp32", formats: KVFormats | None = None) -> None:
    """All logits, bit for bit, of prompts and of many steps with fewer and fewer rows; most are from recordings."""
    recorded = Recorded(model)
    want = paged(model, dtype, formats).run(prompts(), [20, 1])
    got = paged(recorded, dtype, formats).run(prompts(), [20, 1])

    assert all(map(torch.equal, got, want))
    assert recorded.passes == 1 + 4, "the prompts' step, and a recording for each number of rows"


@pytest.mark.parametrize("config", [LLAMA, GEMMA], ids=["llama", "gemma 3"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
def test_a_pass_from_a_recording_gives_what_the_model_gives(config: ModelConfig, dtype: str) -> None:
    require_equal(make(config, dtype), dtype)


@pytest.mark.parametrize(("keys", "values"), [("int8", "int8"), ("int8", "int4"), ("int4", "int4"), ("fp8", "fp8")])
def test_recordings_hold_for_quantised_caches(keys: str, values: str) -> None:
    require_equal(make(LLAMA, "fp32"), "fp32", KVFormats.of("fp32", keys, values))


@pytest.mark.skipif(InstructionSet.AVX512_BF16 not in SETS, reason="no products of bfloat16 on this CPU")
@pytest.mark.parametrize("kind", ["plain", "oneDNN's", "panels", "int8"])
def test_recordings_hold_for_each_kind_of_product(kind: str) -> None:
    library = load_library()
    kinds: dict[str, MakeProduct] = {
        "plain": PlainProduct,
        "oneDNN's": PackedProduct,
        "panels": lambda weight: PanelProduct.whole(library, weight),
        "int8": lambda weight: PanelProduct.int8(library, weight),
    }
    require_equal(make(LLAMA, "bf16", kinds[kind]), "bf16")


def test_a_pass_over_another_cache_is_recorded_anew() -> None:
    model = make(LLAMA, "fp32")
    recorded = Recorded(model)
    want = paged(model, "fp32").run(prompts()[:1], [1])
    first, second = paged(recorded, "fp32").run(prompts()[:1], [1]), paged(recorded, "fp32").run(prompts()[:1], [1])

    assert recorded.passes == 2
    assert torch.equal(first[0], want[0])
    assert torch.equal(second[0], want[0])


def test_steps_of_many_tokens_are_not_recorded() -> None:
    recorded = Recorded(make(LLAMA, "fp32"))
    steps = paged(recorded, "fp32")
    rows = {row: torch.tensor([row]) for row in range(MOST_TOKENS + 1)}
    for _ in range(3):
        steps.step(rows)

    assert recorded.passes == 3


def test_rows_that_torch_attends_for_are_not_recorded() -> None:
    recorded = Recorded(make(LLAMA, "fp32"))
    got = PagedModel(recorded, CpuBackend(), blocks=50).run(prompts()[:1], [1])

    assert recorded.passes == len(got[0])


def test_a_pass_that_asks_for_numbers_is_never_recorded() -> None:
    """Its second pass could go another way than the first."""
    model = make(LLAMA, "fp32")
    plain = model.forward

    def asks(token_ids: Tensor, positions: Tensor, attention: StepAttention) -> Tensor:
        hidden = plain(token_ids, positions, attention)
        return hidden if hidden.sum().item() > 1e9 else 2 * hidden

    model.forward = asks  # type: ignore[method-assign]
    recorded = Recorded(model)
    want = paged(model, "fp32").run(prompts()[:1], [1])
    got = paged(recorded, "fp32").run(prompts()[:1], [1])

    assert torch.equal(got[0], want[0])
    assert recorded.passes == 1 + len(got[0]), "the first one was tried"
    assert load_library().recorder is None


def test_passes_of_fewer_tokens_take_no_memory_of_their_own() -> None:
    buffers = Buffers(8)
    two = buffers.take(0, (2, 3), torch.float32, tokens=2)
    others = [buffers.take(0, (tokens, 3), torch.float32, tokens=tokens) for tokens in (1, 8, 5)]

    assert {each.data_ptr() for each in (two, *others)} == {two.data_ptr()}
    assert [tuple(each.shape) for each in others] == [(1, 3), (8, 3), (5, 3)]


def test_a_step_that_has_been_made_is_freed_at_once() -> None:
    """Collections are for between the steps: what waits for one keeps its tables and queries until then."""
    steps = paged(make(LLAMA, "fp32"), "fp32")
    planned: list[weakref.ref[object]] = []
    plan = steps.backend.plan

    def watched(batch: AttentionBatch, cache: KVCache) -> CpuStep:
        step = plan(batch, cache)
        assert isinstance(step, CpuStep)
        assert step.replayed is not None
        planned.extend(map(weakref.ref, step.replayed))
        return step

    steps.backend.plan = watched  # type: ignore[method-assign]
    gc.disable()
    try:
        steps.step({0: torch.tensor([1])})
        assert [each() for each in planned] == [None, None]
    finally:
        gc.enable()
