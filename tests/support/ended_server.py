"""Listening, and the end of it without loose ends, for servers whose clients may come at any moment."""

import asyncio
import socket

from aiohttp import web

_TURNS = 5
"""Of the loop: a client that was accepted has its connection after three."""


async def listen(runner: web.AppRunner, address: str, port: int) -> socket.socket:
    """Set it up and serve there. Port 0: any. Returns the socket, for `end`."""
    await runner.setup()
    listening = socket.create_server((address, port), backlog=128)
    await web.SockSite(runner, listening).start()
    return listening


async def end(runner: web.AppRunner, listening: socket.socket) -> None:
    """Without this order asyncio drops a client that it has accepted in the turn of the loop in which the server is
    closed, and the collector finds an open socket, in whichever test runs by then."""
    await accept_no_more(listening.fileno())
    await runner.cleanup()
    await asyncio.sleep(0)


async def accept_no_more(listening: int) -> None:
    """On this socket; who was accepted already has its connection when it returns."""
    asyncio.get_running_loop().remove_reader(listening)
    for _ in range(_TURNS):
        await asyncio.sleep(0)
