"""API keys: who may use the API, and whose request it is."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from kvik_engine.api import keys as api_keys
from kvik_engine.api.keys import ApiKeys, KeysError, keys_or_refuse, read_keys
from kvik_engine.api.metrics_page import MetricsPage
from kvik_engine.errors import StartError, StartReason
from tests.support.calls import Calls
from tests.support.live_api import LiveApi, Reply, live_api
from tests.support.waiting import until

ALICE, BOB = "alice-key-1", "bob-key-2"
KEYS = f"# people\nalice:{ALICE}\n\nbob:{BOB}\nalice:alices-next-key\n"


@pytest.fixture
def keys_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys"
    path.write_text(KEYS)
    return path


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


async def chat(api: LiveApi, key: str | None, **fields: object) -> Reply:
    body = {"messages": [{"role": "user", "content": "Hi"}], **fields}
    return await api.post("/v1/chat/completions", body, headers={} if key is None else bearer(key))


@pytest.mark.parametrize(
    "headers",
    [
        {},
        bearer("wrong-key-3"),
        bearer(""),
        bearer(ALICE + "x"),
        {"Authorization": ALICE},
        {"Authorization": f"Basic {ALICE}"},
        {"X-Api-Key": ALICE},
    ],
)
async def test_every_route_that_uses_the_model_asks_for_a_key(
    tmp_path: Path, keys_file: Path, headers: dict[str, str]
) -> None:
    async with live_api(tmp_path, api_keys_file=str(keys_file)) as api:
        paths = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize", "/v1/anything")
        replies = [await api.post(path, {}, headers=headers) for path in paths]
        async with api.http.get(api.url + "/v1/models", headers=headers) as response:
            replies.append(Reply(response.status, response.headers, await response.text()))
        for reply in replies:
            assert reply.status == 401
            assert reply.headers["WWW-Authenticate"] == "Bearer"
            assert (reply.error["type"], reply.error["code"]) == ("invalid_request_error", "invalid_api_key")
            assert not any(key in reply.text for key in (ALICE, "wrong-key-3"))
        assert api.core.submits == []


async def test_probes_and_metrics_need_no_key(tmp_path: Path, keys_file: Path) -> None:
    async with live_api(tmp_path, api_keys_file=str(keys_file)) as api:
        assert [(await api.get(path)).status for path in ("/health", "/version", "/metrics")] == [200] * 3


async def test_a_request_belongs_to_the_tenant_of_its_key_and_shares_prefixes_with_it_alone(
    tmp_path: Path, keys_file: Path
) -> None:
    async with live_api(tmp_path, api_keys_file=str(keys_file)) as api:
        for key in (ALICE, BOB, "alices-next-key"):
            assert (await chat(api, key)).status == 200
        assert (await chat(api, ALICE, cache_salt="s")).status == 200
        submits = api.core.submits
    assert [submit.tenant for submit in submits] == ["alice", "bob", "alice", "alice"]
    salts = [submit.salt for submit in submits]
    assert salts[0] == salts[2]
    assert len(set(salts)) == 3


async def test_without_keys_there_is_one_tenant_and_any_key_will_do(api: LiveApi) -> None:
    assert (await chat(api, None)).status == (await chat(api, "unused")).status == 200
    assert {(submit.tenant, submit.salt) for submit in api.core.submits} == {("", b"")}


async def test_no_key_is_ever_logged(tmp_path: Path, keys_file: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        async with live_api(tmp_path, api_keys_file=str(keys_file)) as api:
            await chat(api, ALICE)
            await chat(api, "wrong-key-3")
    logged = "\n".join(str(record.__dict__) for record in caplog.records)
    assert caplog.records
    assert ALICE not in logged
    assert "wrong-key-3" not in logged


def test_a_changed_file_is_read_again_and_a_broken_one_changes_nothing(
    keys_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    keys = ApiKeys(keys_file)
    keys_file.write_text("carol:carols-only-key\n")
    assert keys.tenant_of(ALICE) == "alice"
    keys.look()
    assert (keys.tenant_of(ALICE), keys.tenant_of("carols-only-key")) == (None, "carol")
    assert (keys.count, keys.outdated) == (1, False)
    keys_file.write_text("dave:daves-secret-key\ndaves-other-secret")
    keys.look()
    keys.look()
    assert (keys.tenant_of("carols-only-key"), keys.tenant_of("daves-secret-key")) == ("carol", None)
    assert (keys.count, keys.outdated) == (1, True)
    keys_file.unlink()
    keys.look()
    keys.look()
    assert (keys.tenant_of("carols-only-key"), keys.outdated) == ("carol", True)
    errors = [record for record in caplog.records if record.levelno == logging.ERROR]
    assert [record.why.rpartition(", ")[2] for record in errors] == [  # type: ignore[attr-defined]
        *(
            "line 2: not NAME:KEY with a key of 8 to 512 printable characters",
            f"{keys_file} cannot be read: No such file or directory",
        )
    ]
    keys_file.write_text("dave:daves-secret-key\n")
    keys.look()
    assert (keys.tenant_of("carols-only-key"), keys.tenant_of("daves-secret-key"), keys.outdated) == (
        None,
        "dave",
        False,
    )
    assert "secret" not in str([record.__dict__ for record in caplog.records])


def mounted_secret(folder: Path, text: str) -> Path:
    """The file of a mounted Secret with this content: `keys -> ..data/keys`, `..data -> ..VERSION`."""
    version = folder / f"..{len(list(folder.iterdir()))}"
    version.mkdir()
    (version / "keys").write_text(text)
    (folder / "..data_tmp").symlink_to(version.name)
    (folder / "..data_tmp").replace(folder / "..data")
    if not (folder / "keys").is_symlink():
        (folder / "keys").symlink_to("..data/keys")
    return folder / "keys"


async def test_an_engine_follows_a_secret_that_is_rotated_without_a_request_and_tells_when_it_cannot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """First both keys hold, then the new one alone; nobody who has a key of both contents is ever refused."""
    monkeypatch.setattr(api_keys, "LOOK_SECONDS", 0.01)
    (secret := tmp_path / "secret").mkdir()
    path = mounted_secret(secret, f"alice:{ALICE}\n")
    async with live_api(tmp_path, api_keys_file=str(path)) as api:
        keys = api.service.keys
        assert keys is not None
        follows = asyncio.create_task(keys.follow())
        mounted_secret(secret, f"alice:{ALICE}\nalice:alices-next-key\n")
        await until(lambda: keys.count == 2)
        assert [(await chat(api, key)).status for key in (ALICE, "alices-next-key")] == [200, 200]
        mounted_secret(secret, "alice:alices-next-key\n")
        await until(lambda: keys.count == 1)
        assert [(await chat(api, key)).status for key in (ALICE, "alices-next-key")] == [401, 200]
        assert (await api.get("/load", api.metrics_url)).json["api_keys_outdated"] is False
        mounted_secret(secret, "")
        await until(lambda: keys.outdated)
        assert (await api.get("/load", api.metrics_url)).json["api_keys_outdated"] is True
        assert (await chat(api, "alices-next-key")).status == 200
        page = (
            MetricsPage(api.service.config, api.client, api.service.metrics, keys, drain=api.service.drain)
            .render()
            .decode()
        )
        assert 'kvik_api_keys{model_name="org/tiny"} 1.0' in page
        assert 'kvik_api_keys_outdated{model_name="org/tiny"} 1.0' in page
        assert "alices-next-key" not in page
        follows.cancel()
        await asyncio.wait([follows])


async def test_without_keys_there_are_no_metrics_of_keys(api: LiveApi) -> None:
    assert "kvik_api_keys" not in (await api.get("/metrics")).text


def test_a_new_file_that_could_not_be_read_at_first_is_read_later(
    keys_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = ApiKeys(keys_file)
    keys_file.write_text("carol:carols-only-key\n")

    def refuse(self: Path, *_: object) -> None:
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "open", refuse)
        keys.look()
        assert (keys.tenant_of(ALICE), keys.outdated) == ("alice", True)
    keys.look()
    assert (keys.tenant_of(ALICE), keys.tenant_of("carols-only-key")) == (None, "carol")


def test_a_key_is_found_in_as_many_calls_among_20_000_as_among_two(tmp_path: Path) -> None:
    """All of them were compared: 37 ms of the API's only thread for each request with a file of the largest size."""
    many = tmp_path / "many"
    many.write_text("".join(f"tenant:{number:08}-key\n" for number in range(20_000)))
    keys = ApiKeys(many)
    with Calls() as calls:
        assert keys.tenant_of("00019999-key") == "tenant"
        assert keys.tenant_of("absent-key-0") is None
    assert calls.count < 30


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nobody\n",
        "no-separator",
        "a:short",
        ":a-key-without-name",
        "a b:spaces-in-name",
        "a:key with spaces",
        "ä:umlaut-in-name",
    ],
)
def test_a_file_that_is_no_list_of_keys_stops_the_start_without_repeating_a_key(tmp_path: Path, text: str) -> None:
    path = tmp_path / "keys"
    path.write_text(text)
    with pytest.raises(StartError) as error:
        keys_or_refuse(str(path))
    assert error.value.reason is StartReason.CONFIG_INVALID
    assert "without-name" not in str(error.value)


def test_one_key_of_two_names_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("a:one-and-the-same\nb:one-and-the-same\n")
    with pytest.raises(KeysError, match="line 2"):
        read_keys(path)
    with pytest.raises(StartError, match="cannot be read"):
        keys_or_refuse(str(tmp_path / "absent"))
    assert keys_or_refuse(None) is None
