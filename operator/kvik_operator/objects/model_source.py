"""How a model gets into the pod, by the scheme of its source (docs/contract.md, section 1)."""

from dataclasses import dataclass
from typing import Any, Final

from kvik_operator.errors import PoolError

MODELS_PATH: Final = "/models"
FETCHED_PATH: Final = "/models/pool"
CLAIM_PATH: Final = "/models/claim"
VOLUME: Final = "models"
_PLACES: Final = {
    "hf": ("a repository of a model hub", "hf://ORG/NAME@REV[#FILE.gguf]"),
    "pvc": ("a path in a PersistentVolumeClaim", "pvc://CLAIM/PATH"),
    "file": ("a path in the engine image", "file:///models/PATH"),
}


@dataclass(frozen=True, slots=True)
class ModelSource:
    serve: str
    """What `kvik serve` is given: a path in the engine container."""
    fetch: str | None
    """What `kvik model pull` is given in an init container; None: nothing is fetched."""
    volume: dict[str, Any] | None
    mount_path: str | None


def place_in_words(source: str) -> str:
    """Where a pool's source lies, and where else a model may be: for somebody whose pod did not find it."""
    scheme = source.partition("://")[0]
    others = " or ".join(form for other, (_, form) in _PLACES.items() if other != scheme)
    return f"{source} is {_PLACES[scheme][0]}; a model may also be {others}" if scheme in _PLACES else source


def model_source(source: str) -> ModelSource:
    """Raises PoolError for a scheme that this version does not know."""
    scheme, _, rest = source.partition("://")
    if scheme == "hf":
        return ModelSource(FETCHED_PATH, source, {"name": VOLUME, "emptyDir": {}}, MODELS_PATH)
    if scheme == "pvc":
        claim, _, path = rest.partition("/")
        volume = {"name": VOLUME, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        return ModelSource(f"{CLAIM_PATH}/{path}", None, volume, CLAIM_PATH)
    if scheme == "file":
        return ModelSource(rest, None, None, None)
    raise PoolError("spec.model.source", f"{source!r} is not hf://, pvc:// or file:///models/")
