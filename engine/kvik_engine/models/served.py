"""How far a model is served, by what this engine computes of it. Without torch: `kvik plan` asks too."""

from __future__ import annotations

from dataclasses import replace

from kvik_engine.models.config import ModelConfig


def served_config(config: ModelConfig) -> ModelConfig:
    """Within one window a sliding window hides nothing: serve that far and no further, with all layers alike."""
    if config.window is None:
        return config
    return replace(config, window=None, context_length=min(config.context_length, config.window.tokens))
