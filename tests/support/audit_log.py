"""What a ServiceAccount has asked of the local cluster's API server, by its audit log."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Self


@dataclass(frozen=True, slots=True)
class Asked:
    """One request. `namespace` is None for what lies in none, and for lists of all namespaces."""

    verb: str
    resource: str
    namespace: str | None


@dataclass(frozen=True, slots=True)
class AuditLog:
    """From now on."""

    path: Path
    offset: int

    @classmethod
    def from_now(cls, path: Path) -> Self:
        return cls(path, path.stat().st_size)

    def asked_by(self, user: str) -> set[Asked]:
        """Requests for objects; those for documents of the API itself name no resource."""
        with self.path.open("rb") as log:
            log.seek(self.offset)
            events = [json.loads(line) for line in log if line.endswith(b"\n")]
        return {
            Asked(event["verb"], event["objectRef"]["resource"], event["objectRef"].get("namespace"))
            for event in events
            if event["user"]["username"] == user and "objectRef" in event
        }
