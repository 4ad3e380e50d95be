"""A seeded random model of the demo's shape through the engine's runner: the Triton kernels against torch.

Prompts start one step after the other and in chunks, so that steps mix prefill, chunks after a prefix and decode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from kvik_engine.attention.backend import AttentionBackend
from kvik_engine.attention.reference import ReferenceBackend
from kvik_engine.attention.triton_backend import TritonBackend
from kvik_engine.layers.elementwise import BY_TORCH, Elementwise, TritonElementwise
from kvik_engine.models.config import ModelConfig
from kvik_engine.models.random_weights import RandomTensors
from kvik_engine.params import SamplingParams
from kvik_engine.runner.load import make_runner
from kvik_engine.runner.runner import RunnerLimits
from kvik_engine.step import BlockId, Row, RowStart, RowWork, StepPlan

SEED = 3
PROMPT_LENGTHS = (7, 40, 150)
CHUNK = 64
OUTPUTS = 16
BLOCK_TOKENS = 16
MIN_MARGIN = 1e-3
"""Where the two best tokens are closer than this, equal tokens would be luck; the seed is chosen so that none are."""


@dataclass(frozen=True, slots=True)
class Choice:
    """One greedy step of one row, as the runner reports it."""

    token: int
    logprob: float
    margin: float
    """Log-probability of the best token above the second."""


def compare_backends(device: str, *, layers: int) -> dict[str, Any]:
    """Greedy tokens in float32 by the Triton kernels and by the reference.

    Raises AssertionError where they differ.
    """
    config = demo_shape(layers)
    want = greedy(config, ReferenceBackend(), BY_TORCH, device)
    got = greedy(config, TritonBackend(fp8=False), TritonElementwise(), device)
    margin = min(choice.margin for row in want for choice in row)
    assert margin >= MIN_MARGIN, f"the two best tokens are {margin} apart somewhere: choose another seed"
    for row, (got_row, want_row) in enumerate(zip(got, want, strict=True)):
        got_tokens, want_tokens = [c.token for c in got_row], [c.token for c in want_row]
        assert got_tokens == want_tokens, f"prompt {row}: tokens {got_tokens}, reference {want_tokens}"
    pairs = zip((c for row in got for c in row), (c for row in want for c in row), strict=True)
    difference = max(abs(one.logprob - other.logprob) for one, other in pairs)
    assert difference <= 5e-4, f"log-probabilities differ by {difference}"
    return {
        "layers": layers,
        "tokens": len(want) * OUTPUTS,
        "smallest_margin": round(margin, 4),
        "largest_difference": difference,
    }


def demo_shape(layers: int) -> ModelConfig:
    """SmolLM2-135M with `layers` layers."""
    return ModelConfig(
        architecture="LlamaForCausalLM",
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        layers=layers,
        heads=9,
        kv_heads=3,
        head_dim=64,
        context_length=8192,
        norm_eps=1e-5,
        rope_theta=100000.0,
        tie_embeddings=True,
    )


def greedy(config: ModelConfig, backend: AttentionBackend, elementwise: Elementwise, device: str) -> list[list[Choice]]:
    """OUTPUTS greedy tokens for each prompt, all in one batch."""
    tensors = RandomTensors(SEED, dtype=torch.float32, device=torch.device(device), elementwise=elementwise)
    blocks_a_row = -(-(max(PROMPT_LENGTHS) + OUTPUTS) // BLOCK_TOKENS)
    runner = make_runner(
        config,
        tensors,
        dtype="fp32",
        backend=backend,
        limits=RunnerLimits(
            max_requests=len(PROMPT_LENGTHS), max_tokens=blocks_a_row * BLOCK_TOKENS, block_tokens=BLOCK_TOKENS
        ),
        max_batch_tokens=CHUNK,
        progress=lambda _: None,
    )
    runner.allocate(len(PROMPT_LENGTHS) * blocks_a_row)
    choices: list[list[Choice]] = [[] for _ in PROMPT_LENGTHS]
    for plan in plans(prompts(config.vocab_size), blocks_a_row):
        runner.launch(plan)
        for sample in runner.collect().samples:
            assert sample.error is None, sample.error
            assert sample.logprob is not None
            best, second = sample.top[:2]
            choices[sample.row].append(Choice(sample.token, sample.logprob, best.logprob - second.logprob))
    return choices


def prompts(vocab_size: int) -> list[list[int]]:
    """Random token ids of PROMPT_LENGTHS."""
    generator = torch.Generator().manual_seed(SEED)
    return [torch.randint(vocab_size, (length,), generator=generator).tolist() for length in PROMPT_LENGTHS]


def plans(prompts: Sequence[Sequence[int]], blocks_a_row: int) -> Iterator[StepPlan]:
    """Row r starts at step r with all its blocks, computes its prompt in chunks, then one token a step."""
    computed = [0] * len(prompts)
    ends = [len(prompt) + OUTPUTS - 1 for prompt in prompts]
    step = 0
    while any(done < end for done, end in zip(computed, ends, strict=True)):
        work = []
        for row, prompt in enumerate(prompts[: step + 1]):
            if computed[row] == ends[row]:
                continue
            length = min(CHUNK, max(1, len(prompt) - computed[row]))
            work.append(row_work(Row(row), computed[row], length, len(prompt)))
            computed[row] += length
        started = (row_start(step, prompts[step], blocks_a_row),) if step < len(prompts) else ()
        yield StepPlan(step=step, work=tuple(work), started=started)
        step += 1


def row_start(row: int, prompt: Sequence[int], blocks_a_row: int) -> RowStart:
    first = 1 + row * blocks_a_row
    return RowStart(
        row=Row(row),
        tokens=prompt,
        prompt_length=len(prompt),
        choice=0,
        params=SamplingParams(max_tokens=OUTPUTS, seed=0, temperature=0.0, logprobs=2),
        blocks=(tuple(BlockId(block) for block in range(first, first + blocks_a_row)),),
    )


def row_work(row: Row, start: int, length: int, prompt_length: int) -> RowWork:
    return RowWork(
        row=row,
        start=start,
        length=length,
        from_last_sample=start >= prompt_length,
        new_blocks=(),
        sampled_rows=(row,) if start + length >= prompt_length else (),
    )
