"""Kernels in C++ for x86-64 CPUs, built for several instruction sets and chosen by what the CPU has. Without the built
library their callers keep to torch.
"""
