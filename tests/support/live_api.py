"""The API's real application on a free port, in the test's own event loop, in front of a scripted core."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp

from kvik_engine.api.app import api_app, probe_app
from kvik_engine.api.connection import listen
from kvik_engine.api.drain import Drain
from kvik_engine.api.keys import keys_or_refuse
from kvik_engine.api.main import ttft_target
from kvik_engine.api.metrics_page import MetricsPage
from kvik_engine.api.ports import bind
from kvik_engine.api.request_metrics import RequestMetrics
from kvik_engine.api.service import Service
from kvik_engine.api.status import Status
from kvik_engine.config import EngineConfig
from kvik_engine.ipc.client import EngineClient
from tests.support.byte_tokenizer import TEMPLATE, byte_text_model
from tests.support.scripted_core import ScriptedCore, connected
from tests.support.waiting import PATIENCE

MODEL = "org/tiny"
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hi"}]}


@dataclass
class Reply:
    """A whole HTTP answer."""

    status: int
    headers: Any
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)

    @property
    def error(self) -> dict[str, Any]:
        """The error object, after checking that it has exactly OpenAI's keys."""
        error: dict[str, Any] = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert error["code"] is None or isinstance(error["code"], str)
        return error

    @property
    def events(self) -> list[Any]:
        """The JSON events of a stream that ended with [DONE]."""
        data = [line.removeprefix("data: ") for line in self.text.split("\n\n") if line.startswith("data: ")]
        assert data[-1] == "[DONE]"
        assert "[DONE]" not in data[:-1]
        return [json.loads(line) for line in data[:-1]]


@dataclass
class LiveApi:
    """The application and what is behind it."""

    url: str
    port: int
    metrics_url: str
    core: ScriptedCore
    client: EngineClient
    service: Service
    status: Status
    http: aiohttp.ClientSession

    async def post(self, path: str, body: object, **options: Any) -> Reply:
        """POST JSON, or bytes as they are."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"Content-Type": "application/json", **options.pop("headers", {})}
        async with self.http.post(self.url + path, data=data, headers=headers, **options) as response:
            return Reply(response.status, response.headers, await response.text())

    async def get(self, path: str, base: str | None = None) -> Reply:
        async with self.http.get((base or self.url) + path) as response:
            return Reply(response.status, response.headers, await response.text())

    async def chat(self, **fields: Any) -> Reply:
        return await self.post("/v1/chat/completions", CHAT | fields)

    async def complete(self, **fields: Any) -> Reply:
        return await self.post("/v1/completions", {"prompt": "Hi"} | fields)


def engine_config(run_dir: Path, **more: Any) -> EngineConfig:
    """A small configuration."""
    base: dict[str, Any] = {"source": "tiny", "model_path": "/nowhere", "model_name": MODEL}
    base |= {"max_requests": 64, "max_batch_tokens": 4096, "chunked_prefill_tokens": 512, "max_queued_requests": 256}
    return EngineConfig(**(base | {"cache_dir": str(run_dir), "run_dir": str(run_dir)} | more))


@asynccontextmanager
async def live_api(run_dir: Path, *, template: str | None = TEMPLATE, **config: Any) -> AsyncIterator[LiveApi]:
    """Core, client and application, all in this loop."""
    core = ScriptedCore(run_dir / "core.sock")
    async with connected(core) as client:
        settings = engine_config(run_dir, **config)
        drain, metrics = Drain(), RequestMetrics(MODEL, slo=ttft_target(settings))
        keys = keys_or_refuse(settings.api_keys_file)
        status = Status(settings, client, drain, metrics, keys)
        status.warm()
        page = MetricsPage(settings, client, metrics, keys, drain=drain)
        service = Service(settings, byte_text_model(template), client, metrics, drain, created=1, keys=keys)
        runner, server = await listen(api_app(service, status, page), api_socket := bind("127.0.0.1", 0))
        probe_runner, probe_server = await listen(probe_app(status, page), probe_socket := bind("127.0.0.1", 0))
        port, metrics_port = api_socket.getsockname()[1], probe_socket.getsockname()[1]
        timeout = aiohttp.ClientTimeout(total=PATIENCE)
        async with aiohttp.ClientSession(timeout=timeout) as http:
            url = f"http://127.0.0.1:{port}"
            metrics_url = f"http://127.0.0.1:{metrics_port}"
            yield LiveApi(url, port, metrics_url, core, client, service, status, http)
        for listening in (server, probe_server):
            listening.close()
        await asyncio.gather(runner.cleanup(), probe_runner.cleanup())
        service.threads.shutdown(wait=False)
