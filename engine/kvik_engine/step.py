"""All that scheduler and runner share: what a step does and what came of it.

A StepPlan never needs a token that the host has not seen: a row's input is host token ids, or the row's own last
sample, which is on the device. So step N + 1 can be planned before step N is settled.

Order inside a step: rows end, rows start, rows split, chosen tokens, new blocks and table changes, forks, swap-outs,
block copies, swap-ins, forward, sampling. So a block may be swapped out and get new content in the same step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple, NewType, Protocol

from kvik_engine.params import SamplingParams

BlockId = NewType("BlockId", int)
"""Index of a block in the pool. Block 0 is the scratch block of padded rows and is never handed out."""
HostSlot = NewType("HostSlot", int)
"""Index of a slot of the host pool (swap space), 0 <= slot < slots; it holds the content of one block."""
Row = NewType("Row", int)
"""A branch's stable place in the runner, 0 <= row < max_requests, kept from RowStart to row end."""


class GroupKind(StrEnum):
    """How the layers of a KV group see the past, and what they keep of it."""

    FULL = "full"
    """Keys and values of all tokens."""
    WINDOW = "window"
    """Keys and values of the last `KVGroup.window` tokens, a query's own included: blocks behind are given back."""
    LATENT = "latent"
    """All of it, through one vector a token from which the keys and values of all heads are made."""


@dataclass(frozen=True, slots=True)
class KVGroup:
    """Layers that share one block table per branch.

    `block_bytes` is what one block takes on the device over all its layers (keys, values and scales). It is the same in
    all groups of a model, so a group with fewer layers than another has room in its blocks that is not used.
    A table keeps its length when blocks behind the window are given back: their entries become block 0 in the tables of
    later RowStarts and RowForks and stay stale in the runner's, which never reads them.
    """

    kind: GroupKind
    layers: tuple[int, ...]
    block_tokens: int
    block_bytes: int
    window: int | None = None
    """Tokens; set for GroupKind.WINDOW alone."""

    def __post_init__(self) -> None:
        if (self.kind is GroupKind.WINDOW) != (self.window is not None):
            raise ValueError(f"a {self.kind} group with window {self.window}")
        if self.window is not None and self.window < 1:
            raise ValueError(f"a window of {self.window} tokens")


@dataclass(frozen=True, slots=True)
class RowStart:
    """A branch takes a row, at its first step or when it comes back from preemption.

    `tokens` are all tokens known to the host (prompt, then outputs); `blocks` is one block table per KV group and
    holds what the branch already owns: prefix hits, then perhaps a block that a BlockCopy of this step fills.
    `choice` feeds the noise, so it survives preemption.
    """

    row: Row
    tokens: Sequence[int]
    prompt_length: int
    choice: int
    params: SamplingParams
    blocks: tuple[tuple[BlockId, ...], ...]


@dataclass(frozen=True, slots=True)
class RowFork:
    """`row` becomes a copy of `source` (tokens and tables), with its own choice; it samples from the source's logits.

    Stated in the same step whose work lists `row` in `sampled_rows` of the source's work. `blocks` is the whole table,
    with what the source gets in this step; a later first writer copies a shared, partly filled block (TableChange).

    Among `StepPlan.splits` it is a copy of what the source was before the step, and both may have work of their own.
    """

    row: Row
    source: Row
    choice: int
    blocks: tuple[tuple[BlockId, ...], ...]


@dataclass(frozen=True, slots=True)
class ChosenToken:
    """The token at `position` of a row is `token`, whatever the row or the one it was split from sampled there."""

    row: Row
    position: int
    token: int


@dataclass(frozen=True, slots=True)
class BlockCopy:
    """Copy one whole block, all layers, before the forward of this step (copy-on-write, hits within a block)."""

    source: BlockId
    target: BlockId


@dataclass(frozen=True, slots=True)
class SwapOut:
    """Copy one whole block, all layers, to the host, before anything of this step writes to the device."""

    block: BlockId
    slot: HostSlot


@dataclass(frozen=True, slots=True)
class SwapIn:
    """Copy one whole block back from the host, before the forward of this step."""

    slot: HostSlot
    block: BlockId


