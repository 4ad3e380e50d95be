"""The API process: `python -m kvik_engine.api.main RUN_DIR/config.json`, started by launch.

Exits 0 when it was told to stop and has drained, 78 when it cannot start.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from pathlib import Path

import uvloop

from kvik_engine.api.admin_socket import serve_admin
from kvik_engine.api.app import api_app, probe_app
from kvik_engine.api.connection import listen, raise_file_limit
from kvik_engine.api.drain import LINGER_SECONDS, Drain
from kvik_engine.api.keys import keys_or_refuse
from kvik_engine.api.metrics_page import MetricsPage
from kvik_engine.api.ports import bind_or_refuse
from kvik_engine.api.probe_server import ProbeServer
from kvik_engine.api.request_metrics import RequestMetrics, TtftTarget
from kvik_engine.api.service import Service
from kvik_engine.api.status import Status
from kvik_engine.config import SLO_CLASSES, EngineConfig
from kvik_engine.errors import StartError
from kvik_engine.exits import EXIT_START_ERROR, report_start_error
from kvik_engine.ipc.client import EngineClient
from kvik_engine.ipc.framing import core_socket
from kvik_engine.log import configure_logging
from kvik_engine.provenance import read_provenance
from kvik_engine.text.tokenizer import load_text_model

log = logging.getLogger(__name__)

_SWITCH_SECONDS = 0.001
"""How long a worker thread may keep the interpreter from the event loop; Python's own default is 5 ms."""
_FAREWELL_SECONDS = 2.0
"""How long failed streams may take to write their error event."""


def main() -> int:
    configure_logging("api", queued=True)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    sys.setswitchinterval(_SWITCH_SECONDS)
    raise_file_limit()
    config = EngineConfig.read(Path(sys.argv[1]))
    try:
        uvloop.run(ApiProcess(config).run())
    except StartError as error:
        report_start_error(error)
        return EXIT_START_ERROR
    return 0


class ApiProcess:
    """Everything of the process, built in order and torn down in reverse."""

    def __init__(self, config: EngineConfig) -> None:
        assert config.tokenizer_path is not None, "convert fills tokenizer_path"
        self._config = config
        self._client = EngineClient(core_socket(config.run_dir), api_id=os.getpid())
        self._drain = Drain()
        self._keys = keys_or_refuse(config.api_keys_file)
        metrics = RequestMetrics(config.model_name, slo=ttft_target(config))
        self._status = Status(
            config,
            self._client,
            self._drain,
            metrics,
            self._keys,
            model_fetched=read_provenance(Path(config.model_path)).finished_at,
        )
        self._page = MetricsPage(config, self._client, metrics, self._keys, drain=self._drain)
        self._service = Service(
            config=config,
            text=load_text_model(Path(config.tokenizer_path)),
            client=self._client,
            metrics=metrics,
            drain=self._drain,
            created=int(time.time()),
            keys=self._keys,
        )
        self._signals = 0
        self._stop: asyncio.Future[float] | None = None
        """Resolved with the linger time when the process is told to stop."""

    async def run(self) -> None:
        """Serve until told to stop, drain, return. StartError when a port is taken."""
        self._stop = asyncio.get_running_loop().create_future()
        api_socket = bind_or_refuse(self._config.host, self._config.port)
        probes = ProbeServer(
            lambda: probe_app(self._status, self._page), bind_or_refuse(self._config.host, self._config.metrics_port)
        )
        self._listen_to_signals()
        self._client.start()
        probes.start()
        runner, server = await listen(api_app(self._service, self._status, self._page), api_socket)
        admin = await serve_admin(Path(self._config.run_dir), self._drain_command)
        background = [asyncio.create_task(self._tick()), asyncio.create_task(self._notice_warm())]
        if self._keys is not None:
            background.append(asyncio.create_task(self._keys.follow()))
        linger = await self._stop
        await self._drain.run(linger=linger, timeout=self._config.drain_timeout)
        await self._say_farewell()
        for task in background:
            task.cancel()
        admin.close()
        server.close()
        await runner.cleanup()
        await self._client.stop()
        probes.stop()

    def _listen_to_signals(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGTERM, self._signalled, LINGER_SECONDS)
        loop.add_signal_handler(signal.SIGINT, self._signalled, 0.0)
        loop.add_signal_handler(signal.SIGUSR1, self._end_now)

    def _signalled(self, linger: float) -> None:
        """The first signal drains, the second ends the running requests, each with an error.

        `kvik drain` is no signal: the SIGTERM that usually follows it leaves the streams alone.
        """
        self._signals += 1
        if self._signals > 1:
            self._drain.abort()
        self._begin_stop(linger)

    def _end_now(self) -> None:
        """launch gives the engine up: the running requests get their error at once."""
        self._drain.abort()
        self._begin_stop(0.0)

    def _drain_command(self) -> dict[str, object]:
        self._drain.ready = False
        self._begin_stop(LINGER_SECONDS)
        return {"state": "draining", "running": self._drain.active}

    def _begin_stop(self, linger: float) -> None:
        assert self._stop is not None
        if not self._stop.done():
            self._stop.set_result(linger)

    async def _say_farewell(self) -> None:
        """End what is still running with an error event."""
        self._client.fail_all()
        await self._drain.settle(_FAREWELL_SECONDS)

    async def _tick(self) -> None:
        while True:
            self._status.tick()
            await asyncio.sleep(1.0)

    async def _notice_warm(self) -> None:
        await self._client.wait_ready()
        self._status.warm()
        log.info(
            "ready",
            extra={
                "url": f"http://{self._config.host}:{self._config.port}/v1",
                "model": self._config.model_name,
                "metrics": f"http://{self._config.host}:{self._config.metrics_port}/metrics",
            },
        )


def ttft_target(config: EngineConfig) -> TtftTarget | None:
    """The target that requests of the engine's class have, if any."""
    return None if config.slo_ttft is None else TtftTarget(config.slo_ttft, SLO_CLASSES.index(config.slo_class))


if __name__ == "__main__":
    sys.exit(main())
