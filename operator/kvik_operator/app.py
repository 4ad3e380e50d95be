"""The composition root: the only place that constructs clients, loops and threads, and ties them together.

    main thread   kopf, alone: watches -> store and queue; started again with back-off when it fails
    lease         the election
    reconcile     workers on the queue (leader only), the relist, the Events
    scale         scrape -> decide -> /scale (writes by the leader only)
    probes        /live, /ready, /metrics
    metrics-api   the custom and external metrics APIs, where they are asked for
    keda          the external scaler for KEDA, where it is asked for

SIGTERM ends kopf, closes the fence, clears the Lease and exits 0. A lost Lease or a crashed loop ends the process.
"""

import asyncio
import contextlib
import functools
import logging
import os
import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any, Final, NoReturn

from kvik_operator.autoscale.board import Board
from kvik_operator.autoscale.drivers import Means
from kvik_operator.autoscale.loop import ScaleLoop
from kvik_operator.autoscale.rivals import Rivals
from kvik_operator.autoscale.scrape import Scraper
from kvik_operator.config import OperatorConfig
from kvik_operator.errors import ClusterError, Refused
from kvik_operator.keda.options import KedaOptions
from kvik_operator.kube.client import ClusterClient
from kvik_operator.kube.discovery import served_optional_kinds, wait_until_served
from kvik_operator.kube.kinds import WatchedKind, watched
from kvik_operator.kube.leases import LeaseClient
from kvik_operator.kube.limiter import TokenBucket
from kvik_operator.kube.metadata import list_versions
from kvik_operator.kube.recorder import Recorder
from kvik_operator.kube.registration import RegistrationClient
from kvik_operator.kube.secrets import SecretClient
from kvik_operator.kube.store import Store
from kvik_operator.kube.transport import Transport, connect
from kvik_operator.metrics_api.service import MetricsApiOptions, MetricsApiService
from kvik_operator.names import API_VERSION, CRD_NAME, PLURAL, ChildKind, PoolKey
from kvik_operator.reconcile.reconcile import Reconciler
from kvik_operator.telemetry import probes
from kvik_operator.telemetry.metrics import OperatorMetrics
from kvik_operator.watch.events import registry_for, settings_for, watch_until_stopped
from kvik_operator.watch.heartbeat import Heartbeat, Limits
from kvik_operator.watch.leader import Elector
from kvik_operator.watch.queue import Backoff
from kvik_operator.watch.relist import Relister
from kvik_operator.watch.threads import LoopThread, run_loop
from kvik_operator.watch.workers import Workers

log = logging.getLogger(__name__)

VERSION: Final = version("kvik-operator")
USER_AGENT: Final = f"kvik-operator/{VERSION}"
WRITES_PER_SECOND: Final = 50.0
WRITES_AT_ONCE: Final = 100.0
LEASE_REQUEST_SECONDS: Final = 5.0
CRD_WAIT_SECONDS: Final = 2.0
FEED_SETTLES_SECONDS: Final = 2.0
OPTIONAL_APIS_SECONDS: Final = 30.0
"""Between two looks whether an optional API has come or gone."""
JOIN_SECONDS: Final = 3.0
TIDY_SECONDS: Final = 1.0
EXIT_LOST: Final = 1
EXIT_CRASHED: Final = 70


def run(config: OperatorConfig) -> int:
    """Until SIGTERM or SIGINT; returns the exit status."""
    return Operator(config).run()


