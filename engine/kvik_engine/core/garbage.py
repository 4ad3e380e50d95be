"""When Python looks for garbage cycles while steps run: not within a step, and never among what was loaded."""

from __future__ import annotations

import gc

THRESHOLDS = (3_000, 10, 1)
"""By default (700, 10, 10), so that a step of 256 rows starts two or three collections: it makes six objects a row that
are gone when its frame is sent. Full collections stay as frequent as they were. What a request leaves behind needs none
of them (core.loop cuts the only one)."""


def collect_between_steps() -> None:
    """To be called once, when all that serving stands on is there: looking through it takes a tenth of a second."""
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
