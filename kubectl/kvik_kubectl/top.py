"""Show what each pod of a pool does at this moment: KV use, requests, prefill rate, time to first token.

Each pod is asked itself, through the API server's proxy. TTFT P90 is of the last minute. LOAD is how full the pod is
for scaling, and the term that says so; `kubectl kvik explain` shows what follows from it.
"""

import argparse
import json
from collections.abc import Mapping
from typing import Any

from kvik_kubectl.load import Full, PodLoad, terms, winner
from kvik_kubectl.pods import loads_of
from kvik_kubectl.session import Session
from kvik_kubectl.text import number, percent, table

HELP = "show what each pod of a pool does at this moment"
_HEADER = ("POD", "STATE", "KV", "RUNNING", "WAITING", "PREFILL/S", "TTFT P90", "LOAD")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pool", metavar="POOL", nargs="?", help="name of the InferencePool (default: all there are)")
    parser.add_argument("-o", "--output", choices=("json",), help="json: what the pods said, for programs")


def run(options: argparse.Namespace, session: Session) -> None:
    pools = session.cluster.pools() if options.pool is None else [session.cluster.pool(options.pool)]
    told = [
        (name, load, full)
        for name, full in ((str(pool["metadata"]["name"]), Full.of(pool)) for pool in pools)
        for load in loads_of(session.cluster, name)
    ]
    if options.output == "json":
        session.say(json.dumps([_as_json(*each) for each in told], indent=2, ensure_ascii=False))
    elif not told:
        namespace = session.cluster.namespace
        none = (
            f"no pool of namespace {namespace} has pods" if options.pool is None else f"pool {options.pool} has no pods"
        )
        session.say(none)
    elif options.pool is None:
        for line in table(("POOL", *_HEADER), [(name, *_row(load, full)) for name, load, full in told]):
            session.say(line)
    else:
        for line in table(_HEADER, [_row(load, full) for _, load, full in told]):
            session.say(line)


def _row(load: PodLoad, full: Full | None) -> tuple[str, ...]:
    found = {} if full is None or not load.warm else terms(load, full)
    named = winner(found)
    return (
        load.pod,
        load.state,
        percent(load.kv),
        number(load.running),
        number(load.waiting),
        number(load.prefill_rate),
        "-" if load.measured_ttft is None else f"{load.measured_ttft:.2f}s",
        "-" if named is None else f"{percent(found[named])} {named}",
    )


def _as_json(pool: str, load: PodLoad, full: Full | None) -> Mapping[str, Any]:
    found = None if full is None or not load.warm else terms(load, full)
    return {"pool": pool, "pod": load.pod, "state": load.state, "load": load.figures, "terms": found}
