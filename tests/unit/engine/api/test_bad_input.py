"""Every bad request gets its status and a body that names the field, and the next good one is answered."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from kvik_engine.api.limits import max_body_bytes
from tests.support import corpus
from tests.support.live_api import CHAT, LiveApi, live_api
from tests.support.scripted_core import CONTEXT


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def shared(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[LiveApi]:
    path: Path = tmp_path_factory.mktemp("api")
    async with live_api(path) as made:
        yield made


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.mark.parametrize("case", [*corpus.CASES, *corpus.too_long(CONTEXT)], ids=lambda case: case.name[:60])
async def test_a_bad_request_gets_its_error(shared: LiveApi, case: corpus.Case) -> None:
    before = len(shared.core.submits)
    reply = await shared.post(case.path, case.body)
    assert reply.status == case.status, reply.text
    error = reply.error
    assert (error["param"], error["code"]) == (case.param, case.code), error
    assert error["type"] == "invalid_request_error"
    assert reply.headers["x-should-retry"] == "false"
    assert len(shared.core.submits) == before, "the core saw nothing of it"


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"prompt": ""}, id="empty text"),
        pytest.param({"prompt": []}, id="no prompts"),
        pytest.param({"prompt": [[]]}, id="no ids"),
        pytest.param({"prompt": "Hi", "max_tokens": 0}, id="no output"),
        pytest.param({"prompt": "Hi", "max_tokens": 0, "echo": True}, id="no output but the prompt"),
    ],
)
async def test_what_leaves_nothing_to_compute_is_refused_and_the_next_request_is_answered(
    shared: LiveApi, fields: dict[str, Any]
) -> None:
    """vllm #10648: an empty prompt ended the engine; #6521: so did max_tokens 0 with echo."""
    before = len(shared.core.submits)
    for stream in (False, True):
        reply = await shared.post(corpus.COMPLETIONS, {**fields, "stream": stream})
        assert reply.status == 400, reply.text
        assert reply.error["param"] in fields
    assert len(shared.core.submits) == before, "the core saw nothing of it"
    assert (await shared.chat()).status == 200


@pytest.mark.parametrize("fields", corpus.HARMLESS, ids=lambda fields: next(iter(fields)))
async def test_harmless_fields_are_ignored(shared: LiveApi, fields: dict[str, Any]) -> None:
    reply = await shared.chat(**fields)
    assert reply.status == 200, reply.text


@pytest.mark.parametrize("path", ["/", "/v1", "/v1/chat", "/v1/embeddings", "/drain", "/load", "/live", "/debug"])
async def test_unknown_paths_are_json_404(shared: LiveApi, path: str) -> None:
    """/load and /live are on the other port; draining is on neither."""
    reply = await shared.get(path)
    assert reply.status == 404
    assert reply.error["type"] == "invalid_request_error"


async def test_the_wrong_method_is_json_405(shared: LiveApi) -> None:
    reply = await shared.get("/v1/chat/completions")
    assert reply.status == 405
    assert reply.headers["Allow"] == "POST"
    assert reply.error["param"] is None


async def test_other_content_types_are_refused(shared: LiveApi) -> None:
    for kind in ("application/x-www-form-urlencoded", "text/plain", "multipart/form-data; boundary=x"):
        assert (await shared.post(corpus.CHAT, CHAT, headers={"Content-Type": kind})).status == 415
    charset = {"Content-Type": "application/json; charset=utf-8"}
    assert (await shared.post(corpus.CHAT, CHAT, headers=charset)).status == 200


async def test_compressed_bodies_are_refused(shared: LiveApi) -> None:
    """A gzip bomb is never unpacked."""
    reply = await shared.post(corpus.CHAT, b"\x1f\x8b" + b"\0" * 100, headers={"Content-Encoding": "gzip"})
    assert reply.status == 415


async def test_a_chunked_body_over_the_limit_is_cut_off(shared: LiveApi) -> None:
    async def endless() -> AsyncIterator[bytes]:
        for _ in range(max_body_bytes(CONTEXT) // 1024 + 1000):
            yield b"x" * 1024

    async with shared.http.post(
        shared.url + corpus.CHAT, data=endless(), headers={"Content-Type": "application/json"}
    ) as response:
        assert response.status == 413


async def test_a_million_keys_are_no_problem(shared: LiveApi) -> None:
    body = b"{" + b",".join(b'"%d":1' % i for i in range(6000)) + b"}"
    assert (await shared.post(corpus.CHAT, body)).error["param"] == "messages"
