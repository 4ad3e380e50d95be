"""From an engine's JSON to readings. The engine is a program of another version: nothing it says is trusted. Pure.

`GET /load` and `GET /info` are specified in docs/contract.md. A figure that is not a number from 0 to 2^53 makes the
whole answer worthless: half a reading would look like an idle pod.
"""

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from kvik_operator.autoscale.types import EngineState, LoadReading
from kvik_operator.reconcile.types import EngineInfo

SCHEMA: Final = 1
MAX_BYTES: Final = 4096
MAX_FIGURE: Final = 2**53
"""Up to here floats are exact, and status takes it as an int64; no engine has more of anything."""
MIN_RATE: Final = 1e-3
"""Tokens a second; below it nothing was measured, and a division by it could leave the range of floats."""
_PHASES: Final = ("model_fetched", "weights_loaded", "compiled", "warm")


class UnreadableAnswerError(ValueError):
    """The engine answered something that docs/contract.md does not allow."""


def parse_load(body: bytes, at: float) -> LoadReading:
    """Raises UnreadableAnswerError."""
    answer = _object(body)
    try:
        state = EngineState(answer.get("state", ""))
    except ValueError as error:
        raise UnreadableAnswerError(f"state: {answer.get('state')!r}") from error
    warm_since = answer.get("warm_since")
    return LoadReading(
        at=at,
        state=state,
        kv_blocks_used=_count(answer, "kv_blocks_used"),
        kv_blocks_total=_count(answer, "kv_blocks_total"),
        running=_count(answer, "running"),
        waiting=_count(answer, "waiting"),
        refused_total=_count(answer, "refused_total"),
        waiting_prompt_tokens=_count(answer, "waiting_prompt_tokens"),
        prefill_tokens_per_second=_rate(answer, "prefill_tokens_per_second"),
        warm_since=warm_since if isinstance(warm_since, str) else None,
        ttft_p90_seconds=_shown(answer, "ttft_p90_seconds"),
        api_keys_outdated=_flag(answer, "api_keys_outdated"),
    )


def parse_info(body: bytes) -> EngineInfo:
    """Raises UnreadableAnswerError."""
    answer = _object(body)
    model, kv, startup = (_mapping(answer, name) for name in ("model", "kv", "startup"))
    return EngineInfo(
        version=_text(answer, "version") or "unknown",
        model_name=_text(model, "name") or "unknown",
        revision=_text(model, "revision"),
        digest=_text(model, "digest"),
        parameters=_optional_count(model, "parameters"),
        context=_optional_count(model, "context"),
        dtype=_text(answer, "dtype"),
        quantization=_text(answer, "quantization"),
        kv_key_dtype=_text(kv, "key_dtype"),
        kv_value_dtype=_text(kv, "value_dtype"),
        kv_bytes_per_token=_optional_count(kv, "bytes_per_token"),
        kv_max_tokens=_optional_count(kv, "max_tokens"),
        startup={phase: _moment(startup, phase) for phase in _PHASES},
    )


def _object(body: bytes) -> Mapping[str, Any]:
    if len(body) > MAX_BYTES:
        raise UnreadableAnswerError(f"longer than {MAX_BYTES} bytes")
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UnreadableAnswerError("not JSON") from error
    if not isinstance(answer, dict):
        raise UnreadableAnswerError("not a JSON object")
    if answer.get("schema") != SCHEMA:
        raise UnreadableAnswerError(f"schema {answer.get('schema')!r} is not known")
    return answer


def _count(answer: Mapping[str, Any], name: str) -> int:
    value = _number(answer, name)
    if value is None:
        raise UnreadableAnswerError(f"{name} is missing")
    return int(value)


def _optional_count(answer: Mapping[str, Any], name: str) -> int | None:
    value = _number(answer, name)
    return None if value is None else int(value)


def _rate(answer: Mapping[str, Any], name: str) -> float | None:
    value = _number(answer, name)
    return value if value is not None and value >= MIN_RATE else None


def _number(answer: Mapping[str, Any], name: str) -> float | None:
    """NaN, Infinity and integers beyond any float pass Python's JSON parser; they must not pass us.

    The comparison refuses all of them without a conversion that could overflow (dynamo #6985, ray #64725).
    """
    value = answer.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_FIGURE:
        raise UnreadableAnswerError(f"{name}: {str(value)[:40]}")
    return float(value)


def _shown(answer: Mapping[str, Any], name: str) -> float | None:
    """A figure that decides nothing: where it is none, it is missing, and the others hold."""
    try:
        return _number(answer, name)
    except UnreadableAnswerError:
        return None


def _flag(answer: Mapping[str, Any], name: str) -> bool | None:
    value = answer.get(name)
    return value if isinstance(value, bool) else None


def _text(answer: Mapping[str, Any], name: str) -> str | None:
    value = answer.get(name)
    return value[:256] if isinstance(value, str) and value else None


def _mapping(answer: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = answer.get(name)
    return value if isinstance(value, dict) else {}


def _moment(answer: Mapping[str, Any], name: str) -> datetime | None:
    text = _text(answer, name)
    try:
        moment = datetime.fromisoformat(text) if text else None
    except ValueError:
        return None
    return moment if moment is not None and moment.tzinfo is not None else None
