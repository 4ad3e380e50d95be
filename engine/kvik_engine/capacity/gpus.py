"""What GPUs have, by their makers' public data sheets: memory, bandwidth, and dense matrix rate in fp16 and bf16.

Data sheets give GB where the part has GiB, and NVIDIA's since Ampere give rates with sparsity: dense is half of them.
The driver keeps a few per cent of the memory for itself, ECC up to 6 % on GDDR parts: --memory overrides.
"""

from __future__ import annotations

from dataclasses import dataclass

_GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class GPU:
    """One device. `flops` are of dense fp16 and bf16 products with fp32 sums, at the peak clock."""

    name: str
    memory_bytes: int
    bytes_per_second: float
    flops: float


def _gpu(name: str, gib: int, terabytes_per_second: float, teraflops: float) -> GPU:
    return GPU(name, gib * _GIB, terabytes_per_second * 1e12, teraflops * 1e12)


GPUS = {
    gpu.name: gpu
    for gpu in (
        # NVIDIA T4 Tensor Core GPU data sheet: 16 GB GDDR6, 320 GB/s, 65 TFLOPS mixed precision (fp16 only).
        _gpu("t4", 16, 0.320, 65),
        # NVIDIA A10 data sheet: 24 GB GDDR6, 600 GB/s, BF16 125 TFLOPS dense.
        _gpu("a10", 24, 0.600, 125),
        # NVIDIA L4 data sheet: 24 GB GDDR6, 300 GB/s, BF16 242 TFLOPS with sparsity.
        _gpu("l4", 24, 0.300, 121),
        # NVIDIA L40S data sheet: 48 GB GDDR6, 864 GB/s, BF16 362 TFLOPS dense.
        _gpu("l40s", 48, 0.864, 362),
        # NVIDIA A100 data sheet: 40 GB SXM HBM2 1,555 GB/s; 80 GB SXM HBM2e 2,039 GB/s; BF16 312 TFLOPS dense.
        _gpu("a100-40gb", 40, 1.555, 312),
        _gpu("a100", 80, 2.039, 312),
        # NVIDIA H100 data sheet: SXM 80 GB 3.35 TB/s, BF16 1,979 TFLOPS with sparsity; NVL 94 GB 3.9 TB/s, 1,671.
        _gpu("h100", 80, 3.35, 989.5),
        _gpu("h100-nvl", 94, 3.9, 835.5),
        # NVIDIA H100 PCIe product brief: 80 GB HBM2e, 2.0 TB/s; BF16 1,513 TFLOPS with sparsity.
        _gpu("h100-pcie", 80, 2.0, 756.5),
        # NVIDIA H200 data sheet: SXM 141 GB HBM3e, 4.8 TB/s, BF16 1,979 TFLOPS with sparsity.
        _gpu("h200", 141, 4.8, 989.5),
        # NVIDIA HGX B200 data sheet, an eighth of 1,440 GB, 64 TB/s and 36 PFLOPS BF16 with sparsity.
        _gpu("b200", 180, 8.0, 2250),
        # AMD Instinct MI300X data sheet: 192 GB HBM3, 5.3 TB/s, BF16 1,307.4 TFLOPS dense.
        _gpu("mi300x", 192, 5.3, 1307.4),
        # AMD Instinct MI325X data sheet: 256 GB HBM3E, 6.0 TB/s, BF16 1,307.4 TFLOPS dense.
        _gpu("mi325x", 256, 6.0, 1307.4),
    )
}
