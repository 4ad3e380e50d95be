"""GGUF files: tensors dequantised in slices by the gguf package, whose numpy code is vectorised.

The head is read by gguf_header, bounded, and gguf_tensors checks the table of tensors before the file is mapped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from kvik_engine.errors import StartError, StartReason
from kvik_engine.weights.gguf_config import config_from_gguf
from kvik_engine.weights.gguf_header import TensorInfo, read_header
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
_NORMS = ("attn_norm", "ffn_norm")
_ROTARY_TABLE = "attn_rot_embd"
"""Old converters wrote the rotary frequencies too, which follow from the metadata."""
_LAYER = re.compile(r"blk\.(?P<layer>0|[1-9]\d{0,5})\.(?P<part>\w+)\.(?P<kind>weight|bias)\Z", re.ASCII)
_TOP_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
    "rope_freqs.weight": "rope_freqs.weight",  # see layers.rotary
}


class GGUFCheckpoint:
    """See weights.checkpoint.Checkpoint."""

    def __init__(self, path: Path) -> None:
        header = read_header(path)
        check_tensor_table(header, path.name)
        self.config: Mapping[str, object] = config_from_gguf(header)
        layers = self.config["num_hidden_layers"]
        assert isinstance(layers, int)
        self._tensors = hf_names(header.tensors, layers)
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


def hf_names(tensors: Iterable[TensorInfo], layers: int) -> dict[str, TensorInfo]:
    """The tensors by their names in Hugging Face checkpoints.

    StartError (ModelUnsupported) for a name that is not known: answers without that tensor would be almost right, which
    nobody notices.
    """
    named: dict[str, TensorInfo] = {}
    for info in tensors:
        match = _LAYER.match(info.name)
        part = match["part"] if match else ""
        known = _TOP_NAMES.get(info.name)
        if match and int(match["layer"]) < layers:
            if part == _ROTARY_TABLE:
                continue
            if part in _LAYER_NAMES and (match["kind"] == "weight" or part not in _NORMS):
                known = f"model.layers.{match['layer']}.{_LAYER_NAMES[part]}.{match['kind']}"
        if known is None:
            message = f"the GGUF file has the tensor {info.name[:80]!r}, which is not known"
            raise StartError(StartReason.MODEL_UNSUPPORTED, message)
        named[known] = info
    return named


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
