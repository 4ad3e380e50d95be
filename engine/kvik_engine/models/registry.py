"""Which class runs an architecture: names as config.json and GGUF metadata write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from torch import Tensor

from kvik_engine.attention.backend import StepAttention
from kvik_engine.layers.tensors import TensorSource
from kvik_engine.models.architectures import DEEPSEEK_2, GEMMA_3, LLAMA_FAMILY, check_architecture
from kvik_engine.models.config import ModelConfig
from kvik_engine.models.deepseek2 import DeepSeek2
from kvik_engine.models.gemma3 import Gemma3
from kvik_engine.models.llama import Llama


class Model(Protocol):
    """One loaded model. Rows of a step are packed one behind the other, without padding; no operation mixes rows."""

    config: ModelConfig

    def forward(self, token_ids: Tensor, positions: Tensor, attention: StepAttention) -> Tensor:
        """Hidden states after the last norm: int64 [tokens], int64 [tokens] -> [tokens, hidden]."""
        ...

    def logits(self, hidden: Tensor) -> Tensor:
        """[rows, hidden] -> fp32 [rows, vocabulary]."""
        ...

    @property
    def parameters(self) -> int: ...


_FAMILIES: Mapping[str, Callable[[ModelConfig, TensorSource], Model]] = {
    **dict.fromkeys(LLAMA_FAMILY, Llama),
    **dict.fromkeys(GEMMA_3, Gemma3),
    **dict.fromkeys(DEEPSEEK_2, DeepSeek2),
}


def build(config: ModelConfig, tensors: TensorSource) -> Model:
    """Take the model's tensors from a source. Raises StartError (ModelUnsupported, ModelInvalid)."""
    check_architecture(config.architecture)
    return _FAMILIES[config.architecture](config, tensors)
