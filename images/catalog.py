"""The images of this repository: name, Containerfile, what goes into the build context, build arguments."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

REPOSITORY = Path(__file__).resolve().parents[1]
LOCAL_PREFIX = "localhost/"


@dataclass(frozen=True, slots=True)
class Image:
    """`context` maps a path in the build context to the file or folder it comes from."""

    name: str
    containerfile: Path
    context: Mapping[str, Path]
    arguments: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    needs_base: bool = True


def version() -> str:
    return (REPOSITORY / "VERSION").read_text().strip()


def product(prefix: str = LOCAL_PREFIX) -> dict[str, Image]:
    """The product's images by short name. `prefix` is put before `kvik/...` (a registry's, or `localhost/`)."""
    engine = {"gpu": "", "cpu": "-cpu", "demo": "-demo"}
    return {
        "operator": _operator(f"{prefix}kvik/operator:{version()}"),
        **{variant: _engine(f"{prefix}kvik/engine:{version()}{suffix}", variant) for variant, suffix in engine.items()},
    }


def _operator(name: str) -> Image:
    return Image(
        name=name,
        containerfile=REPOSITORY / "images/operator/Containerfile",
        context=_repository_files("requirements/operator.txt", "operator"),
    )


def _engine(name: str, variant: str) -> Image:
    return Image(
        name=name,
        containerfile=REPOSITORY / "images/engine/Containerfile",
        context=_repository_files("requirements/engine.txt", "kernels", "engine", "images/engine", "LICENSE"),
        arguments={"VARIANT": variant},
    )


def _repository_files(*names: str) -> dict[str, Path]:
    """Every image of ours also needs uv and the pinned build tools."""
    names = ("requirements/uv.txt", "requirements/dev.txt", *names)
    return {name: REPOSITORY / name for name in names}
