"""The table of tensors in a GGUF file: which types are read, and where each tensor lies. Standard library only."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvik_engine.errors import StartError, StartReason
from kvik_engine.weights.gguf_header import GGUFHeader, TensorInfo


@dataclass(frozen=True, slots=True)
class GGMLType:
    """How elements are stored: blocks of `elements` numbers in `bytes` bytes."""

    name: str
    elements: int
    bytes: int


READABLE = {
    0: GGMLType("F32", 1, 4),
    1: GGMLType("F16", 1, 2),
    2: GGMLType("Q4_0", 32, 18),
    3: GGMLType("Q4_1", 32, 20),
    6: GGMLType("Q5_0", 32, 22),
    7: GGMLType("Q5_1", 32, 24),
    8: GGMLType("Q8_0", 32, 34),
    12: GGMLType("Q4_K", 256, 144),
    13: GGMLType("Q5_K", 256, 176),
    14: GGMLType("Q6_K", 256, 210),
    30: GGMLType("BF16", 1, 2),
}
"""By the number that files give. The gguf package knows the same sizes, but takes 0.3 s to import."""
UNREADABLE = {
    9: "Q8_1",
    10: "Q2_K",
    11: "Q3_K",
    15: "Q8_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    24: "I8",
    25: "I16",
    26: "I32",
    27: "I64",
    28: "F64",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    39: "MXFP4",
    40: "NVFP4",
    41: "Q1_0",
}
"""Types that exist, for the message."""


def stored_bytes(info: TensorInfo) -> int:
    """Bytes of a checked tensor in the file."""
    kind = READABLE[info.ggml_type]
    return math.prod(info.shape) // kind.elements * kind.bytes


def check_tensor_table(header: GGUFHeader, origin: str) -> None:
    """Every tensor has a readable type, whole quantisation blocks in each row, and lies inside the file alone.

    Raises StartError (ModelInvalid, ModelUnsupported).
    """
    available = header.file_bytes - header.data_offset
    end = 0
    for info in sorted(header.tensors, key=lambda t: t.offset):
        label = f"{origin}: the tensor {info.name[:80]!r}"
        kind = READABLE.get(info.ggml_type)
        if kind is None:
            known = UNREADABLE.get(info.ggml_type)
            if known is None:
                raise StartError(StartReason.MODEL_INVALID, f"{label} has the unknown type {info.ggml_type}")
            raise StartError(StartReason.MODEL_UNSUPPORTED, f"{label} has the type {known}, which is not supported")
        if not info.shape or info.shape[0] % kind.elements:
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
