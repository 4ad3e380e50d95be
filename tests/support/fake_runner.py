"""A pseudo-model with real block bookkeeping: wrong tables, copies, forks or reuse give wrong tokens or fail at once.

The "KV" of a token is a number made of the token, its position and the KV before it, kept per KV group in the block
that the group's table names. The next token is a hash of all KV read through the row's tables (of a window group, only
what is within the window), so it depends on every visible token and on nothing else: not on batching, chunk size,
preemption, prefix hits or overlap. `solo_output` computes the same from the tokens alone. Freed blocks are poisoned by
the harness; reading poison fails.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kvik_engine.params import SamplingParams
from kvik_engine.step import (
    BlockId,
    ChosenToken,
    GroupKind,
    HostSlot,
    HostSpace,
    KVGroup,
    ModelFacts,
    Row,
    RowFork,
    RowStart,
    RowWork,
    Sample,
    StepPlan,
    StepResult,
    TokenLogprob,
)

VOCAB = 64
END_TOKEN = 0
POISON = -1
_MASK = (1 << 61) - 1
_NUMBER_BYTES = 8


class FakeRunnerError(AssertionError):
    """The plan asked for something that a real runner could not do right."""


def kv_of(before: int, token: int, position: int) -> int:
    """The KV of one token, given that of the token before it."""
    return (before * 6364136223846793005 + token * 1442695040888963407 + position + 1) & _MASK


Windows = tuple[int | None, ...]
"""Per KV group, how many tokens a query sees, itself among them; None: all."""
FULL: Windows = (None,)


def token_from(visible: Sequence[Sequence[int]], params: SamplingParams, choice: int, position: int) -> int:
    """The sample after the KV that each group sees, for output number `position`.

    Noise depends on seed, choice and position only.
    """
    noise = () if params.greedy else (params.seed, choice, position)
    token = hash((tuple(tuple(group) for group in visible), noise)) % VOCAB
    if position < params.min_tokens:
        while token in params.stop_token_ids:
            token = (token + 1) % VOCAB
    return token


def likely_from(visible: Sequence[Sequence[int]], position: int) -> list[float]:
    """For each token of the vocabulary its log-probability after the KV that each group sees, whatever the output
    position. They need not add up."""
    past = hash(tuple(tuple(group) for group in visible))
    return [-8.0 * (hash((past, token)) % (1 << 40) + 1) / (1 << 40) for token in range(VOCAB)]


def likely_after(tokens: Sequence[int], windows: Windows = FULL) -> list[float]:
    """The same from the tokens alone."""
    kv: list[int] = []
    for position, token in enumerate(tokens):
        kv.append(kv_of(kv[-1] if kv else 0, token, position))
    return likely_from([kv if window is None else kv[-window:] for window in windows], len(tokens))


Likely = Callable[[Sequence[Sequence[int]], int], list[float]]
"""What a model thinks of each token: `likely_from`, or a stand-in with its arguments."""
Answer = Callable[[Sequence[Sequence[int]], SamplingParams, int, int], int]
"""What a model samples: `token_from`, or a stand-in with its arguments."""


def tokens_in(kv: Sequence[int]) -> list[int]:
    """The tokens that made this KV, from the first one on: what a model could tell of it."""
    tokens: list[int] = []
    for position, value in enumerate(kv):
        before = kv[position - 1] if position else 0
        tokens.append(next(token for token in range(VOCAB) if kv_of(before, token, position) == value))
    return tokens


def solo_output(
    prompt: Sequence[int], params: SamplingParams, choice: int = 0, *, windows: Windows = FULL
) -> list[int]:
    """All output tokens of one choice, stop token included, from an undisturbed run."""
    visible: list[int] = []
    for position, token in enumerate(prompt):
        visible.append(kv_of(visible[-1] if visible else 0, token, position))
    output: list[int] = []
    while len(output) < params.max_tokens:
        seen = [visible if window is None else visible[-window:] for window in windows]
        token = token_from(seen, params, choice, len(output))
        output.append(token)
        if token in params.stop_token_ids:
            break
        visible.append(kv_of(visible[-1], token, len(visible)))
    return output


@dataclass
class _RowState:
    tokens: list[int]
    host_tokens: int
    prompt_length: int
    choice: int
    params: SamplingParams
    tables: list[list[BlockId]]
    computed: int = 0


class FakeRunner:
    """Implements step.Runner. A step runs as late as it may, when it is collected: whoever frees or changes a block
    that a planned step still needs is found out.
    """

    def __init__(
        self,
        *,
        block_tokens: int = 4,
        block_bytes: int = 64,
        context_length: int = 4096,
        rows: int = 1024,
        seconds: float = 0.001,
        device_bytes_total: int = 1 << 30,
        windows: Windows = FULL,
        answer: Answer = token_from,
        likely: Likely = likely_from,
        zeroed: bool = False,
    ) -> None:
        """`zeroed`: blocks may be read before they are written, as a warm-up does."""
        self.windows = windows
        self._answer = answer
        self._likely = likely
        self._unwritten = 0 if zeroed else POISON
        self.block_tokens = block_tokens
        self.block_bytes = block_bytes
        self.context_length = context_length
        self.max_rows = rows
        self.seconds = seconds
        self.device_bytes_total = device_bytes_total
        self.plans: list[StepPlan] = []
        self.fail_rows: set[Row] = set()
        self.blocks: list[list[int]] = []
        self.slots: list[memoryview] = []
        """As 64-bit numbers."""
        self._rows: dict[Row, _RowState] = {}
        self._launched: deque[StepPlan] = deque()

    @property
    def facts(self) -> ModelFacts:
        return ModelFacts(
            vocab_size=VOCAB,
            context_length=self.context_length,
            parameters=1,
            dtype="fp32",
            quantization="none",
            kv_key_dtype="fp32",
            kv_value_dtype="fp32",
            device="fake",
            attention="fake",
            groups=tuple(
                KVGroup(
                    GroupKind.FULL if window is None else GroupKind.WINDOW,
                    (layer,),
                    self.block_tokens,
                    self.block_bytes,
                    window,
                )
                for layer, window in enumerate(self.windows)
            ),
            device_bytes_total=self.device_bytes_total,
            device_bytes_used=0,
            startup_seconds={"weights_loaded": 0.0},
        )

    def allocate(self, blocks: int) -> int:
        self.blocks = [[self._unwritten] * self.block_tokens for _ in range(blocks + 1)]
        return len(self.blocks) * self.block_bytes

    def allocate_host(self, slots: int) -> HostSpace:
        memory = memoryview(bytearray(slots * self.block_bytes))
        size, content = self.block_bytes, self.block_tokens * _NUMBER_BYTES
        self._expect(content <= size, "a block's bytes do not hold a number for each token")
        self.slots = [memory[slot * size :][:content].cast("q") for slot in range(slots)]
        self.poison_slots(range(slots))
        return HostSpace(bytes=len(memory), copy_bytes_per_second=1e6, memory=memory)

    def poison_slots(self, slots: Iterable[HostSlot]) -> None:
        """As poison, for the swap space."""
        for slot in slots:
            self._fill_slot(slot, [POISON] * self.block_tokens)

    def poison(self, blocks: Iterable[BlockId]) -> None:
        """Whoever still reads these blocks fails."""
        for block in blocks:
            self.blocks[block] = [POISON] * self.block_tokens

    def launch(self, plan: StepPlan) -> None:
        self.plans.append(plan)
        self._launched.append(plan)

    def collect(self) -> StepResult:
        plan = self._launched.popleft()
        for row in plan.ended:
            self._expect(row in self._rows, f"row {row} ended twice")
            del self._rows[row]
        for start in plan.started:
            self._start(start)
        for split in plan.splits:
            self._fork(split)
        for chosen in plan.chosen:
            self._choose(chosen)
        for work in plan.work:
            for table, new in zip(self._row(work.row).tables, work.new_blocks, strict=bool(work.new_blocks)):
                table.extend(new)
        for change in plan.changes:
            self._row(change.row).tables[change.group][change.index] = change.block
        for fork in plan.forks:
            self._fork(fork)
        self._move_blocks(plan)
        worked = [work.row for work in plan.work]
        self._expect(len(worked) == len(set(worked)), "a row has two works in one step")
        samples = [sample for work in plan.work for sample in self._run(work)]
        return StepResult(plan.step, tuple(samples), self.seconds)

    def _move_blocks(self, plan: StepPlan) -> None:
        for out in plan.swap_outs:
            self._fill_slot(out.slot, self._content(self.blocks[out.block], f"block {out.block}"))
        for copy in plan.copies:
            self.blocks[copy.target] = list(self.blocks[copy.source])
        for back in plan.swap_ins:
            self._expect(back.block != 0, "block 0 is scratch")
            self.blocks[back.block] = self._content(self.slots[back.slot], f"slot {back.slot}")

    def _fill_slot(self, slot: HostSlot, values: Sequence[int]) -> None:
        for place, value in enumerate(values):
            self.slots[slot][place] = value

    def _content(self, values: Sequence[int], where: str) -> list[int]:
        self._expect(values[0] != POISON, f"{where} is copied, but was freed or never written")
        return list(values)

    def _start(self, start: RowStart) -> None:
        self._expect(start.row not in self._rows, f"row {start.row} is in use")
        self._expect(0 <= start.row < self.max_rows, f"row {start.row} does not exist")
        tokens = list(start.tokens)
        self._rows[start.row] = _RowState(
            tokens, len(tokens), start.prompt_length, start.choice, start.params, [list(t) for t in start.blocks]
        )

    def _fork(self, fork: RowFork) -> None:
        self._expect(fork.row not in self._rows, f"row {fork.row} is in use")
        source = self._row(fork.source)
        for mine, its in zip(fork.blocks, source.tables, strict=True):
            self._expect(len(mine) == len(its), "a fork's table is as long as its source's")
            self._expect(all(a in (0, b) for a, b in zip(mine, its, strict=True)), "a fork has its source's table")
        self._rows[fork.row] = _RowState(
            list(source.tokens),
            source.host_tokens,
            source.prompt_length,
            fork.choice,
            source.params,
            [list(table) for table in fork.blocks],
            source.computed,
        )

    def _choose(self, chosen: ChosenToken) -> None:
        state = self._row(chosen.row)
        self._expect(len(state.tokens) == chosen.position + 1, "the chosen token is not the row's last one")
        state.tokens[chosen.position] = chosen.token
        state.host_tokens = chosen.position + 1

    def _run(self, work: RowWork) -> list[Sample]:
        state = self._row(work.row)
        end = work.start + work.length
        self._expect(work.length > 0, "work without tokens")
        if work.from_last_sample:
            self._expect(work.length == 1 and work.start == len(state.tokens) - 1, "not the row's last sample")
            self._expect(work.start >= state.host_tokens, "the host gave this token")
        else:
            self._expect(end <= state.host_tokens, "the host did not give this token")
        blocks = -(-end // self.block_tokens)
        self._expect(all(len(table) == blocks for table in state.tables), "the table does not fit the tokens")
        groups = range(len(self.windows))
        state.computed = work.start
        for group in groups:
            self._blank(state, group, work.start)
        for position in range(work.start, end):
            for group in groups:
                before = self._read(state, group, position - 1) if position else 0
                self._write(work.row, state, group, position, kv_of(before, state.tokens[position], position))
        state.computed = end
        visible = [self._visible(state, group, end) for group in groups] if work.sampled_rows else []
        return [self._sample(row, visible, end) for row in work.sampled_rows]

    def _blank(self, state: _RowState, group: int, start: int) -> None:
        """What lies in the row's blocks from `start` on is of other texts: left by the one before, copied with a part
        of a block, or brought back with it. Nobody may read it, nor whatever another row means to have there.
        """
        for index in range(start // self.block_tokens, len(state.tables[group])):
            block, first = state.tables[group][index], index * self.block_tokens
            for offset in range(max(0, start - first), self.block_tokens):
                self.blocks[block][offset] = self._unwritten

    def _visible(self, state: _RowState, group: int, end: int) -> list[int]:
        window = self.windows[group]
        first = 0 if window is None else max(0, end - window)
        return [self._read(state, group, position) for position in range(first, end)]

    def _sample(self, row: Row, visible: list[list[int]], end: int) -> Sample:
        state = self._row(row)
        self._expect(len(state.tokens) == end, "a sample is not appended behind the row's tokens")
        if row in self.fail_rows:
            state.tokens.append(END_TOKEN)
            return Sample(row, END_TOKEN, error="non-finite logits")
        token = self._answer(visible, state.params, state.choice, end - state.prompt_length)
        state.tokens.append(token)
        if state.params.beam is not None:
            likely = self._likely(visible, end - state.prompt_length)
            best = sorted(range(VOCAB), key=lambda one: -likely[one])[: state.params.listed]
            return Sample(row, token, likely[token], tuple(TokenLogprob(one, likely[one]) for one in best))
        if state.params.logprobs is None:
            return Sample(row, token)
        return Sample(row, token, -1.0, tuple(TokenLogprob(t, -1.0) for t in range(state.params.logprobs)))

    def _read(self, state: _RowState, group: int, position: int) -> int:
        value = self.blocks[state.tables[group][position // self.block_tokens]][position % self.block_tokens]
        self._expect(value != POISON, f"position {position} is read from a block that was freed or never written")
        return value

    def _write(self, row: Row, state: _RowState, group: int, position: int, value: int) -> None:
        index, offset = divmod(position, self.block_tokens)
        block = state.tables[group][index]
        self._expect(block != 0, "block 0 is scratch")
        window = self.windows[group]
        if self.blocks[block][offset] not in (POISON, value):
            for other, its in self._rows.items():
                if window is not None and position < its.computed - window:
                    continue  # behind its window the table is stale
                table = its.tables[group]
                shared = other != row and index < len(table) and table[index] == block
                behind = (
                    shared and len(its.tokens) > position and its.tokens[: position + 1] != state.tokens[: position + 1]
                )
                self._expect(not behind, f"row {row} overwrites what row {other} reads")
        self.blocks[block][offset] = value

    def _row(self, row: Row) -> _RowState:
        self._expect(row in self._rows, f"row {row} was never started")
        return self._rows[row]

    @staticmethod
    def _expect(condition: bool, message: str) -> None:
        if not condition:
            raise FakeRunnerError(message)
