"""The embedded model for tests: fetched once into the user's cache by the product's own code, checked by digest."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from kvik_engine.cli.sources import DEMO, local_model
from kvik_engine.weights.model_files import find_model_files


@cache
def demo_model() -> Path:
    """The .gguf file."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    gguf = find_model_files(local_model(DEMO, root / "kvik").path).gguf
    assert gguf is not None
    return gguf
