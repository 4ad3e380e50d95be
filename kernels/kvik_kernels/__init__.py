"""Kernels with their plain torch truth, in Triton and, for CPUs, in C++ (`kvik_kernels.cpu`); imports torch, triton and
the standard library only.

Importing this package loads neither torch nor triton: each operation imports its kernel inside the call. The names
below are the functions; the modules of an operation are reached as `from kvik_kernels.kv_write import naive`.
"""

from kvik_kernels.kv_write import kv_write
from kvik_kernels.paged_attention import paged_attention
from kvik_kernels.rms_norm import rms_norm
from kvik_kernels.rotary import rotary
from kvik_kernels.swiglu import swiglu

__all__ = ["kv_write", "paged_attention", "rms_norm", "rotary", "swiglu"]
