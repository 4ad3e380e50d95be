"""The demo: a cluster, the images, both charts, a small pool, and an answer from it. It may be repeated.

python3 -m scripts.demo [up | prepare | down]
"""

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from images import builder, catalog
from scripts.demo_ownership import ClaimError, ensure_namespace, remove_namespace, why_keep_operator, why_not_install
from tests.support.in_cluster_traffic import run_python
from tests.support.kubectl import Kubectl, KubectlError, condition
from tests.support.operator_pods import SELECTOR, wait_for_operators

ROOT = Path(__file__).resolve().parent.parent
SYSTEM = "kvik-system"
NAMESPACE = "kvik-demo"
POOL = "smollm2"
POOLS = "inferencepools.kvik.dev"
EXAMPLE = ROOT / "examples" / "smollm2.yaml"
READY_SECONDS = 300
BUILT_FROM = "kvik.dev/demo-built-from"
"""Annotation on our namespaces: the inputs of the image that runs there. A tag alone does not tell two builds apart."""

MODEL = "smollm2-135m-instruct"
URL = f"http://{POOL}.{NAMESPACE}.svc:8000/v1"
QUESTION = "What is the capital of France? Answer in one short sentence."
ASK = f"""
import json, urllib.request
body = {{"model": {MODEL!r}, "max_tokens": 48, "temperature": 0,
         "messages": [{{"role": "user", "content": {QUESTION!r}}}]}}
request = urllib.request.Request({URL!r} + "/chat/completions", json.dumps(body).encode(),
                                 {{"Content-Type": "application/json"}})
print(json.load(urllib.request.urlopen(request, timeout=120))["choices"][0]["message"]["content"].strip())
"""


class DemoError(RuntimeError):
    """Something the demo needs did not come about; the text says what, for a person."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster that CLUSTER names, and how to use it."""

    kubeconfig: str
    kubectl: str
    helm: str
    image_prefix: str
    borrowed: bool
    """CLUSTER=existing: others use it too, so only what the demo made may be changed or removed."""

    def in_namespace(self, namespace: str) -> Kubectl:
        return Kubectl(Path(self.kubectl), Path(self.kubeconfig), namespace)

    def run_helm(self, *arguments: str) -> str:
        return run(self.helm, f"--kubeconfig={self.kubeconfig}", f"--namespace={SYSTEM}", *arguments)


def say(text: str) -> None:
    line = f"==> {text}"
    print(f"\033[1m{line}\033[0m" if sys.stdout.isatty() else line, flush=True)


def run(*command: str) -> str:
    """What a command prints on standard output; its standard error is the progress that the reader sees.

    Raises:
        DemoError: it failed.
    """
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        raise DemoError(f"{shlex.join(command)} failed (see above)")
    return done.stdout


def cluster_up() -> Cluster:
    """The cluster, started if it is not up."""
    cluster = _cluster_of("env")
    assert cluster is not None
    return cluster


def cluster_found() -> Cluster | None:
    """The cluster as it is; None: it is not up."""
    return _cluster_of("found")


def _cluster_of(command: str) -> Cluster | None:
    """From `python3 -m tests.cluster`, which prints `export NAME=VALUE` lines, or none."""
    lines = run(sys.executable, "-m", "tests.cluster", command).splitlines()
    if not lines:
        return None
    exported = dict(shlex.split(line)[1].split("=", 1) for line in lines)
    borrowed = os.environ.get("CLUSTER") == "existing"
    return Cluster(exported["KUBECONFIG"], exported["KUBECTL"], exported["HELM"], exported["IMAGE_PREFIX"], borrowed)


def ensure_images(cluster: Cluster) -> dict[str, catalog.Image]:
    """Builds what changed and gives it to the cluster; an existing cluster pulls by itself."""
    images = catalog.product(cluster.image_prefix)
    if not cluster.borrowed:
        run(sys.executable, "-m", "images", "operator", "demo")
        run(sys.executable, "-m", "tests.cluster", "load", images["operator"].name, images["demo"].name)
    return images


def runs_build(kubectl: Kubectl, build: str) -> bool:
    """Whether what runs in the namespace was started from this build of its image."""
    return build_noted(kubectl) == build


def build_noted(kubectl: Kubectl) -> str | None:
    """None: nothing that was started in the namespace became ready."""
    namespace = kubectl.get("namespace", kubectl.namespace) or {"metadata": {}}
    noted: str | None = namespace["metadata"].get("annotations", {}).get(BUILT_FROM)
    return noted


