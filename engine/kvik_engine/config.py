"""The engine's configuration: one frozen tree, checked once by `kvik serve`, passed down to every process.

Standard library only: `launch` reads it too.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, dataclass, fields
from pathlib import Path
from typing import Any

SLO_CLASSES = ("interactive", "balanced", "batch")
"""By the number that scheduling uses: lower is served first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Settings of one engine. Sizes are bytes, times seconds, fractions 0-1. What the class decides has no default."""

    source: str
    """As the user gave it: demo, a directory, a .gguf file or hf://ORG/NAME@REV."""
    model_path: str
    """Local file or directory that `source` was resolved to."""
    tokenizer_path: str | None = None
    """Folder with tokenizer.json, tokenizer_config.json and config.json; convert fills it before all else starts."""
    cache_dir: str
    """Writable folder for converted tokenizers and downloaded models."""
    model_name: str
    model_revision: str | None = None
    model_digest: str | None = None
    """Expected sha256 digest of the model's files; checked before loading."""
    host: str = "0.0.0.0"
    port: int = 8000
    metrics_port: int = 8001
    api_keys_file: str | None = None
    """NAME:KEY lines; None: no key is asked for."""
    device: str = "auto"
    """auto, cpu, cuda. `auto` never falls back silently: it logs what it chose."""
    dtype: str = "auto"
    """auto, fp32, bf16, fp16."""
    quantization: str = "none"
    """none, or int8: how the weights of linear layers are kept."""
    attention: str = "auto"
    """auto, reference, cpu, triton."""
    slo_class: str = "balanced"
    slo_ttft: float | None = None
    """Seconds to the first token that requests of the class should keep to; None: no target."""
    admission: str = "queue"
    """queue or goodput."""
    max_requests: int
    max_batch_tokens: int
    chunked_prefill_tokens: int
    max_queued_requests: int
    preemption_mode: str = "auto"
    """auto, swap, recompute."""
    swap_threshold_tokens: int | None = None
    """None: the crossing of what both ways cost, as measured."""
    max_context_tokens: int | None = None
    block_tokens: int = 16
    kv_cache_size: int | None = None
    kv_key_dtype: str = "auto"
    """auto (as `dtype`), int8, fp8, fp8-dynamic, int4."""
    kv_value_dtype: str = "auto"
    kv_dtype_check: str = "refuse"
    """refuse or warn, where they cost too much."""
    memory_fraction: float = 0.9
    swap_space: int = 0
    """Memory of the host for the KV of preempted requests and for evicted prefixes."""
    disk_cache: str | None = None
    """Directory of the disk cache below the swap space; None: none."""
    disk_cache_size: int | None = None
    prefix_cache: str = "radix"
    """radix, block-hash or disabled."""
    drain_timeout: float = 120.0
    startup_timeout: float = 1800.0
    run_dir: str
    """Private folder (0700) of this start: sockets and the heartbeat page."""
    threads: int | None = None
    """CPU threads of the core; None = the cgroup's quota, at least 1."""

    @property
    def quantises_kv(self) -> bool:
        """Whether keys or values are kept in fewer bits than they are computed in."""
        return (self.kv_key_dtype, self.kv_value_dtype) != ("auto", "auto")

    def write(self, path: Path) -> None:
        """By rename: `kvik drain` may read it at any time."""
        making = path.with_name(path.name + ".part")
        making.write_text(json.dumps(asdict(self)))
        making.rename(path)

    @classmethod
    def read(cls, path: Path) -> EngineConfig:
        """What `write` wrote."""
        return cls(**json.loads(path.read_text()))


DEFAULTS: dict[str, Any] = {field.name: field.default for field in fields(EngineConfig) if field.default is not MISSING}
"""What a setting is when nobody says otherwise. Help texts, checks and other commands read it here."""
