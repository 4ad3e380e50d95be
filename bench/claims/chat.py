"""Claims 4 and 13: what a chat's later turns cost, as users see it: `kvik serve` over HTTP, by the openai client."""

import contextlib
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import openai

from bench.claims.claim import COUNTED, WALL_CLOCK, Claim, Measured
from bench.claims.engine import BLOCK_TOKENS
from bench.figures import engine

MODEL = "smollm2-135m-instruct"
ROUNDS, TURNS, WORDS, ANSWER, SYSTEM_WORDS = 3, 5, 150, 32, 976
_WORDS = """the of and to in that it was for on are with as his they be at one have this from by hot word but what some
is you had or were we when your can said there use an each which she do how their if will up other about out many then
them these so her would make like him into time has look two more write go see number no way could people my than first
water been call who oil its now find long down day did get come made may part over new sound take only little work know
place year live me back give most very after thing our just name good sentence man think say"""
_OPTIONS = ["--kv-cache-size=384Mi", "--threads=1", "--device=cpu", f"--block-tokens={BLOCK_TOKENS}"]

Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class Both:
    """An engine without and one with a prefix cache, both warm."""

    without: openai.OpenAI
    cached: openai.OpenAI


@dataclass(frozen=True, slots=True)
class Compared:
    """Median seconds to the first token without and with the cache, and the last usage with it."""

    baseline: float
    ours: float
    usage: Any


@contextlib.contextmanager
def both() -> Iterator[Both]:
    with engine([*_OPTIONS, "--prefix-cache=disabled"]) as (_, without), engine(_OPTIONS) as (_, cached):
        yield Both(_client(without), _client(cached))


def _client(port: int) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=300)


def words(count: int, seed: int) -> str:
    draw = random.Random(seed)
    return " ".join(draw.choice(_WORDS.split()) for _ in range(count))


