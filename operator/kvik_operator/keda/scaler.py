"""The four calls of KEDA's external scaler, each answered from this replica's own decisions."""

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import grpc

from kvik_operator.keda.answers import Answers, Refusal, Why
from kvik_operator.keda.protocol import METRIC, TARGET, messages
from kvik_operator.names import PoolKey

PERIOD_SECONDS: Final = 5.0
"""Between two decisions."""

Context = grpc.aio.ServicerContext[Any, Any]
Pause = Callable[[float], Awaitable[None]]


class ExternalScaler:
    """A ScaledObject has the name of its pool. `pause` sleeps for so many seconds."""

    def __init__(self, answers: Answers, pause: Pause) -> None:
        self._answers = answers
        self._pause = pause

    async def IsActive(self, request: Any, context: Context) -> Any:  # noqa: N802
        try:
            return messages.IsActiveResponse(result=self._answers.desired_replicas(_key(request)) > 0)
        except Refusal as refusal:
            await context.abort(*_as_grpc(refusal))

    async def StreamIsActive(self, request: Any, context: Context) -> AsyncIterator[Any]:  # noqa: N802
        """Silent while nothing is known, until the pool is gone."""
        told: bool | None = None
        while True:
            try:
                active = self._answers.desired_replicas(_key(request)) > 0
                if active != told:
                    told = active
                    yield messages.IsActiveResponse(result=active)
            except Refusal as refusal:
                if refusal.why is Why.NOT_FOUND:
                    await context.abort(*_as_grpc(refusal))
            await self._pause(PERIOD_SECONDS)

    async def GetMetricSpec(self, request: Any, context: Context) -> Any:  # noqa: N802
        """The same for every pool, also while there is no value: KEDA makes its autoscaler of it."""
        spec = messages.MetricSpec(metricName=METRIC, targetSize=TARGET, targetSizeFloat=TARGET)
        return messages.GetMetricSpecResponse(metricSpecs=[spec])

    async def GetMetrics(self, request: Any, context: Context) -> Any:  # noqa: N802
        if request.metricName != METRIC:
            message = f"there is no metric {request.metricName!r}, only {METRIC}"
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, message)
        try:
            replicas = self._answers.desired_replicas(_key(request.scaledObjectRef))
        except Refusal as refusal:
            await context.abort(*_as_grpc(refusal))
        value = messages.MetricValue(metricName=METRIC, metricValue=replicas, metricValueFloat=replicas)
        return messages.GetMetricsResponse(metricValues=[value])


def _key(reference: Any) -> PoolKey:
    return PoolKey(reference.namespace, reference.name)


def _as_grpc(refusal: Refusal) -> tuple[grpc.StatusCode, str]:
    return grpc.StatusCode[refusal.why], str(refusal)
