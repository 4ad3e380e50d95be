"""Says, without a network, where requirements/*.txt no longer holds what requirements/*.in and the packages ask for."""

import re
import sys
import tomllib
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "requirements"
LOCKS = ("uv", "engine", "operator", "kubectl", "dev")
APART = ("triton36", "peers-build", "peers")
"""Of environments of their own, which may be on this machine or not."""
PIN = re.compile(r"^(?P<name>[a-z0-9][a-z0-9._-]*)==(?P<version>[^ ;\\]+)(?: ; (?P<marker>[^\\]+?))?(?: \\)?$")


def asked(name: str, folder: Path = FOLDER) -> list[Requirement]:
    """The requirements of one .in file, those of the files it includes among them."""
    found: list[Requirement] = []
    for line in (folder / f"{name}.in").read_text().splitlines():
        text = line.split("#")[0].strip()
        if text.startswith("-r "):
            found += asked(text.removeprefix("-r ").removesuffix(".in"), folder)
        elif text:
            found.append(Requirement(text))
    return found


def pinned(name: str, folder: Path = FOLDER) -> tuple[dict[str, str], list[str]]:
    """The versions that one lock file pins on this platform, and what is wrong with the file by itself."""
    pins: dict[str, str] = {}
    problems: list[str] = []
    blocks = re.split(r"\n(?=[a-z0-9-])", "\n" + (folder / f"{name}.txt").read_text())
    for block in blocks[1:]:
        head = block.splitlines()[0]
        match = PIN.match(head)
        if match is None:
            problems.append(f"{name}.txt: not a plain pin: {head}")
            continue
        if "--hash=sha256:" not in block:
            problems.append(f"{name}.txt: {match['name']} has no hash")
        requirement = Requirement(f"{match['name']}{'; ' + match['marker'] if match['marker'] else ''}")
        if requirement.marker is None or requirement.marker.evaluate():
            pins[canonicalize_name(match["name"])] = match["version"]
    return pins, problems


def unmet(name: str, pins: dict[str, str], requirements: list[Requirement], asker: str) -> list[str]:
    """The requirements that the pins of one lock file do not meet, as sentences."""
    problems = []
    for requirement in requirements:
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = pins.get(canonicalize_name(requirement.name))
        if version is None:
            problems.append(f"{name}.txt: {requirement.name} is missing, {asker} needs it")
        elif not requirement.specifier.contains(version, prereleases=True):
            problems.append(f"{name}.txt: {requirement.name}=={version} is not what {asker} needs: {requirement}")
    return problems


def transitive(name: str, pins: dict[str, str]) -> list[str]:
    """What installed packages at their pinned version need and the lock does not hold."""
    problems = []
    for package, version in pins.items():
        try:
            distribution = metadata.distribution(package)
        except metadata.PackageNotFoundError:
            problems.append(f"{name}.txt: {package} is not installed: run make setup")
            continue
        if distribution.version != version:
            problems.append(
                f"{name}.txt: {package}=={version}, but {distribution.version} is installed: run make setup"
            )
        needs = [Requirement(text) for text in distribution.requires or ()]
        problems += unmet(name, pins, needs, package)
    return problems


def packages_differ() -> list[str]:
    """Where a package's own dependencies are not the lines of its .in file."""
    problems = []
    for name in ("engine", "operator", "kubectl"):
        project = tomllib.loads((ROOT / name / "pyproject.toml").read_text())["project"]
        declared = {str(Requirement(text)) for text in project["dependencies"] if not text.startswith("kvik-")}
        differing = declared ^ {str(requirement) for requirement in asked(name)}
        problems += [f"{name}.in and {name}/pyproject.toml differ: {text}" for text in sorted(differing)]
    return problems


def main() -> int:
    problems = packages_differ()
    for name in APART:
        pins, found = pinned(name)
        problems += found
        problems += unmet(name, pins, asked(name), f"{name}.in")
    versions: dict[str, str] = {}
    for name in LOCKS:
        pins, found = pinned(name)
        problems += found
        problems += unmet(name, pins, asked(name), f"{name}.in")
        problems += transitive(name, pins)
        for package, version in pins.items():
            if versions.setdefault(package, version) != version:
                problems.append(f"{name}.txt: {package}=={version}, another lock has {versions[package]}")
    for problem in dict.fromkeys(problems):
        print(f"requirements/{problem}")
    if problems:
        print("scripts/lock.sh writes the locks anew")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
