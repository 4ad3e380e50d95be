"""The Kvik engine: an OpenAI-compatible server over a paged KV cache with continuous batching."""

__version__ = "0.1.0"
