"""What an SLO class means for an engine that was told no more. Pure.

The operator has the same table (docs/pools.md shows it), and passes its values explicitly.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any

from kvik_engine.errors import StartError, StartReason


@dataclass(frozen=True, slots=True)
class ClassDefaults:
    """Batching of one class."""

    max_requests: int
    max_batch_tokens: int
    chunked_prefill_tokens: int
    max_queued_requests: int


_TABLE = {
    "interactive": ClassDefaults(32, 2048, 256, 64),
    "balanced": ClassDefaults(64, 4096, 512, 256),
    "batch": ClassDefaults(256, 8192, 2048, 4096),
}
_CPU_CAPS = {"max_requests": 32, "max_batch_tokens": 512, "chunked_prefill_tokens": 128}


def batching(slo_class: str, device: str, given: dict[str, Any]) -> dict[str, int]:
    """The four batching values: explicit ones as they are, the others from the class, capped on a CPU and by
    an explicit max_batch_tokens.

    StartError (ConfigInvalid) when explicit values contradict each other.
    """
    defaults = _TABLE[slo_class]
    if device == "cpu":
        defaults = replace(defaults, **{name: min(getattr(defaults, name), cap) for name, cap in _CPU_CAPS.items()})
    chosen: dict[str, int] = {f.name: given.get(f.name, getattr(defaults, f.name)) for f in fields(defaults)}
    for name in ("chunked_prefill_tokens", "max_requests"):
        if name not in given:
            chosen[name] = min(chosen[name], chosen["max_batch_tokens"])
        elif "max_batch_tokens" not in given:
            chosen["max_batch_tokens"] = max(chosen["max_batch_tokens"], chosen[name])
        elif chosen[name] > chosen["max_batch_tokens"]:
            flag = "--" + name.replace("_", "-")
            raise StartError(StartReason.CONFIG_INVALID, f"{flag} is larger than --max-batch-tokens")
    return chosen
