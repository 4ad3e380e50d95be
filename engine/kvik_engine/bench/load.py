"""Sends a workload: closed (so many clients, one request at a time each), or open (by arrival times, come what may)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence

from kvik_engine.bench.figures import Failure, Result
from kvik_engine.bench.prompts import Message, Script

Chat = Callable[[Sequence[Message], int], Awaitable[Result]]


async def closed(
    scripts: Sequence[Script], clients: int, chat: Chat, clock: Callable[[], float] = time.perf_counter
) -> list[Result]:
    """Each client takes the next conversation when its last one is over."""
    left, results = iter(scripts), list[Result]()

    async def client() -> None:
        for script in left:
            results.extend(await talk(script, chat, clock))

    async with asyncio.TaskGroup() as group:
        for _ in range(min(clients, len(scripts))):
            group.create_task(client())
    return results


async def opened(
    scripts: Sequence[Script], arrivals: Sequence[float], chat: Chat, clock: Callable[[], float] = time.perf_counter
) -> tuple[list[Result], float]:
    """Each conversation begins at its time. Also the most seconds that one began too late, for lack of a CPU."""
    began, latest, tasks = clock(), 0.0, list[asyncio.Task[list[Result]]]()
    async with asyncio.TaskGroup() as group:
        for script, at in zip(scripts, arrivals, strict=True):
            await asyncio.sleep(max(0.0, began + at - clock()))
            latest = max(latest, clock() - began - at)
            tasks.append(group.create_task(talk(script, chat, clock)))
    return [result for task in tasks for result in task.result()], latest


async def talk(script: Script, chat: Chat, clock: Callable[[], float]) -> list[Result]:
    """All turns of a conversation. What follows a turn that failed cannot be said, and counts as failed, too."""
    results, messages = list[Result](), list(script.opening)
    for turn, message in zip(script.conversation.turns, script.says, strict=True):
        if results and isinstance(results[-1], Failure):
            now = clock()
            results.append(Failure("not sent", "an earlier turn of its conversation failed", now, now))
            continue
        messages.append(message)
        result = await chat(messages, turn.output_tokens)
        results.append(result)
        if not isinstance(result, Failure):
            messages.append({"role": "assistant", "content": result.text})
    return results
