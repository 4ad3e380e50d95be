"""Put the spec of an earlier revision back: the operator then applies that revision as it is stored, engine included.

replicas, scaling, rollout and template.serviceAccountAnnotations stay as they are.
"""

import argparse

from kvik_kubectl.errors import PluginError
from kvik_kubectl.revisions import find_revision, inputs_of, merge_patch, restored, revisions_of, spec_changes
from kvik_kubectl.session import Session, add_waiting
from kvik_kubectl.text import change_line

HELP = "put the spec of an earlier revision back"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("pool", metavar="POOL", help="name of the InferencePool")
    parser.add_argument("--to", metavar="REVISION", help="its number or name (see history; default: the one before)")
    add_waiting(parser)


def run(options: argparse.Namespace, session: Session) -> None:
    pool = session.cluster.pool(options.pool)
    revisions = revisions_of(pool, session.cluster.revisions(options.pool))
    if options.to is None and len(revisions) < 2:
        raise PluginError(f"pool {options.pool} has no earlier revision")
    revision = revisions[1] if options.to is None else find_revision(revisions, options.to)
    changes = spec_changes(inputs_of(pool["spec"]), revision.spec)
    said = f"{options.pool}: revision {revision.number}, engine {revision.engine}"
    if not changes:
        session.say(f"{said}: its spec is this already")
    else:
        session.say(said + (" (dry run)" if options.dry_run else ""))
        for change in changes:
            session.say(f"  {change_line(change)}")
        if "apiKeys" in pool["spec"] and "apiKeys" not in revision.spec:
            session.say("  without apiKeys, the pool answers everybody who reaches it")
        patch = {
            "metadata": {"resourceVersion": pool["metadata"]["resourceVersion"]},
            "spec": merge_patch(pool["spec"], restored(pool["spec"], revision)),
        }
        pool = session.cluster.patch_pool(options.pool, patch, dry_run=options.dry_run)
    if options.wait:
        session.follow_roll(options.pool, pool["metadata"]["generation"], options.timeout)
