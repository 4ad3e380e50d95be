from pathlib import Path

import pytest

from tests.cluster.cgroups import make, remove


@pytest.fixture(params=["v1", "v2"])
def mounted(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    if request.param == "v2":
        (tmp_path / "cgroup.controllers").touch()
    else:
        for controller in ("cpu", "memory"):
            (tmp_path / controller).mkdir()
    return tmp_path


def groups(mounted: Path) -> set[str]:
    return {path.name for path in mounted.rglob("*") if path.is_dir()} - {"cpu", "memory"}


def test_the_second_nodes_group_goes_with_its_pods_and_the_first_nodes_stay(mounted: Path):
    make("/", mounted)
    make("/second", mounted)
    for top in {path.parent for path in mounted.rglob("second")}:
        (top / "second/kubepods/pod-b").mkdir(parents=True)
        (top / "kubepods/pod-a").mkdir(parents=True)

    remove("/second", mounted)
    assert groups(mounted) == {"kubepods", "pod-a"}

    remove("/", mounted)
    assert groups(mounted) == set()


def test_a_group_that_somebody_else_uses_stays(mounted: Path):
    make("/second", mounted)
    for group in list(mounted.rglob("second")):
        (group / "somebody").touch()
    remove("/second", mounted)
    assert groups(mounted) == {"second"}
