"""The KV cache: which block holds what, and who may use it. Pure bookkeeping, no tensors."""
