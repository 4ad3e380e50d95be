"""The options of `kvik serve`: one table from which flags, KVIK_ variables, help and checks come."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kvik_engine.attention.kv_layout import QUANTISED
from kvik_engine.cli import values
from kvik_engine.config import DEFAULTS
from kvik_engine.errors import StartError, StartReason

ENVIRONMENT_PREFIX = "KVIK_"
FAULTS = "KVIK_FAULTS"
"""Of test builds; the only variable that is no option."""


@dataclass(frozen=True, slots=True)
class Option:
    """A flag. Its default is that of EngineConfig, by name; `default` is for the help where that says too little."""

    name: str
    read: Callable[[str], Any]
    group: str
    metavar: str
    help: str
    default: str | None = None

    @property
    def full_help(self) -> str:
        return f"{self.help} (default: {self._shown_default})"

    @property
    def _shown_default(self) -> str:
        if self.default is not None:
            return self.default
        value = DEFAULTS[self.name]
        return f"{value:g}s" if self.read is values.duration else str(value)

    @property
    def flag(self) -> str:
        return "--" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return ENVIRONMENT_PREFIX + self.name.upper()


_CLASS = "by --slo-class"
_KV_NAMES = ("auto", *QUANTISED)
_KV_DTYPE, _KV_DTYPES = values.one_of(*_KV_NAMES), "|".join(_KV_NAMES)

OPTIONS = (
    Option("host", values.word, "Network", "ADDRESS", "address both ports listen on"),
    Option("port", values.count(1, 65535), "Network", "PORT", "the OpenAI API"),
    Option("metrics_port", values.count(1, 65535), "Network", "PORT", "probes, load and metrics"),
    Option("api_keys_file", str, "Network", "FILE", "ask for API keys: a line NAME:KEY each", "no keys"),
    Option("model_name", values.word, "Model", "NAME", "the id clients send", "last part of MODEL"),
    Option("digest", values.digest, "Model", "sha256:HEX", "refuse to start on other files", "not checked"),
    Option("device", values.one_of("auto", "cpu", "gpu"), "Model", "auto|cpu|gpu", "where to compute"),
    Option(
        "dtype",
        values.one_of("auto", "fp32", "bf16", "fp16"),
        "Model",
        "auto|fp32|bf16|fp16",
        "element type; auto measures on a CPU",
    ),
    Option(
        "quantization",
        values.one_of("none", "int8"),
        "Model",
        "none|int8",
        "of the weights of linear layers; int8 is for CPUs with AVX512-VNNI",
    ),
    Option(
        "attention",
        values.one_of("auto", "reference", "cpu", "triton"),
        "Model",
        "auto|reference|cpu|triton",
        "attention backend",
    ),
    Option("max_context_tokens", values.count(16, 1 << 24), "Model", "N", "longest prompt + answer", "the model's own"),
    Option(
        "slo_class",
        values.one_of("interactive", "balanced", "batch"),
        "Batching",
        "interactive|balanced|batch",
        "decides the defaults below and the priority of requests",
    ),
    Option("slo_ttft", values.duration, "Batching", "TIME", "target for the time to first token, as 500ms", "none"),
    Option(
        "admission",
        values.one_of("queue", "goodput"),
        "Batching",
        "queue|goodput",
        "goodput refuses with 429 what would miss --slo-ttft",
    ),
    Option("max_requests", values.count(1, 4096), "Batching", "N", "sequences computed together", _CLASS),
    Option("max_batch_tokens", values.count(16, 1 << 20), "Batching", "N", "tokens computed in a step", _CLASS),
    Option(
        "chunked_prefill_tokens",
        values.count(1, 1 << 20),
        "Batching",
        "N",
        "prompt tokens a step while others decode",
        _CLASS,
    ),
    Option("max_queued_requests", values.count(0, 1 << 20), "Batching", "N", "waiting requests before 429", _CLASS),
    Option(
        "preemption_mode",
        values.one_of("auto", "swap", "recompute"),
        "Batching",
        "auto|swap|recompute",
        "what becomes of the KV of requests that give way; auto takes the quicker way, swap needs --swap-space",
    ),
    Option(
        "swap_threshold_tokens",
        values.count(0, 1 << 24),
        "Batching",
        "N",
        "with --preemption-mode=auto and --swap-space, swap from so many tokens on",
        "as measured",
    ),
    Option("kv_cache_size", values.size, "KV cache", "SIZE", "such as 256Mi; instead of --memory-fraction", "the rest"),
    Option("memory_fraction", values.fraction, "KV cache", "0-1", "of the device's memory, weights included"),
    Option("kv_key_dtype", _KV_DTYPE, "KV cache", _KV_DTYPES, "of cached keys; auto: as --dtype"),
    Option("kv_value_dtype", _KV_DTYPE, "KV cache", _KV_DTYPES, "of cached values"),
    Option(
        "kv_dtype_check",
        values.one_of("refuse", "warn"),
        "KV cache",
        "refuse|warn",
        "where quantised keys and values cost this model more perplexity than they should, as the start measures",
    ),
    Option("swap_space", values.size, "KV cache", "SIZE", "host memory for preempted KV and evicted prefixes", "none"),
    Option("disk_cache", str, "KV cache", "DIR", "keep evicted prefixes here, too; needs --swap-space", "none"),
    Option("disk_cache_size", values.size, "KV cache", "SIZE", "of --disk-cache at most; given with it", "none"),
    Option("block_tokens", values.power_of_two(8, 256), "KV cache", "N", "tokens a block; a power of two"),
    Option(
        "prefix_cache",
        values.one_of("radix", "block-hash", "disabled"),
        "KV cache",
        "radix|block-hash|disabled",
        "share equal prompt beginnings, to the token or in whole blocks",
    ),
    Option("drain_timeout", values.duration, "Process", "TIME", "for running requests at shutdown"),
    Option("startup_timeout", values.duration, "Process", "TIME", "until the model must be warm"),
    Option("threads", values.count(1, 1024), "Process", "N", "CPU threads of the core", "the CPU quota"),
    Option("cache_dir", str, "Process", "DIR", "for downloads and conversions", "~/.cache/kvik"),
    Option("run_dir", str, "Process", "DIR", "for sockets", "/tmp/kvik-UID"),
)


def read_options(flags: Mapping[str, str | None], environment: Mapping[str, str]) -> dict[str, Any]:
    """The options that were given, flag before variable. StartError (ConfigInvalid) names the wrong one."""
    known = {option.variable for option in OPTIONS} | {FAULTS}
    for name in environment:
        if name.startswith(ENVIRONMENT_PREFIX) and name not in known:
            raise StartError(StartReason.CONFIG_INVALID, f"the environment variable {name} is not known")
    given: dict[str, Any] = {}
    for option in OPTIONS:
        text, where = flags.get(option.name), option.flag
        if text is None:
            text, where = environment.get(option.variable), option.variable
        if text is not None:
            try:
                given[option.name] = option.read(text)
            except ValueError as error:
                raise StartError(StartReason.CONFIG_INVALID, f"{where}: {error}") from error
    return given
