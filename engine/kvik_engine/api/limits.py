"""Every bound on what a client may send or hold, in one place. Sizes are bytes, times seconds."""

from __future__ import annotations

MAX_HEAD_BYTES = 16 << 10
"""Request line and headers together."""
MAX_HEADERS = 64
HEAD_SECONDS = 10.0
"""From connecting, or from the first byte of a later request, to a whole head."""
BODY_SECONDS = 30.0
IDLE_SECONDS = 75.0
"""A kept-alive connection without a request."""
MAX_CONNECTIONS = 2048
"""Of each port; fewer where the process may not open so many files."""
RESERVED_FILES = 128
"""What the process opens besides its clients' connections."""
WRITE_SECONDS = 60.0
"""A client that has for so long not taken enough for more to be written, as one that takes nothing, is cut off and its
request aborted."""
KEEPALIVE_COMMENT_SECONDS = 15.0
"""An SSE comment goes out after so long without an event."""

BODY_BYTES_PER_TOKEN = 16
"""Room for escaped text: most text needs 3 to 6 bytes a token."""
BODY_BYTES_BASE = 64 << 10
MAX_BODIES_BYTES = 64 << 20
"""Bodies of all requests together, from their first byte until their prompts are tokenized."""
MAX_JSON_DEPTH = 32
PARSE_IN_THREAD_BYTES = 32 << 10
"""Bodies from this size on are parsed in a worker thread."""

MAX_N = 8
MAX_PROMPTS = 64
MAX_CHOICES = 128
"""n x prompts of one request."""
MAX_STOPS = 16
MAX_STOP_CHARS = 128
MAX_STOP_TOKEN_IDS = 64
MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 1024
MAX_LENGTH_PENALTY = 10.0
"""Either side of 0. 1 is the default; beyond a few, only the longest or shortest answer counts."""
MAX_SALT_CHARS = 256
MAX_CLIENT_ID_CHARS = 128
"""Of X-Request-Id; longer ones are not echoed."""

TEXT_THREADS = 4
"""Worker threads for parsing, templates and tokenizing."""


def max_body_bytes(context_tokens: int) -> int:
    """The largest request body for a model that serves `context_tokens`."""
    return BODY_BYTES_BASE + BODY_BYTES_PER_TOKEN * context_tokens
