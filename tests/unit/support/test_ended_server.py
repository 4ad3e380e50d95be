"""How servers beside the fault tests end while their clients still come."""

import asyncio
import contextlib
import gc
import socket

import pytest
from aiohttp import web

from tests.support.ended_server import end, listen


@pytest.mark.parametrize("turns", range(6))
async def test_a_client_that_comes_while_the_server_ends_leaves_no_open_socket(turns: int) -> None:
    """An operator that looked for load at the moment at which a pod went: some later test failed for it."""
    runner = web.AppRunner(web.Application(), access_log=None, shutdown_timeout=0.1)
    listening = await listen(runner, "127.0.0.1", 0)
    with socket.create_connection(listening.getsockname()) as client:
        for _ in range(turns):
            await asyncio.sleep(0)
        await end(runner, listening)
        gc.collect()
        with contextlib.suppress(ConnectionResetError):  # it was never accepted
            assert client.recv(1) == b""
