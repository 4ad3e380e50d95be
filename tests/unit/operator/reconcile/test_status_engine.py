"""Status tells which engine a pool runs, what is newer, and which of its fields the engine lacks."""

from dataclasses import replace

from tests.support.pools import make_pod
from tests.support.status_scene import Scene, info


def test_the_version_is_what_pods_say_and_before_that_what_the_tag_says() -> None:
    scene = Scene()
    scene.image = scene.configured_image = "kvik/engine:0.1.0-cpu"
    scene.look()
    assert scene.cluster.status["engine"] == {"image": "kvik/engine:0.1.0-cpu", "version": "0.1.0"}
    scene.pods, scene.infos = [make_pod(ready=True)], {"uid-chat-1": replace(info(), version="0.1.0+patched")}
    scene.look()
    assert scene.cluster.status["engine"]["version"] == "0.1.0+patched"
    scene.pods = []
    scene.look()
    assert scene.cluster.status["engine"]["version"] == "0.1.0+patched"


def test_a_tag_without_a_version_says_nothing() -> None:
    scene = Scene()
    scene.look()
    assert scene.cluster.status["engine"] == {"image": "kvik/engine:1"}


def test_a_newer_version_is_told_until_it_is_taken() -> None:
    scene = Scene()
    scene.image, scene.configured_image = "kvik/engine:0.1.0", "kvik/engine:0.2.0"
    scene.look()
    assert scene.cluster.status["engine"]["available"] == "0.2.0"
    scene.image = "kvik/engine:0.2.0"
    scene.look()
    assert scene.cluster.status["engine"] == {"image": "kvik/engine:0.2.0", "version": "0.2.0"}


def test_a_field_that_the_engine_lacks_is_named_with_the_versions() -> None:
    scene = Scene(batching={"maxRequests": 8}, kvCache={"blockTokens": 32})
    scene.image = scene.configured_image = "kvik/engine:0.0.9"
    scene.pods = [make_pod(ready=True)]
    scene.look()
    status, reason, message = scene.condition("Degraded")
    assert (status, reason) == ("True", "EngineTooOld")
    assert "spec.batching.maxRequests needs engine 0.1.0, spec.kvCache.blockTokens needs engine 0.1.0" in message
    assert "the pool runs 0.0.9" in message
    assert scene.condition("Ready")[0] == "True"
    scene.image = "kvik/engine:0.1.0"
    scene.look()
    assert scene.condition("Degraded")[:2] == ("False", "AsExpected")
