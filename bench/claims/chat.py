"""Claims 4 and 13: what a chat's later turns cost, as users see it: `kvik serve` over HTTP, by the openai client."""

import contextlib
import random
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import openai

from bench.claims.claim import COUNTED, WALL_CLOCK, Claim, Measured
from bench.claims.engine import BLOCK_TOKENS
from bench.figures import engine

MODEL = "smollm2-135m-instruct"
ROUNDS, TURNS, WORDS, ANSWER, SYSTEM_WORDS = 3, 5, 150, 32, 780
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


def later_turns() -> Measured:
    times: dict[str, list[float]] = {"without": [], "cached": []}
    usage: Any = None
    with both() as engines:
        for turn in range(ROUNDS):
            for which in ("without", "cached") if turn % 2 else ("cached", "without"):
                ttft, seen = last_turn(getattr(engines, which), seed=turn)
                times[which].append(ttft)
                usage = seen if which == "cached" else usage
    baseline, ours = (statistics.median(times[which]) for which in ("without", "cached"))
    ok = ours <= 0.4 * baseline
    return Measured(
        baseline=baseline,
        ours=ours,
        ratio=baseline / ours,
        ok=ok,
        reason=None if ok else f"only {1 - ours / baseline:.0%} lower",
        figures={
            "lower by, per cent": 100 * (1 - ours / baseline),
            "prompt tokens of turn 5": usage.prompt_tokens,
            "of them found": usage.prompt_tokens_details.cached_tokens,
        },
    )


def system_prompt() -> Measured:
    times: dict[str, list[float]] = {"without": [], "cached": []}
    system = {"role": "system", "content": words(SYSTEM_WORDS, seed=7)}
    usage: Any = None
    with both() as engines:
        for client in (engines.without, engines.cached):
            answer(client, [system, {"role": "user", "content": "Say hello."}], 1)
        for turn in range(2 * ROUNDS):
            question = [system, {"role": "user", "content": words(10, seed=100 + turn)}]
            for which in ("without", "cached") if turn % 2 else ("cached", "without"):
                ttft, _, seen = answer(getattr(engines, which), question, 4)
                times[which].append(ttft)
                usage = seen if which == "cached" else usage
    baseline, ours = (statistics.median(times[which]) for which in ("without", "cached"))
    ok = baseline >= 5 * ours
    return Measured(
        baseline=baseline,
        ours=ours,
        ratio=baseline / ours,
        ok=ok,
        reason=None if ok else f"{baseline / ours:.1f} times lower",
        figures={"prompt tokens": usage.prompt_tokens, "of them found": usage.prompt_tokens_details.cached_tokens},
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
        )["tokens"]  # type: ignore[index]
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
