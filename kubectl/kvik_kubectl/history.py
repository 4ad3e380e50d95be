"""List a pool's revisions, newest first: which engine each runs, and what it changed."""

import argparse
import json
from collections.abc import Mapping, Sequence
from itertools import pairwise, zip_longest
from typing import Any

from kvik_kubectl.revisions import Change, Revision, changes_between, revisions_of, version_of
from kvik_kubectl.session import Session
from kvik_kubectl.text import age, change_line, table

HELP = "list a pool's revisions"
_HEADER = ("REVISION", "AGE", "ENGINE", "STATE", "CHANGE")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pool", metavar="POOL", help="name of the InferencePool")
    parser.add_argument("-o", "--output", choices=("json",), help="json: everything, for programs")


def run(options: argparse.Namespace, session: Session) -> None:
    pool = session.cluster.pool(options.pool)
    revisions = revisions_of(pool, session.cluster.revisions(options.pool))
    changes = [changes_between(older, newer) for newer, older in pairwise(revisions)]
    states = [state_of(revision, pool) for revision in revisions]
    if options.output == "json":
        told = zip_longest(revisions, states, changes)
        session.say(json.dumps([_as_json(*each) for each in told], indent=2, ensure_ascii=False))
    elif not revisions:
        session.say(f"pool {options.pool} has no revisions yet")
    else:
        for line in table(_HEADER, list(_rows(session, revisions, states, changes))):
            session.say(line)


def state_of(revision: Revision, pool: Mapping[str, Any]) -> str:
    """In words; empty for one that is neither in use nor was the last complete one."""
    told = (pool.get("status") or {}).get("revision") or {}
    match (revision.name == told.get("updated"), revision.name == told.get("current")):
        case (True, True):
            return "in use"
        case (True, False):
            return "rolling out"
        case (False, True):
            return "last complete"
    return ""


def _rows(
    session: Session, revisions: Sequence[Revision], states: Sequence[str], changes: Sequence[Sequence[Change]]
) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    now = session.utcnow()
    for revision, state, made in zip_longest(revisions, states, changes):
        lines = ["no earlier one is kept"] if made is None else [change_line(change) for change in made] or ["nothing"]
        rows.append((str(revision.number), age(revision.created, now), revision.engine, state, lines[0]))
        rows += [("", "", "", "", line) for line in lines[1:]]
    return rows


def _as_json(revision: Revision, state: str, changes: Sequence[Change] | None) -> Mapping[str, Any]:
    return {
        "revision": revision.number,
        "name": revision.name,
        "createdAt": revision.created,
        "engine": {"version": version_of(revision.image), "image": revision.image},
        "state": state or None,
        "changes": None
        if changes is None
        else [{"field": change.field, "from": change.before, "to": change.after} for change in changes],
    }