def why_replace(before: str | None) -> str:
    """`before` is the build that ran last; it is noted once the pool is ready."""
    return "the demo before did not get it ready" if before is None else "its engine image is another one now"


def note_build(kubectl: Kubectl, build: str) -> None:
    kubectl.run("annotate", "--overwrite", "namespace", kubectl.namespace, f"{BUILT_FROM}={build}")


def refuse_foreign_operator(cluster: Cluster) -> None:
    """Raises ClaimError over an operator or API that somebody else installed: it would take over all of their pools."""
    system = cluster.in_namespace(SYSTEM)
    if cluster.borrowed and (why := why_not_install(system.get("namespace", SYSTEM), system.get("crd", POOLS))):
        raise ClaimError(f"no operator is installed: {why}")


def install(cluster: Cluster, images: dict[str, catalog.Image], *flags: str) -> None:
    """Both charts, and a fresh operator where its image was built anew under the same tag.

    Returns once no operator of before is left, which might still serve pools. `flags` are helm's, for the operator's
    chart.

    Raises:
        ClaimError: somebody else's operator is there.
        DemoError: ours does not become ready.
    """
    refuse_foreign_operator(cluster)
    system, build = cluster.in_namespace(SYSTEM), built_from(cluster, images["operator"])
    ensure_namespace(system, borrowed=cluster.borrowed)
    repositories = [
        f"--set=image.operator.repository={cluster.image_prefix}kvik/operator",
        *(f"--set=image.engine.{device}.repository={cluster.image_prefix}kvik/engine" for device in ("gpu", "cpu")),
        *(["--set=image.pullPolicy=IfNotPresent"] if cluster.borrowed else []),
    ]
    remove_half_installed(cluster)
    cluster.run_helm("upgrade", "--install", "kvik-crds", "charts/kvik-crds")
    cluster.run_helm(
        *("upgrade", "--install", "kvik", "charts/kvik", "--values=examples/local-values.yaml", *repositories, *flags)
    )
    if not runs_build(system, build):
        system.run("rollout", "restart", "deployment", f"--selector={SELECTOR}")
    try:
        system.run("rollout", "status", "deployment", f"--selector={SELECTOR}", "--timeout=100s")
        wait_for_operators(system)
    except (KubectlError, TimeoutError) as error:
        print(system.run("get", "pods,events"), system.run("logs", f"--selector={SELECTOR}"))
        raise DemoError("the operator does not become ready (see above)") from error
    note_build(system, build)


def remove_half_installed(cluster: Cluster) -> None:
    """A helm that was killed leaves its release `pending`, and refuses to go on from there. Pools and CRD stay."""
    for release in json.loads(cluster.run_helm("list", "--pending", "--output=json")):
        cluster.run_helm("uninstall", release["name"], "--wait")


def built_from(cluster: Cluster, image: catalog.Image) -> str:
    """Names the inputs of an image that was built here; the image's own name where it is pulled."""
    if cluster.borrowed:
        return image.name
    return builder.choose().inputs_of(image.name) or image.name


def wait_until_ready(kubectl: Kubectl) -> None:
    """Shows what the pool waits for, whenever that changes, until it answers and no roll is under way.

    Raises:
        DemoError: it was not within READY_SECONDS.
    """
    started, shown = time.monotonic(), ""
    while (text := waits_for(kubectl.get(POOLS, POOL))) is not None:
        seconds = time.monotonic() - started
        if text != shown:
            print(f"  {seconds:4.0f} s  {text}", flush=True)
            shown = text
        if seconds > READY_SECONDS:
            print(kubectl.run("get", "pods,events"))
            raise DemoError(f"the pool was not ready within {READY_SECONDS} s")
        time.sleep(1)
    print(f"  {time.monotonic() - started:4.0f} s  Ready=True, RolloutComplete=True", flush=True)


def waits_for(pool: Mapping[str, Any] | None) -> str | None:
    """The first condition that the pool's present generation has yet to meet, for a person; None: it has all."""
    for kind in ("Ready", "RolloutComplete"):
        found = condition(pool, kind)
        if pool is None or found is None or found["observedGeneration"] != pool["metadata"]["generation"]:
            return "the operator has not yet seen the pool as it is now"
        if found["status"] != "True":
            return f"{kind}={found['status']} {found['reason']}: {found['message']}"
    return None


