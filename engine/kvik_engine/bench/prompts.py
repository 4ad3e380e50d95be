"""The messages of a workload: words drawn from a seed, as many as make the wanted number of tokens."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from kvik_engine.bench.workloads import Conversation, Workload
from kvik_engine.errors import KvikError

Message = dict[str, str]
Count = Callable[[Sequence[Message]], Awaitable[int | None]]
"""Tokens of a chat with its template; None: the server does not count."""

_TEXT: Final = """
time year people way day man thing woman life child world school state family student group country problem hand
part place case week company system program question work government number night point home water room mother
area money story fact month lot right study book eye job word business issue side kind head house service friend
father power hour game line end member law car city community name president team minute idea kid body
information back parent face others level office door health person art war history party result change morning
reason research girl guy moment air teacher force education
"""
_WORDS: Final = _TEXT.split()
"""One token each, with the space before it, in the tokenizers of the common model families."""
_TRIES: Final = 12
_AT_ONCE: Final = 16
"""Requests to count a prompt: more would be a load before the load."""


class TooShort(KvikError):
    """A prompt cannot be so short: the chat template alone takes more."""


@dataclass(frozen=True, slots=True)
class Script:
    """What a client says in one conversation: messages before the first turn, and one message a turn."""

    conversation: Conversation
    opening: tuple[Message, ...]
    says: tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Scripts:
    scripts: list[Script]
    exact: bool
    """Every prompt was counted by the server and is as long as it should be; else a word stands for a token."""


async def write(workload: Workload, talks: Sequence[Conversation], seed: str, count: Count) -> Scripts:
    """Counts for several conversations at once. Raises TooShort."""
    room = asyncio.Semaphore(_AT_ONCE)

    async def script(talk: Conversation) -> tuple[Script, bool]:
        async with room:
            return await _script(workload, talk, seed, count)

    written = await asyncio.gather(*map(script, talks))
    return Scripts([script for script, _ in written], all(exact for _, exact in written))


async def _script(workload: Workload, talk: Conversation, seed: str, count: Count) -> tuple[Script, bool]:
    """Also whether every prompt is as long as it should be."""
    opening = _opening(workload, talk, seed)
    before = 0 if talk.prefix is None else workload.prefix_tokens
    says, exact = [], True
    for number, turn in enumerate(talk.turns):
        rng = random.Random(f"words {seed} {talk.number} {number}")
        words = rng.choices(_WORDS, k=2 * turn.input_tokens + 64)
        message, fits = await _fitted(opening, words, before + turn.input_tokens, turn.input_tokens, count)
        says.append(message)
        exact = exact and fits
    return Script(talk, opening, tuple(says)), exact


def _opening(workload: Workload, talk: Conversation, seed: str) -> tuple[Message, ...]:
    if talk.prefix is None:
        return ()
    rng = random.Random(f"prefix {seed} {talk.prefix}")
    return ({"role": "system", "content": " ".join(rng.choices(_WORDS, k=workload.prefix_tokens))},)


async def _fitted(
    opening: tuple[Message, ...], words: Sequence[str], wanted: int, guess: int, count: Count
) -> tuple[Message, bool]:
    """A user's message that makes `wanted` tokens with the opening and the template; whether it does, as counted."""
    length = guess
    for _ in range(_TRIES):
        message = {"role": "user", "content": " ".join(words[:length])}
        counted = await count((*opening, message))
        if counted is None:
            return message, False
        if counted == wanted:
            return message, True
        if length == 1 and counted > wanted:
            raise TooShort(f"with its chat template a prompt takes {counted} tokens at least, not {wanted}")
        length = min(max(1, length + wanted - counted), len(words))
    return message, False
