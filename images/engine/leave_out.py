"""Run inside the build of the cpu variant: removes what a CPU process never maps, as measured, and checks the rest.

PyTorch's wheel for Linux is linked to the CUDA libraries, so most of them must stay even where no GPU will ever be;
but cuDNN's engines, static libraries and headers are only opened with a GPU or a compiler at work.
"""

import subprocess
import sys
from pathlib import Path

USE_OF_TORCH = """
import torch, transformers, numpy, safetensors.torch, gguf, tokenizers
a = torch.randn(64, 64)
for dtype in (torch.float32, torch.bfloat16):
    b = a.to(dtype)
    (b @ b).softmax(-1)
    q = b.reshape(1, 4, 16, 64)
    torch.nn.functional.scaled_dot_product_attention(q, q, q)
torch.linalg.qr(a)
torch.nn.functional.conv1d(torch.randn(1, 4, 16), torch.randn(4, 4, 3))
torch.fft.rfft(a)
print(open("/proc/self/maps").read())
"""


def main() -> None:
    packages = Path(sys.prefix, "lib", f"python{sys.version_info.major}.{sys.version_info.minor}", "site-packages")
    used = mapped()
    removed = 0
    for path in removable(packages):
        if path.resolve() not in used:
            removed += path.stat().st_size
            path.unlink()
    if not mapped() <= used:
        raise SystemExit("leave_out: the environment maps other libraries than before")
    print(f"leave_out: removed {removed / 1e6:.0f} MB that a CPU process never maps")


def mapped() -> set[Path]:
    """The files that a process doing the engine's kind of work on a CPU has in its address space."""
    done = subprocess.run([sys.executable, "-c", USE_OF_TORCH], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"leave_out: torch does not work here:\n{done.stderr}")
    return {Path(line.split(maxsplit=5)[5]).resolve() for line in done.stdout.splitlines() if line.count("/") > 1}


def removable(packages: Path) -> list[Path]:
    """NVIDIA's files, and the headers that only a compiler would read. Python files stay: imports need them."""
    candidates = [packages / "nvidia", packages / "torch/include"]
    return [
        path
        for folder in candidates
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and path.suffix not in (".py", ".pyc")
    ]


if __name__ == "__main__":
    main()
