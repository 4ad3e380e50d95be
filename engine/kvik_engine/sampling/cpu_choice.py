"""Choose tokens on a CPU: a row at a time in its cache, and noise only for tokens that can win."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from kvik_engine.sampling.batch import SamplingBatch, SamplingRow
from kvik_engine.sampling.cpu_filters import Candidates, Tokens, Values, candidates
from kvik_engine.sampling.cpu_screen import screen
from kvik_engine.sampling.noise import gumbel_of, stream_key

SCREENED = 512
"""More candidates than this are screened before their noise is computed."""


@dataclass(frozen=True, slots=True)
class _Contest:
    """One row's draw: the tokens that take part in it."""

    place: int
    """Among the step's rows."""
    key: int
    all: Candidates
    tokens: Tokens
    values: Values
    level: float | None
    """When none of `tokens` reaches it, all candidates take part."""


def finite_rows(logits: Tensor) -> Tensor:
    """bool [rows]: whether none of a row's logits is NaN or infinite."""
    values = logits.numpy()
    return torch.from_numpy(np.isfinite(values.max(axis=1)) & np.isfinite(values.min(axis=1)))


def choose(logits: Tensor, batch: SamplingBatch, finite: Tensor) -> Tensor:
    """fp32 [rows, vocabulary] -> int64 [rows], 0 where a row is not finite. Equal scores: the lowest id."""
    chosen = np.zeros(len(batch.rows), dtype=np.int64)
    contests: list[_Contest] = []
    rows = zip(logits.numpy(), batch.rows, batch.positions, finite.tolist(), strict=True)
    for place, (values, row, position, usable) in enumerate(rows):
        if not usable:
            continue
        if row.params.greedy:
            chosen[place] = values.argmax()
        elif (contest := _contest(place, values, row, position)) is not None:
            contests.append(contest)
    for contest, scores in zip(contests, _scores(contests), strict=True):
        chosen[contest.place] = _winner(contest, scores)
    return torch.from_numpy(chosen)


def _contest(place: int, logits: Values, row: SamplingRow, position: int) -> _Contest | None:
    """None when every token is masked."""
    found = candidates(logits / np.float32(row.params.temperature), row.params)
    if found.top == -np.inf:
        return None
    key = stream_key(row.params.seed, row.choice, position)
    if len(found.values) <= SCREENED:
        return _Contest(place, key, found, _ids(found), found.values, None)
    places, level = screen(found.values, found.tokens, found.top, key)
    tokens = places if found.tokens is None else found.tokens[places]
    return _Contest(place, key, found, tokens, found.values[places], level)


def _scores(contests: Sequence[_Contest]) -> list[Values]:
    """Value and noise of each contest's tokens. One pass over all of them: each is tiny."""
    if not contests:
        return []
    sizes = [len(contest.tokens) for contest in contests]
    keys = np.repeat(np.array([contest.key for contest in contests]), sizes)
    tokens = np.concatenate([contest.tokens for contest in contests])
    noise = gumbel_of(torch.from_numpy(keys), torch.from_numpy(tokens)).numpy()
    noise += np.concatenate([contest.values for contest in contests])
    return np.split(noise, np.cumsum(sizes)[:-1])


def _winner(contest: _Contest, scores: Values) -> int:
    if contest.level is None or (len(scores) and scores.max() >= contest.level):
        return int(contest.tokens[scores.argmax()])
    tokens = _ids(contest.all)
    noise = gumbel_of(torch.tensor(contest.key), torch.from_numpy(tokens)).numpy()
    return int(tokens[(contest.all.values + noise).argmax()])


def _ids(found: Candidates) -> Tokens:
    return np.arange(len(found.values)) if found.tokens is None else found.tokens
