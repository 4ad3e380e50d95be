"""What every handler needs, built once by the API process's main."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from aiohttp import web

from kvik_engine.api.body_budget import BodyBudget
from kvik_engine.api.drain import Drain
from kvik_engine.api.keys import ApiKeys
from kvik_engine.api.limits import TEXT_THREADS
from kvik_engine.api.request_metrics import RequestMetrics
from kvik_engine.api.sampling_fields import ServedModel
from kvik_engine.config import SLO_CLASSES, EngineConfig
from kvik_engine.errors import ModelNotFound, NotServing
from kvik_engine.ipc.client import RESTART_RETRY_AFTER, EngineClient
from kvik_engine.ipc.messages import ModelInfo
from kvik_engine.text.tokenizer import TextModel

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


@dataclass(frozen=True)
class Service:
    """The served model, the way to the core, and the state of the process."""

    config: EngineConfig
    text: TextModel
    client: EngineClient
    metrics: RequestMetrics
    drain: Drain
    created: int
    """Unix time of the start, as /v1/models shows it."""
    keys: ApiKeys | None = None
    """None: whoever reaches the port may use it."""
    bodies: BodyBudget = field(default_factory=BodyBudget)
    threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(TEXT_THREADS, thread_name_prefix="text")
    )

    @property
    def model(self) -> ModelInfo:
        """What the core said of the model. NotServing before the first core was warm."""
        if self.client.model is None:
            raise NotServing("The engine is starting.", retry_after=RESTART_RETRY_AFTER)
        return self.client.model

    @property
    def served(self) -> ServedModel:
        return ServedModel(
            vocab_size=self.model.vocab_size,
            stop_token_ids=self.text.stop_token_ids,
            slo_class=SLO_CLASSES.index(self.config.slo_class),
            max_choices=self.config.max_requests,
        )

    def check_model(self, name: str | None) -> None:
        """ModelNotFound unless `name` is absent or the served one."""
        if name is not None and name != self.config.model_name:
            raise ModelNotFound(
                f"The model {name[:200]!r} does not exist: this server has {self.config.model_name!r}.",
                param="model",
                code="model_not_found",
            )

    async def in_thread(
        self, call: Callable[_Parameters, _Result], *args: _Parameters.args, **kwargs: _Parameters.kwargs
    ) -> _Result:
        """Run `call` off the event loop: parsing, templates and tokenizing of anything that may be long."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, functools.partial(call, *args, **kwargs))


SERVICE: web.AppKey[Service] = web.AppKey("service", Service)
