"""What an image's tag says of the engine inside, and the same image at another version."""

import pytest

from kvik_operator.crd.engine_version import Version
from kvik_operator.objects.engine_image import EngineImage, version_of

FOLLOWING = {
    "kvik/engine:0.1.0": ("0.1.0", "kvik/engine:0.3.0"),
    "kvik/engine:0.1.0-cpu": ("0.1.0", "kvik/engine:0.3.0-cpu"),
    "localhost:5000/team/kvik/engine:0.1.0-demo": ("0.1.0", "localhost:5000/team/kvik/engine:0.3.0-demo"),
    "kvik/engine:0.2.0-rc.1": ("0.2.0-rc.1", "kvik/engine:0.3.0"),
    "kvik/engine:0.2.0-rc.1-cpu": ("0.2.0-rc.1", "kvik/engine:0.3.0-cpu"),
    "engine:0.1.0-cu130.2_x": ("0.1.0", "engine:0.3.0-cu130.2_x"),
}
OTHERS = [
    "kvik/engine",
    "kvik/engine:latest",
    "kvik/engine:1-cpu",
    "kvik/engine:v0.1.0",
    "kvik/engine:0.1.0.4",
    "kvik/engine:0.1.0_cpu",
    "kvik/engine@sha256:" + "0" * 64,
    "kvik/engine:0.1.0@sha256:" + "0" * 64,
    "host:1.2.3/kvik/engine",
    ":0.1.0",
]


@pytest.mark.parametrize("reference", FOLLOWING)
def test_a_tag_that_begins_with_a_version_follows_versions(reference: str) -> None:
    version, elsewhere = FOLLOWING[reference]
    image = EngineImage(reference, "Always", "https://mirror.test")
    assert str(version_of(reference)) == version
    assert image.at(Version(0, 3, 0)) == EngineImage(elsewhere, "Always", "https://mirror.test")
    assert image.at(Version.parse(version)) == image


@pytest.mark.parametrize("reference", OTHERS)
def test_nothing_is_guessed_from_any_other(reference: str) -> None:
    assert version_of(reference) is None
    assert EngineImage(reference, "Always").at(Version(0, 3, 0)) is None
