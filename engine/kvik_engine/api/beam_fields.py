"""From a request's fields to BeamParams: what asks for a beam search, and which other fields mean nothing in one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvik_engine.api.limits import MAX_LENGTH_PENALTY
from kvik_engine.api.schema import SamplingFields
from kvik_engine.errors import UserError
from kvik_engine.params import BeamParams, EarlyStopping

_EARLY_STOPPING: dict[bool | str | None, EarlyStopping] = {
    None: EarlyStopping.LIKELY,
    False: EarlyStopping.LIKELY,
    True: EarlyStopping.COMPLETE,
    "never": EarlyStopping.SURE,
}
_ALONE: dict[str, Callable[[Any], bool]] = {
    "length_penalty": lambda v: v == 1,
    "early_stopping": lambda v: v is False,
}
"""Fields of a beam search, and the values that mean nothing without one."""
_DRAWING: dict[str, Callable[[Any], bool]] = {
    "stream": lambda v: v is False,
    "temperature": lambda v: v in (0, 1),
    "top_p": lambda v: v == 1,
    "top_k": lambda v: v in (0, -1),
    "min_p": lambda v: v == 0,
    "presence_penalty": lambda v: v == 0,
    "frequency_penalty": lambda v: v == 0,
    "repetition_penalty": lambda v: v == 1,
    "logit_bias": lambda v: not v,
}
"""Fields that mean nothing in a beam search, which ranks by the model's own probabilities and tells only at its end,
and their values that say so."""


def resolve_beam(request: SamplingFields, stop: tuple[str, ...]) -> BeamParams | None:
    """None when no beam search is asked for. UserError for fields that do not go together, and for values out of
    range."""
    if not request.use_beam_search:
        _refuse(request, _ALONE, "needs use_beam_search to be true.")
        return None
    _refuse(request, _DRAWING, "with this value has no meaning in a beam search.")
    penalty = 1.0 if request.length_penalty is None else request.length_penalty
    if not -MAX_LENGTH_PENALTY <= penalty <= MAX_LENGTH_PENALTY:
        message = f"length_penalty must be at least {-MAX_LENGTH_PENALTY} and at most {MAX_LENGTH_PENALTY}."
        raise UserError(message, param="length_penalty")
    if request.early_stopping not in _EARLY_STOPPING:
        raise UserError('early_stopping must be true, false or "never".', param="early_stopping")
    return BeamParams(length_penalty=penalty, early_stopping=_EARLY_STOPPING[request.early_stopping], stop=stop)


def _refuse(request: SamplingFields, fields: dict[str, Callable[[Any], bool]], why: str) -> None:
    for field, harmless in fields.items():
        value = getattr(request, field)
        if value is not None and not harmless(value):
            raise UserError(f"{field} {why}", param=field)
