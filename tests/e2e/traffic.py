"""Chat traffic from inside the cluster: runs in a pod of the engine's image, which has Python and aiohttp.

    python3 traffic.py URL MODEL CLIENTS PROMPT_WORDS MAX_TOKENS

Each client keeps its connection, streams one answer after the other and never retries. It runs until the file
/tmp/stop appears, lets every client finish its answer, and prints one line of JSON: how many requests ended well, what
went wrong with the others, the time of the slowest first token, and how long it all took.
"""

import asyncio
import json
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import aiohttp

STOP = Path("/tmp/stop")


@dataclass
class Tally:
    succeeded: int = 0
    failures: list[str] = field(default_factory=list)
    slowest_first_token: float = 0.0
    seconds: float = 0.0
    """From the first request to the end of the last answer."""


def stopped() -> bool:
    return STOP.exists()


async def one_answer(session: aiohttp.ClientSession, url: str, body: dict[str, object], tally: Tally) -> None:
    """Streams one answer; it ended well if it had a finish_reason and then `[DONE]`, and no error event."""
    started = time.monotonic()
    finished, done, first = None, False, None
    try:
        async with session.post(f"{url}/chat/completions", json=body) as response:
            if response.status != 200:
                tally.failures.append(f"{response.status} {(await response.text())[:200]}")
                return
            async for line in response.content:
                if line.strip() == b"data: [DONE]":
                    done = True
                elif line.startswith(b"data: "):
                    event = json.loads(line[6:])
                    if "error" in event:
                        tally.failures.append(f"error event {event['error']}")
                        return
                    first = first or time.monotonic()
                    finished = event["choices"][0]["finish_reason"] or finished if event["choices"] else finished
    except (aiohttp.ClientError, TimeoutError) as error:
        tally.failures.append(f"{type(error).__name__}: {error} after {time.monotonic() - started:.1f} s")
        return
    if finished and done and first:
        tally.succeeded += 1
        tally.slowest_first_token = max(tally.slowest_first_token, first - started)
    else:
        tally.failures.append(f"stream ended early: finish_reason {finished}, done {done}")


async def client(number: int, url: str, model: str, words: int, max_tokens: int, tally: Tally) -> None:
    timeout = aiohttp.ClientTimeout(total=300)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=1)) as session:
        turn = 0
        while not stopped():
            turn += 1
            prompt = f"Client {number}, turn {turn}. " + " ".join(f"word{n * number % 97}" for n in range(words))
            body = {
                "model": model,
                "messages": [{"role": "user", "content": prompt}],
                "max_tokens": max_tokens,
                "ignore_eos": True,
                "stream": True,
            }
            await one_answer(session, url, body, tally)


async def main() -> None:
    url, model, clients, words, max_tokens = sys.argv[1], sys.argv[2], *(int(number) for number in sys.argv[3:6])
    tally, started = Tally(), time.monotonic()
    await asyncio.gather(*(client(number, url, model, words, max_tokens, tally) for number in range(clients)))
    tally.seconds = time.monotonic() - started
    print(json.dumps(asdict(tally)), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
