"""The import and syntax rules that import-linter cannot say: allow-lists, single importers, and no feature switches.

Each rule is a pure function over source text, tried here on a text that breaks it before it reads the tree.
"""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
STDLIB = frozenset(sys.stdlib_module_names)


@dataclass(frozen=True, slots=True)
class Import:
    """One imported module by its full dotted name, and whether it is imported when the file itself is."""

    module: str
    line: int
    at_import: bool

    @property
    def top(self) -> str:
        return self.module.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Allow:
    """Files that may import these packages and modules, and no others."""

    files: str
    modules: frozenset[str]
    but: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Forbid:
    """Files that may not import these packages or modules, neither at the top nor inside a function."""

    files: str
    modules: frozenset[str]
    but: tuple[str, ...] = ()


def imports_of(source: str) -> Iterator[Import]:
    """Every import of a source text; those under `if TYPE_CHECKING` are left out."""

    def visit(node: ast.AST, at_import: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.Import):
                yield from (Import(alias.name, child.lineno, at_import) for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.module is not None, "imports are absolute: ruff holds that"
                yield from (Import(f"{child.module}.{alias.name}", child.lineno, at_import) for alias in child.names)
            inside = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from visit(child, at_import and not inside)

    return visit(ast.parse(source), True)


def names(found: Import, modules: frozenset[str]) -> bool:
    """Whether an import is of one of the modules or of something inside it."""
    return any(found.module == module or found.module.startswith(f"{module}.") for module in modules)


def broken(rule: Allow | Forbid, source: str) -> list[str]:
    """The imports of a source text that the rule does not let pass."""
    if isinstance(rule, Allow):
        wrong = [found for found in imports_of(source) if not names(found, rule.modules)]
    else:
        wrong = [found for found in imports_of(source) if names(found, rule.modules)]
    return [f"line {found.line}: {found.module}" for found in wrong]


def files_of(pattern: str, but: tuple[str, ...] = ()) -> list[Path]:
    """The tree's files that match a pattern, without the exceptions."""
    left_out = {path for exception in but for path in ROOT.glob(exception)}
    return sorted(path for path in ROOT.glob(pattern) if path not in left_out)


ENGINE = "engine/kvik_engine"
OPERATOR = "operator/kvik_operator"
KERNELS = "kernels/kvik_kernels"
PLUGIN = "kubectl/kvik_kubectl"
RUNS_ON_OTHER_GPU_IMAGES = (
    "scheduler/**/*",
    "kv/**/*",
    "step",
    "request",
    "runner/**/*",
    "attention/**/*",
    "models/**/*",
)
# Folder of deciders, and the thin files in it that act.
PURE_IN_THE_OPERATOR = {
    "reconcile": ("reconcile", "observe", "apply"),
    "autoscale": ("loop", "scrape", "board"),
    "metrics_api": ("access", "keeper", "listener", "server", "service", "source"),
    "keda": ("keeper", "listener", "scaler", "service"),
    "objects": (),
    "crd": (),
}


def acting(folder: str) -> tuple[str, ...]:
    return tuple(f"{OPERATOR}/{folder}/{name}.py" for name in PURE_IN_THE_OPERATOR[folder])


RULES: list[Allow | Forbid] = [
    # yaml and urllib3 are the client library's own: their errors are told from it.
    Allow(f"{PLUGIN}/connection.py", STDLIB | {"kvik_kubectl", "kubernetes", "yaml", "urllib3"}),
    Allow(f"{PLUGIN}/**/*.py", STDLIB | {"kvik_kubectl"}, but=(f"{PLUGIN}/connection.py",)),
    Allow(f"{KERNELS}/**/*.py", STDLIB | {"kvik_kernels", "torch", "triton"}),
    Forbid(f"{KERNELS}/**/*.py", frozenset({"triton"}), but=(f"{KERNELS}/*/kernel.py", f"{KERNELS}/aot.py")),
    Forbid(f"{KERNELS}/*/kernel.py", frozenset({"torch"})),
    Forbid(f"{ENGINE}/**/*.py", frozenset({"triton"})),
    *(
        Forbid(f"{ENGINE}/{part}.py", frozenset({"torch", "transformers"}))
        for part in ("api/**/*", "text/**/*", "ipc/**/*", "request", "step", "params", "scheduler/**/*", "kv/**/*")
    ),
    *(Forbid(f"{ENGINE}/{part}.py", frozenset({"msgspec", "gguf"})) for part in RUNS_ON_OTHER_GPU_IMAGES),
    Forbid(f"{ENGINE}/**/*.py", frozenset({"kvik_engine.convert"}), but=(f"{ENGINE}/convert.py",)),
    Forbid(f"{OPERATOR}/**/*.py", frozenset({"grpc"}), but=(f"{OPERATOR}/keda/*.py",)),
    Forbid(f"{OPERATOR}/**/*.py", frozenset({"kopf"}), but=(f"{OPERATOR}/watch/events.py", f"{OPERATOR}/app.py")),
    Forbid(f"{OPERATOR}/**/*.py", frozenset({"kubernetes"}), but=(f"{OPERATOR}/kube/**/*.py",)),
    *(
        Forbid(f"{OPERATOR}/{folder}/**/*.py", frozenset({"kopf", "kubernetes", "asyncio", "time"}), but=acting(folder))
        for folder in PURE_IN_THE_OPERATOR
    ),
]


def title(rule: Allow | Forbid) -> str:
    if isinstance(rule, Allow):
        return f"{rule.files} imports only {', '.join(sorted(rule.modules - STDLIB)) or 'the standard library'}"
    return f"{rule.files} never imports {', '.join(sorted(rule.modules))}"


@pytest.mark.parametrize("rule", RULES, ids=title)
def test_the_tree_keeps_the_import_rule(rule: Allow | Forbid) -> None:
    files = files_of(rule.files, rule.but)

    assert files, "a rule over no file guards nothing"
    assert {str(path.relative_to(ROOT)): wrong for path in files if (wrong := broken(rule, path.read_text()))} == {}


def test_no_test_module_imports_another() -> None:
    """What several need is in tests/support: a test could not move or change without those that lean on it."""
    leaning = {
        str(path.relative_to(ROOT)): found.module
        for path in files_of("tests/**/*.py")
        for found in imports_of(path.read_text())
        if found.top == "tests" and ".test_" in found.module
    }

    assert leaning == {}


def test_an_import_inside_a_function_breaks_a_rule_as_well() -> None:
    source = "import os\n\ndef later():\n    from torch import nn\n"

    assert broken(Forbid("", frozenset({"torch"})), source) == ["line 4: torch.nn"]
    assert broken(Allow("", STDLIB), source) == ["line 4: torch.nn"]


def test_an_import_for_the_type_checker_alone_breaks_no_rule() -> None:
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n"

    assert broken(Forbid("", frozenset({"torch"})), source) == []


def test_a_package_of_a_like_name_is_another_package() -> None:
    assert broken(Forbid("", frozenset({"time"})), "import timeit\n") == []


def clock_readings(source: str) -> list[str]:
    """Calls of a source text that ask what time it is."""
    return [
        f"line {node.lineno}: {ast.unparse(node.func)}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in {"now", "utcnow", "today", "monotonic"}
    ]


@pytest.mark.parametrize("folder", PURE_IN_THE_OPERATOR)
def test_the_operators_deciders_are_told_the_time(folder: str) -> None:
    files = files_of(f"{OPERATOR}/{folder}/**/*.py", acting(folder))

    assert {str(path.relative_to(ROOT)): wrong for path in files if (wrong := clock_readings(path.read_text()))} == {}


def test_a_reading_of_the_clock_is_found() -> None:
    assert clock_readings("later = datetime.now(UTC) + delay") == ["line 1: datetime.now"]


WITHOUT_MSGSPEC_AND_GGUF = """
import importlib, pkgutil, sys
sys.modules["msgspec"] = sys.modules["gguf"] = None  # importing them fails
for name in sys.argv[1:]:
    package = importlib.import_module(name)
    for module in pkgutil.walk_packages(getattr(package, "__path__", ()), f"{name}."):
        if not module.name.endswith(".kernel"):  # needs triton, which a CPU image lacks
            importlib.import_module(module.name)
"""


def test_what_gpu_images_of_other_versions_run_imports_without_msgspec_and_gguf() -> None:
    packages = ("step", "request", "scheduler", "kv", "runner", "attention", "models", "layers", "sampling")
    modules = [f"kvik_engine.{name}" for name in packages] + ["kvik_kernels"]

    subprocess.run([sys.executable, "-c", WITHOUT_MSGSPEC_AND_GGUF, *modules], check=True, cwd=ROOT)


def test_an_operation_imports_its_triton_kernel_inside_the_call_only() -> None:
    early = {
        str(path.relative_to(ROOT)): found.line
        for path in files_of(f"{KERNELS}/*/__init__.py")
        for found in imports_of(path.read_text())
        if found.at_import and found.module.endswith(".kernel")
    }

    assert early == {}


def module_file(module: str) -> Path | None:
    """The engine's file of a dotted name, or of the module that the name lies in."""
    path = ROOT / "engine" / module.replace(".", "/")
    for candidate in (path.with_suffix(".py"), path / "__init__.py", path.parent.with_suffix(".py")):
        if candidate.is_file():
            return candidate
    return None


def test_pid_1_reaches_only_the_standard_library() -> None:
    waiting = [ROOT / ENGINE / "launch.py"]
    seen: set[Path] = set()
    outside: dict[str, str] = {}
    while waiting:
        path = waiting.pop()
        seen.add(path)
        for found in imports_of(path.read_text()):
            inner = module_file(found.module) if found.top == "kvik_engine" else None
            if inner is not None:
                waiting += [file for file in (inner, inner.parent / "__init__.py") if file not in seen]
            elif found.top not in STDLIB:
                outside[found.module] = str(path.relative_to(ROOT))

    assert outside == {}


CONFIGURATION = frozenset({"config", "settings", "options", "flags", "features", "args"})


def truths(test: ast.expr) -> Iterator[ast.expr]:
    """What a condition takes as true or false by itself: its parts under and, or, not, and equality or identity."""
    match test:
        case ast.BoolOp(values=values):
            for value in values:
                yield from truths(value)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield from truths(operand)
        case ast.Compare(left=left, ops=ops) if all(
            isinstance(op, ast.Is | ast.IsNot | ast.Eq | ast.NotEq) for op in ops
        ):
            yield left
        case _:
            yield test


def feature_switches(source: str) -> list[str]:
    """Conditions of a source text that ask the configuration whether, rather than how much."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.If | ast.IfExp | ast.While):
            continue
        for part in truths(node.test):
            if not isinstance(part, ast.Attribute):
                continue
            owner = part.value
            owner_name = (
                owner.attr if isinstance(owner, ast.Attribute) else owner.id if isinstance(owner, ast.Name) else ""
            )
            if owner_name.lstrip("_") in CONFIGURATION or part.attr.lstrip("_").startswith(("enable", "use_")):
                found.append(f"line {node.lineno}: {ast.unparse(node.test)}")
    return found


@pytest.mark.parametrize(
    "path", [f"{ENGINE}/scheduler/scheduler.py", f"{ENGINE}/core/loop.py", f"{OPERATOR}/reconcile/reconcile.py"]
)
def test_the_central_loops_hold_no_feature_switch(path: str) -> None:
    assert feature_switches((ROOT / path).read_text()) == []


@pytest.mark.parametrize(
    "condition",
    [
        "self._config.speculation",
        "not config.swap",
        "x and settings.radix is not None",
        "config.mode == 'a'",
        "self.use_radix",
    ],
)
def test_a_feature_switch_is_found(condition: str) -> None:
    assert feature_switches(f"if {condition}:\n    pass\n") != []


@pytest.mark.parametrize(
    "condition", ["len(rows) >= config.max_requests", "request.config_id", "plan.rows", "self._drafts is None"]
)
def test_an_amount_or_a_state_is_no_feature_switch(condition: str) -> None:
    assert feature_switches(f"if {condition}:\n    pass\n") == []


def test_every_package_carries_the_version_of_the_version_file() -> None:
    want = (ROOT / "VERSION").read_text().strip()

    versions = {
        folder: tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]["version"]
        for folder in ("engine", "operator", "kernels", "kubectl")
    }

    assert versions == dict.fromkeys(versions, want)


def test_image_tags_in_pages_and_examples_are_of_the_version_file() -> None:
    want = (ROOT / "VERSION").read_text().strip()
    pages = [path for path in tracked() if path.suffix in (".md", ".yaml") and path.name != "CHANGELOG.md"]

    tags = {tag for page in pages for tag in re.findall(r"(?:tag[:=] ?|engine:)(\d+\.\d+\.\d+)", page.read_text())}

    assert tags == {want}


def test_no_init_file_shadows_the_standard_librarys_operator_or_makes_tests_a_package() -> None:
    assert files_of("operator/__init__.py") + files_of("tests/**/__init__.py") == []


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def test_no_tracked_file_names_a_package_index_or_a_path_of_this_machine() -> None:
    # Asked from the client itself, so that this file does not name them either.
    from pip._internal.models.index import PyPI

    words = {PyPI.netloc, PyPI.file_storage_domain, f"{ROOT.parent}/"}

    found = [
        f"{path.relative_to(ROOT)}: {word}"
        for path in tracked()
        for word in words
        if word.encode() in path.read_bytes()
    ]
    assert found == []


def test_no_tracked_file_is_larger_than_a_mebibyte() -> None:
    assert [str(path.relative_to(ROOT)) for path in tracked() if path.stat().st_size > 2**20] == []
