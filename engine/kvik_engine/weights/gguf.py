"""GGUF files: tensors dequantised in slices by the gguf package, whose numpy code is vectorised.

The head is read by gguf_header, bounded, and gguf_tensors checks the table of tensors before the file is mapped.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from kvik_engine.weights.gguf_config import config_from_gguf
from kvik_engine.weights.gguf_header import read_header
from kvik_engine.weights.gguf_tensors import check_tensor_table, stored_bytes

SLICE_ELEMENTS = 1 << 20
"""Elements dequantised at a time: numpy's temporaries stay within tens of megabytes."""

_FLOATS = {GGMLQuantizationType.F32: torch.float32, GGMLQuantizationType.F16: torch.float16}

_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}


class GGUFCheckpoint:
    """See weights.checkpoint.Checkpoint."""

    def __init__(self, path: Path) -> None:
        header = read_header(path)
        check_tensor_table(header, path.name)
        self.config: Mapping[str, object] = config_from_gguf(header)
        self._tensors = {hf_name(info.name): info for info in header.tensors}
        self.shapes: Mapping[str, tuple[int, ...]] = {
            name: tuple(reversed(info.shape)) for name, info in self._tensors.items()
        }
        self._data: npt.NDArray[np.uint8] = np.memmap(path, dtype=np.uint8, mode="r", offset=header.data_offset)
        self._heads = {"q_proj": self.config["num_attention_heads"], "k_proj": self.config["num_key_value_heads"]}

    def read(self, name: str, into: Tensor) -> None:
        info = self._tensors[name]
        rows = into.view(-1, into.shape[-1])
        raw = self._data[info.offset : info.offset + stored_bytes(info)].reshape(rows.shape[0], -1)
        step = max(1, SLICE_ELEMENTS // rows.shape[1])
        for start in range(0, rows.shape[0], step):
            rows[start : start + step] = _floats(raw[start : start + step], GGMLQuantizationType(info.ggml_type))
        heads = self._heads.get(name.rpartition(".")[0].rpartition(".")[2])
        if isinstance(heads, int):
            into.copy_(undo_rotary_permutation(into, heads))


def hf_name(name: str) -> str:
    """blk.3.attn_q.weight -> model.layers.3.self_attn.q_proj.weight; a name that is not known stays as it is."""
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _LAYER_NAMES:
        return f"model.layers.{parts[1]}.{_LAYER_NAMES[parts[2]]}.{parts[3]}"
    return _TOP_NAMES.get(name, name)


def undo_rotary_permutation(tensor: Tensor, heads: int) -> Tensor:
    """GGUF stores Llama's query and key rows with the two halves of each head interleaved (pairs side by side).

    Source: LlamaModel.permute in llama.cpp's convert_hf_to_gguf.py.
    """
    pairs = tensor.view(heads, tensor.shape[0] // heads // 2, 2, *tensor.shape[1:])
    return pairs.transpose(1, 2).reshape(tensor.shape)


def _floats(raw: npt.NDArray[np.uint8], kind: GGMLQuantizationType) -> Tensor:
    """Rows of stored bytes -> rows of floats."""
    raw = np.ascontiguousarray(raw)
    if kind in _FLOATS:
        return torch.from_numpy(raw.copy()).view(_FLOATS[kind])
    if kind is GGMLQuantizationType.BF16:
        return torch.from_numpy(raw.copy()).view(torch.bfloat16)
    return torch.from_numpy(dequantize(raw, kind))
