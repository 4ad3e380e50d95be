"""The scraper against a real HTTP server: only whole, well-formed answers of 200 are readings."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from aiohttp import web

from kvik_operator.autoscale import scrape
from kvik_operator.autoscale.parse import parse_load
from kvik_operator.autoscale.scrape import Scraper, Target
from kvik_operator.autoscale.types import LoadReading
from tests.support.waiting import PATIENCE

LOAD = {
    "schema": 1,
    "state": "ready",
    "step": 1,
    "kv_blocks_used": 0,
    "kv_blocks_total": 10,
    "running": 0,
    "waiting": 4,
    "refused_total": 0,
    "waiting_prompt_tokens": 0,
    "prefill_tokens_per_second": None,
    "ttft_p90_seconds": None,
    "warm_since": None,
}


class Meter:
    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()

    def scraped(self, outcome: str) -> None:
        self.outcomes[outcome] += 1


Serve = Callable[[Callable[[web.Request], Awaitable[web.StreamResponse]]], Awaitable[Target]]


@pytest.fixture
async def serve() -> AsyncIterator[Serve]:
    runners = []

    async def start(handler: Callable[[web.Request], Awaitable[web.StreamResponse]]) -> Target:
        app = web.Application()
        app.router.add_get("/{path}", handler)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        runners.append(runner)
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        return Target(f"pod-{len(runners)}", "127.0.0.1", runner.addresses[0][1])

    yield start
    for runner in runners:
        await runner.cleanup()


async def answering(_: web.Request) -> web.StreamResponse:
    return web.json_response(LOAD)


async def test_readings_come_by_pod_and_the_others_are_missing(serve: Serve) -> None:
    async def failing(_: web.Request) -> web.StreamResponse:
        return web.Response(status=500)

    async def nonsense(_: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>")

    async def endless(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(1000):
            await response.write(b" " * 10_000)
        return response

    async def elsewhere(_: web.Request) -> web.StreamResponse:
        raise web.HTTPFound("/other")

    targets = [await serve(handler) for handler in (answering, failing, nonsense, endless, elsewhere)]
    targets.append(Target("refused", "127.0.0.1", 1))
    meter = Meter()
    async with Scraper(lambda: 7.0, meter) as scraper:
        readings = await scraper.loads(targets)
    assert {uid: (reading.at, reading.waiting) for uid, reading in readings.items()} == {"pod-1": (7.0, 4)}
    assert meter.outcomes == {"ok": 1, "refused": 2, "unreadable": 2, "unreachable": 1}


async def test_a_pod_whose_answer_we_choke_on_does_no_harm_to_the_others(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One such answer to `GET /load` once ended the whole operator, again and again."""

    def choke(body: bytes, at: float) -> LoadReading:
        if b"choke" in body:
            raise OverflowError
        return parse_load(body, at)

    async def huge(_: web.Request) -> web.StreamResponse:
        return web.json_response(LOAD | {"waiting": 10**400})

    async def choking(_: web.Request) -> web.StreamResponse:
        return web.json_response(LOAD | {"choke": True})

    monkeypatch.setattr(scrape, "parse_load", choke)
    meter = Meter()
    async with Scraper(lambda: 0.0, meter) as scraper:
        readings = await scraper.loads([await serve(handler) for handler in (huge, choking, answering)])
        assert await scraper.info(Target("nowhere", "not an address", 1)) is None
    assert list(readings) == ["pod-3"]
    assert meter.outcomes["unreadable"] == 2
    assert caplog.text.count("this is a bug") == 1


async def test_a_silent_pod_costs_its_time_limit_and_no_more(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent(_: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        raise AssertionError

    monkeypatch.setattr(scrape, "TIMEOUT_SECONDS", 1.0)  # enough for the one that answers, on a busy machine too
    targets = [await serve(silent), await serve(answering)]
    async with Scraper(lambda: 0.0, Meter()) as scraper:
        readings = await asyncio.wait_for(scraper.loads(targets), PATIENCE)
    assert list(readings) == ["pod-2"]


async def test_at_most_sixty_four_are_asked_at_once(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scrape, "TIMEOUT_SECONDS", 60.0)  # a busy machine is not what is tested
    now, most = 0, 0

    async def counting(_: web.Request) -> web.StreamResponse:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1
        return web.json_response(LOAD)

    one = await serve(counting)
    targets = [Target(f"pod-{n}", one.host, one.port) for n in range(200)]
    async with Scraper(lambda: 0.0, Meter()) as scraper:
        assert len(await scraper.loads(targets)) == 200
    assert most <= scrape.AT_ONCE


async def test_info_of_an_engine_that_is_not_warm_is_asked_for_again(serve: Serve) -> None:
    async def cold(_: web.Request) -> web.StreamResponse:
        return web.Response(status=503)

    async def warm(_: web.Request) -> web.StreamResponse:
        return web.Response(text=json.dumps({"schema": 1, "version": "0.2.0"}))

    async with Scraper(lambda: 0.0, Meter()) as scraper:
        assert await scraper.info(await serve(cold)) is None
        info = await scraper.info(await serve(warm))
    assert info is not None
    assert info.version == "0.2.0"


def test_an_ipv6_address_is_bracketed() -> None:
    assert Target("u", "fd00::1", 8001).url("/load") == "http://[fd00::1]:8001/load"
