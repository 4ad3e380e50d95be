"""Attention over the paged KV cache: one Protocol, one backend a file, metadata built once a step."""