def prepare() -> None:
    """What takes minutes on a new machine: the cluster, and the images in it."""
    ensure_images(cluster_up())


def up() -> None:
    started = time.monotonic()
    say("A cluster")
    cluster = cluster_up()
    say("The images")
    images = ensure_images(cluster)
    say("The charts: kvik-crds and kvik")
    install(cluster, images)

    say(f"The pool {POOL} in namespace {NAMESPACE}")
    kubectl = cluster.in_namespace(NAMESPACE)
    build = built_from(cluster, images["demo"])
    ensure_namespace(kubectl, borrowed=cluster.borrowed)
    if not runs_build(kubectl, build):
        if kubectl.get(POOLS, POOL) is not None:
            print(f"  replacing the pool because {why_replace(build_noted(kubectl))}")
        kubectl.run("delete", POOLS, "--all", timeout=180)
    print(kubectl.apply(EXAMPLE.read_text()).rstrip())
    wait_until_ready(kubectl)
    note_build(kubectl, build)

    say(f"A question to {URL}, asked from a pod")
    print(f"  Q: {QUESTION}")
    answer = run_python(kubectl, images["demo"].name, "question", ASK).strip()
    if not answer:
        raise DemoError("the answer is empty")
    print(f"  A: {answer}")

    say(f"kubectl get {POOLS}")
    print(kubectl.run("get", POOLS))
    print(f"Done in {time.monotonic() - started:.0f} s. What to try next:\n")
    for line in what_next(cluster):
        print(f"  {line}")


def what_next(cluster: Cluster) -> Sequence[str]:
    """Lines for a shell. The PATH has the cluster's own kubectl and helm, and the plugin behind `kubectl kvik`."""
    body = {"model": MODEL, "temperature": 0, "messages": [{"role": "user", "content": "Why is the sky blue?"}]}
    header = shlex.quote("Content-Type: application/json")
    return (
        f"export KUBECONFIG={cluster.kubeconfig} PATH={Path(cluster.kubectl).parent}:{ROOT / '.venv' / 'bin'}:$PATH",
        f"kubectl -n {NAMESPACE} describe {POOLS} {POOL}",
        f"kubectl kvik explain {POOL} -n {NAMESPACE}    # why it has as many pods; also top, history, upgrade, drain",
        f"kubectl -n {NAMESPACE} port-forward service/{POOL} 8000 &",
        f"curl -s http://localhost:8000/v1/chat/completions -H {header} -d {shlex.quote(json.dumps(body))}",
        f"kubectl explain {POOLS}.spec",
        "make demo-down      # remove the pool and the operator",
        "make cluster-down   # remove the cluster",
    )


def down() -> None:
    """Pool first, so that its operator is still there to let streams end; then the releases and namespaces.

    Deleting the API deletes every pool of the cluster, so it goes only when no pool is left.
    """
    cluster = cluster_found()
    if cluster is None:
        say("The cluster is not up: there is no demo to remove")
        return
    demo, system = cluster.in_namespace(NAMESPACE), cluster.in_namespace(SYSTEM)
    ours = (demo.get("namespace", NAMESPACE), system.get("namespace", SYSTEM), system.get("crd", POOLS))
    if not any(ours):
        say("There is no demo to remove")
        return
    say(f"Removing {NAMESPACE}: about half a minute, since engines end their streams first")
    remove_namespace(demo, borrowed=cluster.borrowed)
    pools = system.list(POOLS, all_namespaces=True) if system.get("crd", POOLS) else ()
    if why := why_keep_operator(system.get("namespace", SYSTEM), pools, borrowed=cluster.borrowed):
        say(f"The operator stays: {why}")
        return
    say(f"Removing {SYSTEM}: the operator, the API and their namespace")
    for release in ("kvik", "kvik-crds"):
        cluster.run_helm("uninstall", release, "--ignore-not-found", "--wait")
    system.run("delete", "crd", POOLS, "--ignore-not-found", timeout=120)
    remove_namespace(system, borrowed=cluster.borrowed)


def main() -> int:
    parser = argparse.ArgumentParser(prog="demo", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", nargs="?", choices=["up", "prepare", "down"], default="up")
    try:
        {"up": up, "prepare": prepare, "down": down}[parser.parse_args().what]()
    except RuntimeError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
