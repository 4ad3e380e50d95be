"""Move a pool to another version of the engine: writes spec.engine.version, and the operator rolls the pods.

Without --to: to the version in status.engine.available.
"""

import argparse
import re
from collections.abc import Mapping
from typing import Any

from kvik_kubectl.errors import PluginError
from kvik_kubectl.revisions import VERSION_PATTERN, version_of
from kvik_kubectl.session import Session, add_waiting

HELP = "move a pool to another version of the engine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pool", metavar="POOL", help="name of the InferencePool")
    parser.add_argument("--to", metavar="VERSION", help="such as 0.2.0; older ones too (default: what is available)")
    add_waiting(parser)


def run(options: argparse.Namespace, session: Session) -> None:
    pool = session.cluster.pool(options.pool)
    target = options.to or available_version(pool)
    named = (pool["spec"].get("engine") or {}).get("version")
    if named == target:
        session.say(f"{options.pool}: already at engine {target}")
    else:
        patch = {"spec": {"engine": {"version": target}}}
        pool, before = session.cluster.patch_pool(options.pool, patch, dry_run=options.dry_run), pool
        session.say(f"{options.pool}: {_what(before, target)}{' (dry run)' if options.dry_run else ''}")
    if options.wait:
        session.follow_roll(options.pool, pool["metadata"]["generation"], options.timeout)


def available_version(pool: Mapping[str, Any]) -> str:
    """Raises PluginError where nothing newer is known, or what is has no version."""
    engine, name = (pool.get("status") or {}).get("engine") or {}, pool["metadata"]["name"]
    available = engine.get("available")
    if available is None:
        runs = f"engine {engine['version']}" if engine.get("version") else f"image {engine.get('image', 'none yet')}"
        raise PluginError(f"nothing newer than its {runs} is known for pool {name}: name a version with --to")
    if re.fullmatch(VERSION_PATTERN, available) is None:
        raise PluginError(
            f"the operator's engine image {available} names no version in its tag: pool {name} takes it with the next "
            "change of its spec"
        )
    return str(available)


def _what(pool: Mapping[str, Any], target: str) -> str:
    image = ((pool.get("status") or {}).get("engine") or {}).get("image")
    runs = None if image is None else version_of(image) or image
    if runs == target:
        return f"engine {target}, which it runs already, is now named in its spec"
    return f"engine {runs or 'not known yet'} -> {target}"
