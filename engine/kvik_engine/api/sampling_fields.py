"""From a request's fields to SamplingParams: defaults applied, ranges checked, every fault with its `param`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

from kvik_engine.api import limits
from kvik_engine.api.beam_fields import resolve_beam
from kvik_engine.api.schema import SamplingFields
from kvik_engine.config import SLO_CLASSES
from kvik_engine.errors import UserError
from kvik_engine.params import SamplingParams

_GREEDY_BELOW = 1e-5
_LOWEST_TEMPERATURE = 0.01
_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True, slots=True)
class StopRules:
    """What ends a choice in the API process."""

    strings: tuple[str, ...]
    include: bool
    """Whether the stop string is part of the text."""
    min_tokens: int


@dataclass(frozen=True, slots=True)
class Sampling:
    """A request's sampling, resolved but for the output length, which depends on the prompt."""

    params: SamplingParams
    """`max_tokens` and `seed` are place holders until `fitting.fit` knows the prompt. `n` is how many choices run."""
    returned: int
    """How many of a prompt's choices the client gets."""
    length_penalty: float | None
    """How their length counts when the best are chosen (see ranking.best); None: all are returned, none is ranked."""
    logprobs: int | None
    """How many alternatives the client gets beside each token; None: no logprobs."""
    seed: int | None
    """64 bits; None: the client gave none, so each prompt draws its own."""
    wanted_tokens: int | None
    """None: the client did not say."""
    max_tokens_field: str
    """How the client wrote it, for `param`."""
    stop: StopRules
    slo_class: int
    priority: int
    tenant: str
    salt: bytes


@dataclass(frozen=True, slots=True)
class ServedModel:
    """What checking needs to know of the model."""

    vocab_size: int
    stop_token_ids: tuple[int, ...]
    slo_class: int
    max_choices: int
    """Rows of the engine: more choices could never run together."""


def resolve_sampling(
    request: SamplingFields,
    model: ServedModel,
    *,
    max_tokens: tuple[str, int | None],
    logprobs: int | None,
    tenant: str = "",
) -> Sampling:
    """Check and fill. `max_tokens` is (field name, value). Raises UserError."""
    field, wanted = max_tokens
    _within(field, wanted, 1)
    min_tokens = _within("min_tokens", request.min_tokens, 0, wanted) or 0
    n = _within("n", request.n, 1, min(limits.MAX_N, model.max_choices)) or 1
    candidates = _best_of(request, model, n)
    stop = _stop_strings(request.stop)
    beam = resolve_beam(request, stop)
    ranking = beam.length_penalty if beam is not None else 1.0 if candidates > n else None
    if request.stream_options is not None and not request.stream:
        raise UserError("stream_options is only allowed when stream is true.", param="stream_options")
    stop_token_ids = _stop_token_ids(request, model)
    params = SamplingParams(
        max_tokens=1,
        seed=0,
        n=candidates,
        temperature=0.0 if beam is not None else _temperature(request.temperature),
        top_k=_top_k(request.top_k, model.vocab_size),
        top_p=_default(_within("top_p", request.top_p, 0.0, 1.0, above=True), 1.0),
        min_p=_default(_within("min_p", request.min_p, 0.0, 1.0), 0.0),
        presence_penalty=_default(_within("presence_penalty", request.presence_penalty, -2.0, 2.0), 0.0),
        frequency_penalty=_default(_within("frequency_penalty", request.frequency_penalty, -2.0, 2.0), 0.0),
        repetition_penalty=_default(_within("repetition_penalty", request.repetition_penalty, 0.01, 100.0), 1.0),
        logit_bias=_logit_bias(request.logit_bias, model.vocab_size),
        stop_token_ids=stop_token_ids,
        min_tokens=min_tokens,
        logprobs=logprobs if ranking is None else logprobs or 0,
        beam=beam,
    )
    if beam is not None and (params.listed or 0) > model.vocab_size:
        raise UserError("The vocabulary is too small for so many beams.", param="use_beam_search")
    return Sampling(
        params=params,
        returned=n,
        length_penalty=ranking,
        logprobs=logprobs,
        seed=_seed(request.seed),
        wanted_tokens=wanted,
        max_tokens_field=field,
        stop=StopRules(stop, bool(request.include_stop_str_in_output), min_tokens),
        slo_class=_slo_class(request.slo_class, model.slo_class),
        priority=_within("priority", request.priority, -100, 100) or 0,
        tenant=tenant,
        salt=_salt(request.cache_salt, tenant),
    )


def _best_of(request: SamplingFields, model: ServedModel, n: int) -> int:
    """How many choices run, or how many beams, of which the client gets the best n."""
    candidates = _within("best_of", request.best_of, n, min(limits.MAX_N, model.max_choices)) or n
    if candidates > n and request.stream:
        raise UserError("A stream cannot tell which of best_of choices are best: best_of must be n.", param="best_of")
    return candidates