@dataclass(frozen=True, slots=True)
class TableChange:
    """Entry `index` of a row's table of group `group` becomes `block`: the row's own copy of a shared block.

    Always stated beside the BlockCopy that fills `block`; in force before the forward of this step.
    """

    row: Row
    group: int
    index: int
    block: BlockId


class RowWork(NamedTuple):
    """Tokens [start, start + length) of a row are computed in this step.

    `from_last_sample` is true when the single input token is the row's last sample, which the host may not have seen;
    otherwise the ids are among the tokens that the row started with, or chosen for it (ChosenToken).
    `new_blocks` are appended to the row's tables before the forward: one tuple per group, or none where nothing is new.
    `sampled_rows` sample from the logits of the last token: empty while a prompt is partly computed, the row itself
    when it is complete, and its fresh forks too.
    The output position of a sample is start + length - prompt_length.
    """

    row: Row
    start: int
    length: int
    from_last_sample: bool
    new_blocks: tuple[tuple[BlockId, ...], ...]
    sampled_rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class StepPlan:
    """One step. `ended` rows are free before `started` ones are taken, so a row can change hands within a step."""

    step: int
    work: tuple[RowWork, ...]
    ended: tuple[Row, ...] = ()
    started: tuple[RowStart, ...] = ()
    splits: tuple[RowFork, ...] = ()
    chosen: tuple[ChosenToken, ...] = ()
    forks: tuple[RowFork, ...] = ()
    copies: tuple[BlockCopy, ...] = ()
    changes: tuple[TableChange, ...] = ()
    swap_outs: tuple[SwapOut, ...] = ()
    swap_ins: tuple[SwapIn, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens computed in this step."""
        return sum(w.length for w in self.work)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """A token and the logarithm of its probability before temperature, penalties and filters."""

    token: int
    logprob: float


class Sample(NamedTuple):
    """One sampled token. `top` are the most likely tokens, best first, when the request asked for logprobs.

    `error` is set instead of a useful token when this row alone failed (non-finite logits, say): the row's request
    ends with an internal error and its neighbours go on.
    """

    row: Row
    token: int
    logprob: float | None = None
    top: tuple[TokenLogprob, ...] = ()
    error: str | None = None


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step sampled, in the order of the plan's sampled rows, and how long the forward took."""

    step: int
    samples: tuple[Sample, ...]
    seconds: float


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """What the core must know of the loaded model to size the cache, admit requests and describe itself."""

    vocab_size: int
    context_length: int
    parameters: int
    dtype: str
    quantization: str
    """How the weights of linear layers are kept: none (as `dtype`) or int8."""
    kv_key_dtype: str
    """How cached keys are kept: `dtype`, or what they are quantised to."""
    kv_value_dtype: str
    device: str
    attention: str
    """Name of the attention backend."""
    groups: tuple[KVGroup, ...]
    device_bytes_total: int
    """Memory of the device, or the cgroup's limit on a CPU."""
    device_bytes_used: int
    """Measured after loading and a profiling step, without any KV cache."""
    host_bytes_total: int | None = None
    """Memory of the host (its cgroup's limit) beside an accelerator's; None on a CPU, whose own it is."""
    host_bytes_used: int | None = None
    startup_seconds: dict[str, float] = field(default_factory=dict)
    """Seconds by phase: weights_loaded, compiled (not on a CPU), warm. The core adds what warm takes after the load."""


@dataclass(frozen=True, slots=True)
class HostSpace:
    """The host pool (swap space) as allocated. Slot `n` is `memory[n * block_bytes:][:block_bytes]`."""

    bytes: int
    copy_bytes_per_second: float
    """Measured in whole blocks, one way."""
    memory: memoryview


class Runner(Protocol):
    """Executes plans in order. `launch` may return before the step ran; `collect` gives results first in, first out."""

    @property
    def facts(self) -> ModelFacts: ...

    def allocate(self, blocks: int) -> int:
        """Allocate the pool: `blocks` usable ones and the scratch block. Return the bytes taken."""
        ...

    def launch(self, plan: StepPlan) -> None: ...

    def collect(self) -> StepResult: ...


class SwapSpace(Protocol):
    """A runner that carries out swap-outs and swap-ins."""

    def allocate_host(self, slots: int) -> HostSpace:
        """Allocate the host pool of so many blocks, after `allocate`; StartError when the host cannot give it."""
        ...