def answer(client: openai.OpenAI, messages: list[Message], tokens: int) -> tuple[float, str, Any]:
    """Seconds to the first token, the text, and the usage."""
    started = time.monotonic()
    create: Any = client.chat.completions.create
    stream = create(
        model=MODEL,
        messages=messages,
        max_tokens=tokens,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    first, text, usage = None, "", None
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            first = first or time.monotonic() - started
            text += chunk.choices[0].delta.content
        usage = chunk.usage or usage
    assert first is not None, "no token came"
    return first, text, usage


def last_turn(client: openai.OpenAI, seed: int) -> tuple[float, Any]:
    """TTFT and usage of the fifth turn of a chat."""
    messages: list[Message] = []
    ttft, usage = 0.0, None
    for turn in range(TURNS):
        messages.append({"role": "user", "content": words(WORDS, seed=1000 * seed + turn)})
        ttft, text, usage = answer(client, messages, ANSWER)
        messages.append({"role": "assistant", "content": text})
    return ttft, usage


def compare(engines: Both, rounds: int, ask: Callable[[openai.OpenAI, int], tuple[float, Any]]) -> Compared:
    """Ask both engines the same, turn about."""
    times: dict[str, list[float]] = {"without": [], "cached": []}
    usage: Any = None
    for turn in range(rounds):
        for which in ("without", "cached") if turn % 2 else ("cached", "without"):
            ttft, seen = ask(getattr(engines, which), turn)
            times[which].append(ttft)
            usage = seen if which == "cached" else usage
    return Compared(statistics.median(times["without"]), statistics.median(times["cached"]), usage)


def later_turns() -> Measured:
    with both() as engines:
        seen = compare(engines, ROUNDS, last_turn)
    ok = seen.ours <= 0.4 * seen.baseline
    return Measured(
        baseline=seen.baseline,
        ours=seen.ours,
        ratio=seen.baseline / seen.ours,
        ok=ok,
        reason=None if ok else f"only {1 - seen.ours / seen.baseline:.0%} lower",
        figures={
            "lower by, per cent": 100 * (1 - seen.ours / seen.baseline),
            "prompt tokens of turn 5": seen.usage.prompt_tokens,
            "of them found": seen.usage.prompt_tokens_details.cached_tokens,
        },
    )


def system_prompt() -> Measured:
    system = {"role": "system", "content": words(SYSTEM_WORDS, seed=7)}

    def ask(client: openai.OpenAI, turn: int) -> tuple[float, Any]:
        ttft, _, usage = answer(client, [system, {"role": "user", "content": words(10, seed=100 + turn)}], 4)
        return ttft, usage

    with both() as engines:
        for client in (engines.without, engines.cached):
            answer(client, [system, {"role": "user", "content": "Say hello."}], 1)
        seen = compare(engines, 2 * ROUNDS, ask)
    ok = seen.baseline >= 5 * seen.ours
    return Measured(
        baseline=seen.baseline,
        ours=seen.ours,
        ratio=seen.baseline / seen.ours,
        ok=ok,
        reason=None if ok else f"{seen.baseline / seen.ours:.1f} times lower",
        figures={
            "prompt tokens": seen.usage.prompt_tokens,
            "of them found": seen.usage.prompt_tokens_details.cached_tokens,
        },
    )


def edited_message() -> Measured:
    roles = ("user", "assistant", "user", "assistant", "user")
    messages = [{"role": role, "content": words(60, seed=n)} for n, role in enumerate(roles, start=300)]
    edited = [*messages[:2], {"role": "user", "content": words(60, seed=399)}, *messages[3:]]
    with both() as engines:
        answer(engines.cached, messages, 16)
        _, _, ours = answer(engines.cached, edited, 16)
        _, _, baseline = answer(engines.without, edited, 16)
        common = _common_tokens(engines.cached, messages, edited)
    computed = ours.prompt_tokens - ours.prompt_tokens_details.cached_tokens
    whole = baseline.prompt_tokens - baseline.prompt_tokens_details.cached_tokens
    behind = ours.prompt_tokens - common
    ok = computed < behind + BLOCK_TOKENS
    return Measured(
        baseline=whole,
        ours=computed,
        ratio=whole / computed,
        ok=ok,
        reason=None if ok else f"{computed} tokens were computed, {behind} stand behind the edit",
        figures={"prompt tokens": ours.prompt_tokens, "tokens from the edit on": behind},
    )


def _common_tokens(client: openai.OpenAI, first: list[Message], second: list[Message]) -> int:
    """Tokens that both chats begin with."""
    one, other = (
        client.with_options(base_url=str(client.base_url).replace("/v1", "")).post(
            "/tokenize", cast_to=object, body={"model": MODEL, "messages": messages}
        )["tokens"]
        for messages in (first, second)
    )
    same = (n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    return next(same, min(len(one), len(other)))


CLAIMS = (
    Claim(
        id="4a",
        what="The fifth turn of a chat begins soon: earlier turns are in the prefix cache",
        baseline="the same chat without prefix cache",
        unit=f"seconds to the first token of turn 5, median of {ROUNDS} chats each",
        wanted="at least 60 % lower",
        concurrency="1",
        prompt_tokens=f"five messages of {WORDS} words, with the answers between them",
        output_tokens=f"{ANSWER}",
        clock=WALL_CLOCK,
        measure=later_turns,
    ),
    Claim(
        id="4b",
        what="A system prompt of 1,000 tokens is computed once",
        baseline="without prefix cache",
        unit=f"seconds to the first token of another question, median of {2 * ROUNDS} each",
        wanted="at least 5 times lower",
        concurrency="1",
        prompt_tokens=f"a system prompt of {SYSTEM_WORDS} words, then a question of 10",
        output_tokens="4",
        clock=WALL_CLOCK,
        measure=system_prompt,
    ),
    Claim(
        id="13",
        what="When the third of six messages is edited, only what follows is computed again",
        baseline="without prefix cache",
        unit="prompt tokens computed",
        wanted="the tokens from the edit on, and less than a block of 16 before it",
        concurrency="1",
        prompt_tokens="five messages of 60 words; the answer is the sixth",
        output_tokens="16",
        clock=COUNTED,
        measure=edited_message,
    ),
)