def _within(
    field: str, value: _Number | None, low: _Number, high: _Number | None = None, *, above: bool = False
) -> _Number | None:
    """`value` if low <= value <= high (low < value with `above`; no end without `high`), None if absent."""
    if value is None:
        return None
    # False for NaN; exact for an int of any length.
    inside = (low < value if above else low <= value) and (high is None or value <= high)
    if not inside:
        end = "" if high is None else f" and at most {high}"
        raise UserError(f"{field} must be {'above' if above else 'at least'} {low}{end}.", param=field)
    return value


def _default(value: float | None, default: float) -> float:
    return default if value is None else value


def _temperature(value: float | None) -> float:
    checked = _default(_within("temperature", value, 0.0, 2.0), 1.0)
    return 0.0 if checked < _GREEDY_BELOW else max(checked, _LOWEST_TEMPERATURE)


def _top_k(value: int | None, vocab_size: int) -> int | None:
    """0 and -1 mean off, as in vLLM; so does a number that leaves no token out."""
    if value is not None and value < -1:
        raise UserError("top_k must be at least 1, or 0 or -1 for all tokens.", param="top_k")
    return None if value is None or value < 1 or value >= vocab_size else value


def _seed(value: int | None) -> int | None:
    """The client's seed as 64 unsigned bits."""
    if value is None:
        return None
    if not -(1 << 63) <= value < 1 << 64:
        raise UserError("seed must be a whole number of 64 bits.", param="seed")
    return value % (1 << 64)


def _logit_bias(bias: dict[str, float] | None, vocab_size: int) -> tuple[tuple[int, float], ...]:
    if not bias:
        return ()
    if len(bias) > limits.MAX_LOGIT_BIAS:
        raise UserError(f"logit_bias has more than {limits.MAX_LOGIT_BIAS} entries.", param="logit_bias")
    pairs = []
    for key, value in bias.items():
        # "01" beside "1" would be the same token twice.
        if not (key.isascii() and key.isdigit()) or len(key) > 10 or str(int(key)) != key or int(key) >= vocab_size:
            raise UserError(f"logit_bias: {key[:40]!r} is not a token id of this model.", param="logit_bias")
        if not -100.0 <= value <= 100.0:
            raise UserError("logit_bias values must be between -100 and 100.", param="logit_bias")
        pairs.append((int(key), float(value)))
    return tuple(pairs)


def _stop_strings(stop: str | list[str] | None) -> tuple[str, ...]:
    strings = [stop] if isinstance(stop, str) else stop or []
    if len(strings) > limits.MAX_STOPS:
        raise UserError(f"stop has more than {limits.MAX_STOPS} entries.", param="stop")
    if any(not 1 <= len(s) <= limits.MAX_STOP_CHARS for s in strings):
        raise UserError(f"A stop string must have 1 to {limits.MAX_STOP_CHARS} characters.", param="stop")
    return tuple(dict.fromkeys(strings))


def _stop_token_ids(request: SamplingFields, model: ServedModel) -> tuple[int, ...]:
    own = request.stop_token_ids or []
    if len(own) > limits.MAX_STOP_TOKEN_IDS:
        raise UserError(f"stop_token_ids has more than {limits.MAX_STOP_TOKEN_IDS} entries.", param="stop_token_ids")
    if any(not 0 <= token < model.vocab_size for token in own):
        raise UserError("stop_token_ids holds an id outside of the vocabulary.", param="stop_token_ids")
    end = () if request.ignore_eos else model.stop_token_ids
    return tuple(dict.fromkeys((*end, *own)))


def _slo_class(name: str | None, pool: int) -> int:
    """A request may lower itself below the pool's class, never raise itself."""
    if name is None:
        return pool
    if name not in SLO_CLASSES:
        raise UserError(f"slo_class must be one of {', '.join(SLO_CLASSES)}.", param="slo_class")
    wanted = SLO_CLASSES.index(name)
    if wanted < pool:
        raise UserError(f"slo_class cannot be above the pool's own, {SLO_CLASSES[pool]}.", param="slo_class")
    return wanted


def _salt(salt: str | None, tenant: str) -> bytes:
    """Tenants never share cached prefixes; a name holds no NUL."""
    own = tenant.encode() + b"\0" if tenant else b""
    if salt is None:
        return own
    if not 1 <= len(salt) <= limits.MAX_SALT_CHARS:
        raise UserError(f"cache_salt must have 1 to {limits.MAX_SALT_CHARS} characters.", param="cache_salt")
    return own + salt.encode()
