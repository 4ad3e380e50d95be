"""Children that somebody rewrites whenever we write them, such as a webhook that puts a mirror into image names.

Without this memory the operator would see drift, write, see the rewritten object again, and so on for ever.
"""

from kvik_operator.names import ANNOTATION_MANIFEST_HASH, ChildKind, PoolKey
from kvik_operator.reconcile.types import Object


class Rewritten:
    """Remembers, for each child, how it came back from a write of ours. Thrown away with the process: level-based."""

    def __init__(self) -> None:
        self._seen: dict[PoolKey, dict[ChildKind, tuple[str, str]]] = {}

    def remember(self, key: PoolKey, kind: ChildKind, manifest: Object, answer: Object) -> None:
        self._seen.setdefault(key, {})[kind] = (_hash(manifest), _version(answer))

    def is_known(self, key: PoolKey, kind: ChildKind, manifest: Object, stored: Object) -> bool:
        """The object is still as it came back when this very manifest was written."""
        return self._seen.get(key, {}).get(kind) == (_hash(manifest), _version(stored))

    def forget(self, key: PoolKey) -> None:
        self._seen.pop(key, None)


def _hash(manifest: Object) -> str:
    return str(manifest["metadata"]["annotations"][ANNOTATION_MANIFEST_HASH])


def _version(obj: Object) -> str:
    """The generation where there is one: a resourceVersion moves with every write of status too."""
    metadata = obj["metadata"]
    return f"{metadata.get('uid')}/{metadata.get('generation') or metadata.get('resourceVersion')}"
