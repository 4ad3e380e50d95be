"""Which modules may be missing: a CPU image has no triton, the environment of compile tests no torch."""

import subprocess
import sys

OPERATIONS = ("kv_write", "paged_attention", "rms_norm", "rotary", "swiglu")
TESTING = "import kvik_kernels.testing"
BLOCK = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {missing!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Missing())
"""


def run_without(missing: set[str], code: str) -> None:
    script = BLOCK.format(missing=missing) + code
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_the_package_imports_neither_torch_nor_triton() -> None:
    run_without(
        {"torch", "triton", "numpy"}, "import kvik_kernels\n" + "\n".join(f"kvik_kernels.{name}" for name in OPERATIONS)
    )


def test_naive_works_without_triton() -> None:
    run_without(
        {"triton"}, "".join(f"from kvik_kernels.{name} import naive, launch\n" for name in OPERATIONS) + TESTING
    )


def test_kernel_files_import_without_torch() -> None:
    """triton itself looks for torch but does without it."""
    kernels = ", ".join(f"kvik_kernels.{name}.kernel" for name in OPERATIONS)
    run_without({"torch"}, f"import {kernels}, kvik_kernels.aot")