class Operator:
    def __init__(self, config: OperatorConfig) -> None:
        self._config = config
        self._stopping = False
        self._store = Store()
        self._metrics = OperatorMetrics(VERSION, self._store)
        self._board = Board(time.monotonic)
        self._workers = Workers(backoff=Backoff(), meter=self._metrics, rng=random.Random())
        self._elector = Elector(config.identity, config.lease_times, lost=lambda: _exit(EXIT_LOST))
        self._bucket = TokenBucket(WRITES_PER_SECOND, WRITES_AT_ONCE, time.monotonic)
        self._recorder = Recorder(bucket=self._bucket, fence=self._elector, instance=config.identity, now=_utcnow)
        self._heartbeat = Heartbeat(
            limits=Limits(feed_down=config.feed_down_after),
            stuck_for=self._workers.stuck_for,
            deaf_since=lambda: self._relister.deaf_since,
            listed_at=lambda: self._relister.last_success,
        )
        self._relister = Relister(
            store=self._store,
            watched=self._watched,
            namespaces=config.namespaces,
            enqueue=self._workers.add,
            period=config.relist_period,
            patience=config.deaf_after,
            watches_expected=self._heartbeat.watches_expected,
        )
        loops = {
            "probes": self._probes,
            "lease": self._lease,
            "reconcile": self._reconcile,
            "scale": self._scale,
        }
        self._unready = [self._heartbeat.not_ready]
        if config.metrics_api is not None:
            metrics_api = self._metrics_api(config.metrics_api)
            loops["metrics-api"] = functools.partial(self._serve_metrics_api, metrics_api, config.metrics_api)
            self._unready.append(metrics_api.not_ready)
        if config.keda is not None:
            # gRPC and its compiler of .proto files take 25 MB, so they are imported only where they are needed.
            from kvik_operator.keda.service import ScalerService

            scaler = ScalerService(
                config.keda,
                store=self._store,
                board=self._board,
                meter=self._metrics,
                may_write=self._elector.may_write,
                utcnow=_utcnow,
            )
            loops["keda"] = functools.partial(self._serve_keda, scaler.run, config.keda)
            self._unready.append(scaler.not_ready)
        self._threads = [LoopThread(name, main, lambda: _exit(EXIT_CRASHED)) for name, main in loops.items()]
        self._export_gauges()

    def run(self) -> int:
        self._catch_signals()
        log.info("starting", extra={"version": VERSION, "identity": self._config.identity})
        for thread in self._threads:
            thread.start()
        self._feed()
        self._stop()
        deadline = time.monotonic() + JOIN_SECONDS
        for thread in self._threads:
            if not thread.join(max(0.0, deadline - time.monotonic())):
                log.warning("a thread did not end in time", extra={"thread_name": thread.name})
        log.info("stopped")
        return 0

    def _stop(self) -> None:
        """Also called by signals, so without locks: the fence closes and the Lease is cleared while kopf still ends."""
        self._stopping = True
        for thread in self._threads:
            thread.stop()

    # --- main thread ---

    def _feed(self) -> None:
        """Keep kopf running until the process is told to stop."""
        backoff, rng, failures = Backoff(first=1.0, cap=8.0), random.Random(), 0
        while not self._told_to_stop():
            started = time.monotonic()
            try:
                run_loop(self._watch, TIDY_SECONDS)
            except Exception as error:
                log.error("the watches ended", extra={"error": f"{type(error).__name__}: {error}"})
            finally:
                self._heartbeat.feed_stopped()
                self._catch_signals()  # the closed loop took its handlers with it
            if self._told_to_stop():
                return
            self._metrics.watches_restarted()
            failures = 1 if time.monotonic() - started > backoff.cap else failures + 1
            again = time.monotonic() + backoff.delay(failures, rng)
            while time.monotonic() < again and not self._told_to_stop():
                time.sleep(0.1)

    def _told_to_stop(self) -> bool:
        return self._stopping

    async def _watch(self) -> None:
        config = self._config
        async with _transport(config) as transport:
            if not await wait_until_served(
                transport, API_VERSION, PLURAL, on_wait=self._not_served, pause=self._pause_for_crd
            ):
                return
            self._workers.add(self._store.serve(await self._optional_kinds(transport)) | self._store.pool_keys())
        self._heartbeat.api_served()
        await watch_until_stopped(
            settings_for(self._watched(), config.watch_inactivity),
            registry_for(self._watched(), self._sink, self._workers.add),
            config.namespaces,
            on_signal=self._stop,
            stopping=self._told_to_stop,
            background=self._beside_kopf,
        )

    async def _beside_kopf(self) -> None:
        """kopf counts as running once it has brought something, or has not failed for a while.

        Ends, and kopf with it, when an optional API comes or goes.
        """
        async with self._beating("watch"), _transport(self._config) as transport:
            await asyncio.sleep(FEED_SETTLES_SECONDS)
            self._heartbeat.feed_started()
            await self._until_kinds_change(transport)

    async def _until_kinds_change(self, transport: Transport) -> None:
        while True:
            await asyncio.sleep(OPTIONAL_APIS_SECONDS)
            try:
                if await self._optional_kinds(transport) != self._store.served():
                    return
            except ClusterError as error:
                log.warning("the APIs that are served could not be listed", extra={"error": str(error)})

    async def _optional_kinds(self, transport: Transport) -> frozenset[ChildKind]:
        """Those that are served and that this operator may use. Raises ClusterError."""
        return frozenset() if self._config.keda is None else await served_optional_kinds(transport)

    def _watched(self) -> Sequence[WatchedKind]:
        return watched(self._store.served())

    def _sink(self, kind: str, deleted: bool, obj: Mapping[str, Any]) -> Iterable[PoolKey]:
        self._heartbeat.feed_started()
        return self._store.remove(kind, obj) if deleted else self._store.upsert(kind, obj)

    def _not_served(self, problem: ClusterError | None) -> None:
        if problem is None:
            log.warning("waiting for the CRD to be installed", extra={"crd": CRD_NAME})
        else:
            log.warning("waiting for the API server", extra={"error": str(problem)})
        if problem is None or isinstance(problem, Refused):
            self._heartbeat.api_awaited()

    async def _pause_for_crd(self) -> bool:
        """Whether to go on waiting; kopf's signal handling does not run yet."""
        for _ in range(10):
            if self._stopping:
                return False
            await asyncio.sleep(CRD_WAIT_SECONDS / 10)
        return True

    def _catch_signals(self) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: self._stop())

    # --- other threads ---

    async def _lease(self) -> None:
        config = self._config
        async with _transport(config) as transport, self._beating("lease"):
            lease = LeaseClient(transport, config.lease_namespace, config.lease_name, LEASE_REQUEST_SECONDS)
            try:
                await self._elector.run(lease, lambda: self._workers.open(self._store.keys))
            finally:
                await self._elector.release()

    async def _reconcile(self) -> None:
        config = self._config
        async with _transport(config) as transport, self._beating("reconcile"), asyncio.TaskGroup() as tasks:
            reconciler = Reconciler(self._store, self._cluster(transport), self._board, config.reconcile, _utcnow)
            tasks.create_task(self._relister.run(lambda kind, namespace: list_versions(transport, kind, namespace)))
            tasks.create_task(self._recorder.run(transport))
            await self._workers.run(config.workers, reconciler.reconcile)

    async def _scale(self) -> None:
        config, metrics = self._config, self._metrics
        scraper = Scraper(time.monotonic, metrics)
        async with _transport(config) as transport, scraper, self._beating("scale"):
            cluster = self._cluster(transport)
            await ScaleLoop(
                store=self._store,
                board=self._board,
                scraper=scraper,
                writer=cluster,
                rivals=Rivals(cluster.list_autoscalers, time.monotonic, everywhere=not config.namespaces),
                means=self._means,
                meter=metrics,
                may_write=self._elector.may_write,
                enqueue=self._workers.add,
                clock=time.monotonic,
                utcnow=_utcnow,
            ).run()

    def _means(self) -> Means:
        config = self._config
        return Means(
            metrics_api=config.metrics_api is not None,
            keda=config.keda is not None,
            keda_served=ChildKind.SCALED_OBJECT in self._store.served(),
        )

    async def _probes(self) -> None:
        config = self._config
        await probes.serve(
            config.probe_host,
            config.probe_port,
            live=self._heartbeat.problems,
            ready=lambda: tuple(problem for part in self._unready for problem in part()),
            metrics=self._metrics.page,
        )

    def _metrics_api(self, options: MetricsApiOptions) -> MetricsApiService:
        return MetricsApiService(
            options,
            store=self._store,
            board=self._board,
            meter=self._metrics,
            may_write=self._elector.may_write,
            clock=time.monotonic,
            utcnow=_utcnow,
        )

    async def _serve_metrics_api(self, service: MetricsApiService, options: MetricsApiOptions) -> None:
        async with _transport(self._config) as transport, self._beating("metrics-api"):
            cluster = self._cluster(transport)
            await service.run(RegistrationClient(transport, cluster, options.namespace, options.secret))

    async def _serve_keda(
        self, serve: Callable[[SecretClient, SecretClient], Awaitable[None]], options: KedaOptions
    ) -> None:
        async with _transport(self._config) as transport, self._beating("keda"):
            cluster = self._cluster(transport)
            ours = SecretClient(transport, cluster, options.namespace, options.secret)
            await serve(ours, SecretClient(transport, cluster, options.client_namespace, options.client_secret))

    def _cluster(self, transport: Transport) -> ClusterClient:
        return ClusterClient(
            transport,
            bucket=self._bucket,
            fence=self._elector,
            emitter=self._recorder,
            counter=self._metrics,
            stored=self._store.upsert,
        )

    @contextlib.asynccontextmanager
    async def _beating(self, loop_name: str) -> AsyncIterator[None]:
        beat = asyncio.create_task(self._heartbeat.beat(loop_name))
        try:
            yield
        finally:
            beat.cancel()

    def _export_gauges(self) -> None:
        gauge = self._metrics.gauge
        gauge("kvik_operator_leader", "1 while this replica may write.", lambda: float(self._elector.may_write()))
        gauge("kvik_operator_queue_depth", "Pools that wait to be reconciled.", lambda: float(self._workers.depth()))
        gauge(
            "kvik_operator_queue_oldest_seconds", "Age of the oldest waiting or running work.", self._workers.oldest_age
        )
        gauge("kvik_operator_pools", "InferencePools in the store.", lambda: float(self._store.counts()[0]))
        gauge("kvik_operator_engine_pods", "Engine pods in the store.", lambda: float(self._store.counts()[1]))


@contextlib.asynccontextmanager
async def _transport(config: OperatorConfig) -> AsyncIterator[Transport]:
    transport = await connect(user_agent=USER_AGENT, timeout=config.request_timeout)
    try:
        yield transport
    finally:
        await transport.close()


def _utcnow() -> datetime:
    return datetime.now(UTC)


def _exit(status: int) -> NoReturn:
    """At once: whatever tidies up on the way out might write."""
    logging.shutdown()
    os._exit(status)
