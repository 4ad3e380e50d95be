import asyncio
from collections.abc import AsyncIterator

import aiohttp
import pytest

from kvik_operator.telemetry import probes
from tests.cluster.free_ports import free_ports
from tests.support.waiting import PATIENCE


class State:
    live: tuple[str, ...] = ()
    ready: tuple[str, ...] = ("nothing is watched yet",)


@pytest.fixture
async def served() -> AsyncIterator[tuple[State, str]]:
    state = State()
    (port,) = free_ports("127.0.0.1", 1)
    serving = asyncio.create_task(
        probes.serve(
            "127.0.0.1", port, live=lambda: state.live, ready=lambda: state.ready, metrics=lambda: b"kvik_x 1\n"
        )
    )
    await _listening(port)
    yield state, f"http://127.0.0.1:{port}"
    serving.cancel()
    await asyncio.gather(serving, return_exceptions=True)


async def test_probes_answer_what_is_wrong_in_words(served: tuple[State, str]) -> None:
    state, url = served
    async with aiohttp.ClientSession() as session:
        async with session.get(f"{url}/live") as response:
            assert (response.status, await response.text()) == (200, "ok\n")
        async with session.get(f"{url}/ready") as response:
            assert (response.status, await response.text()) == (503, "nothing is watched yet\n")
        state.live, state.ready = ("a watch is deaf",), ()
        async with session.get(f"{url}/live") as response:
            assert (response.status, await response.text()) == (503, "a watch is deaf\n")
        async with session.get(f"{url}/ready") as response:
            assert response.status == 200


@pytest.mark.parametrize("probe", ["live", "ready"])
async def test_who_asks_for_a_probe_keeps_no_connection(served: tuple[State, str], probe: str) -> None:
    _, url = served
    async with aiohttp.ClientSession() as session, session.get(f"{url}/{probe}") as response:
        assert response.headers["Connection"] == "close"


async def test_the_metrics_page_is_prometheus_text(served: tuple[State, str]) -> None:
    _, url = served
    async with aiohttp.ClientSession() as session, session.get(f"{url}/metrics") as response:
        assert response.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert await response.text() == "kvik_x 1\n"


async def _listening(port: int) -> None:
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionRefusedError:
                await asyncio.sleep(0.002)
            else:
                writer.close()
                await writer.wait_closed()
                return
