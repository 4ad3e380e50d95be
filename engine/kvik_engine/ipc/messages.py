"""Everything on the wire between an API process and the core: msgpack structs, never pickle.

API -> core: Submit, Abort. Core -> API: Hello once, then one Frame a step (unsent frames are merged).
Times are CLOCK_MONOTONIC seconds, which both processes share.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from kvik_engine.params import SamplingParams


class FinishReason(StrEnum):
    """Why a choice ended. ABORTED and ERROR never reach a client as finish_reason."""

    STOP = "stop"
    LENGTH = "length"
    ABORTED = "aborted"
    ERROR = "error"


class Submit(msgspec.Struct, frozen=True, tag="submit"):
    """A request. `request_id` is unique within `api_id` and never a client's own id (vllm #10583)."""

    api_id: int
    request_id: int
    prompt: list[int]
    params: SamplingParams
    slo_class: int
    """0 interactive, 1 balanced, 2 batch: lower is scheduled first."""
    priority: int
    """-100 to 100, lower is scheduled first within a class."""
    salt: bytes
    """Root of the prefix cache: requests of different salts never share blocks."""
    arrival: float
    tenant: str = ""
    """Whose request it is, by the API key; empty without keys. Tenants of a class are served alike."""


class Abort(msgspec.Struct, frozen=True, tag="abort"):
    """The client left or a stop string was found.

    `choice` None ends the whole request. `accepted_tokens` is how many output tokens of the choice count (those before
    a stop string); None when the client left.
    """

    api_id: int
    request_id: int
    choice: int | None = None
    accepted_tokens: int | None = None


ToCore = Submit | Abort


class TopLogprob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    token: int
    logprob: float


class OutputToken(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One generated token; `logprob` and `top` only when the request asked for them."""

    token: int
    logprob: float | None = None
    top: list[TopLogprob] = []


class Output(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """News of one choice. A stop token that ended the choice is not among `tokens` but is counted in usage by
    `stop_tokens` (1 when a stop token ended it)."""

    request_id: int
    choice: int
    tokens: list[OutputToken]
    finish: FinishReason | None = None
    stop_tokens: int = 0
    stop_logprob: float | None = None
    """Of that stop token, when the request asked for logprobs."""
    cached_tokens: int = 0
    """Prompt tokens that came from the prefix cache at first admission."""
    error: str | None = None


class Refusal(msgspec.Struct, frozen=True):
    """A request that was not taken into the queue. `code`: queue_full, too_late, too_long, duplicate or invalid."""

    request_id: int
    code: str
    message: str
    retry_after: float | None = None


class CoreStats(msgspec.Struct, frozen=True):
    """Counters and gauges at the end of a step; the API process renders /load and /metrics from the last ones."""

    step: int
    kv_blocks_total: int
    kv_blocks_owned: int
    kv_blocks_cached: int
    kv_tokens: int
    """Token slots of owned blocks that hold KV, over all KV groups: fill = kv_tokens / (owned * block_tokens)."""
    running: int
    waiting: int
    waiting_prompt_tokens: int
    refused_total: int
    preemptions_recompute_total: int
    preemptions_swap_total: int
    swap_blocks_total: int
    """Slots of the host pool; 0 without swap space."""
    swap_blocks_owned: int
    swap_blocks_cached: int
    swapped_out_blocks_total: int
    swapped_in_blocks_total: int
    disk_cache_blocks: int
    """Blocks on disk; this and the following are 0 without a disk cache."""
    disk_cache_written_total: int
    disk_cache_read_total: int
    disk_cache_failed_writes_total: int
    disk_cache_failed_reads_total: int
    prefix_query_tokens_total: int
    prefix_hit_tokens_total: int
    prompt_tokens_total: int
    generation_tokens_total: int
    prefill_tokens_per_second: float | None
    """Smoothed over steps with prefill work; None before the first."""
    step_seconds_total: float


class ModelInfo(msgspec.Struct, frozen=True):
    """What the core tells of itself in Hello, and /info shows."""

    vocab_size: int
    max_tokens: int
    """Served context: the model's, lowered to what the pool holds or the user's limit."""
    context_length: int
    parameters: int
    dtype: str
    quantization: str
    kv_key_dtype: str
    kv_value_dtype: str
    device: str
    attention: str
    block_tokens: int
    blocks_total: int
    bytes_per_token: int
    kv_cache_bytes: int
    """All that was allocated for the pool, scratch block included."""
    startup_seconds: dict[str, float]
    """By phase: see ModelFacts."""
    warm_at: float
    """Unix time when this core had warmed up."""


class Hello(msgspec.Struct, frozen=True, tag="hello"):
    """First message of a core to an API process: it is warm and takes requests."""

    model: ModelInfo
    stats: CoreStats


class Frame(msgspec.Struct, frozen=True, tag="frame"):
    """What happened in a step. `queued` are requests taken into the queue (their HTTP headers may go out now)."""

    queued: list[int]
    refused: list[Refusal]
    outputs: list[Output]
    stats: CoreStats


ToApi = Hello | Frame

MAX_MESSAGE_BYTES = 64 << 20
"""A length prefix (4 bytes, little endian) above this ends the connection."""
