"""Triton kernels with their plain torch truth; imports torch, triton and the standard library only."""
