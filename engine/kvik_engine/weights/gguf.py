"""GGUF files: tensors dequantised in slices by the gguf package, whose numpy code is vectorised.

The head is read by gguf_header, bounded; here the table of tensors is checked against the file before it is mapped.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from kvik_engine.errors import StartError, StartReason
from kvik_engine.weights.gguf_config import config_from_gguf
from kvik_engine.weights.gguf_header import GGUFHeader, TensorInfo, read_header

SLICE_ELEMENTS = 1 << 20
"""Elements dequantised at a time: numpy's temporaries stay within tens of megabytes."""

_FLOATS = {GGMLQuantizationType.F32: torch.float32, GGMLQuantizationType.F16: torch.float16}
_READABLE = frozenset(
    GGMLQuantizationType[name]
    for name in ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
)

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


def stored_bytes(info: TensorInfo) -> int:
    """Bytes of a tensor in the file."""
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType(info.ggml_type)]
    return math.prod(info.shape) // int(block) * int(size)


def check_tensor_table(header: GGUFHeader, origin: str) -> None:
    """Every tensor has a readable type, whole quantisation blocks in each row, and lies inside the file alone.

    Raises StartError (ModelInvalid, ModelUnsupported).
    """
    available = header.file_bytes - header.data_offset
    end = 0
    for info in sorted(header.tensors, key=lambda t: t.offset):
        label = f"{origin}: the tensor {info.name[:80]!r}"
        try:
            kind = GGMLQuantizationType(info.ggml_type)
        except ValueError:
            raise StartError(StartReason.MODEL_INVALID, f"{label} has the unknown type {info.ggml_type}") from None
        if kind not in _READABLE:
            raise StartError(StartReason.MODEL_UNSUPPORTED, f"{label} has the type {kind.name}, which is not supported")
        if not info.shape or info.shape[0] % GGML_QUANT_SIZES[kind][0]:
            raise StartError(
                StartReason.MODEL_INVALID, f"{label} has the shape {list(info.shape)}, no whole {kind.name} blocks"
            )
        if info.offset < end:
            raise StartError(StartReason.MODEL_INVALID, f"{label} lies over another one")
        end = info.offset + stored_bytes(info)
        if end > available:
            raise StartError(
                StartReason.MODEL_INVALID, f"{label} ends at byte {end} of {available}: the file is truncated"
            )


def _floats(raw: npt.NDArray[np.uint8], kind: GGMLQuantizationType) -> Tensor:
    """Rows of stored bytes -> rows of floats."""
    raw = np.ascontiguousarray(raw)
    if kind in _FLOATS:
        return torch.from_numpy(raw.copy()).view(_FLOATS[kind])
    if kind is GGMLQuantizationType.BF16:
        return torch.from_numpy(raw.copy()).view(torch.bfloat16)
    return torch.from_numpy(dequantize(raw, kind))
