"""Tensors come out of both formats as they went in, whatever type they are stored in."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf.quants import dequantize, quantize
from safetensors.torch import save_file

from kvik_engine.errors import StartError, StartReason
from kvik_engine.models.read_config import from_hf
from kvik_engine.weights import gguf as reader
from kvik_engine.weights.checkpoint import CheckpointTensors, open_checkpoint
from kvik_engine.weights.gguf import GGUFCheckpoint, hf_names, undo_rotary_permutation
from kvik_engine.weights.gguf_header import TensorInfo
from kvik_engine.weights.safetensors import SafetensorsCheckpoint
from tests.support.model_files import CONFIG, GGUFFile, llama_shapes

TYPES = ["F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K"]


def write_gguf(path: Path, tensors: dict[str, tuple[tuple[int, ...], str, bytes]]) -> None:
    """`tensors`: name -> (shape slowest first, type, stored bytes)."""
    table, data = [], b""
    for name, (shape, kind, raw) in tensors.items():
        table.append((name, tuple(reversed(shape)), int(gguf.GGMLQuantizationType[kind]), len(data)))
        data += raw + bytes(-len(raw) % 32)
    path.write_bytes(GGUFFile(tensors=table, data=data).encode())


def stored(kind: str, rows: int, columns: int) -> tuple[bytes, np.ndarray]:
    """Bytes as a quantiser writes them, and what gguf's own code makes of them."""
    name = gguf.GGMLQuantizationType[kind]
    rng = np.random.default_rng(7)
    values = rng.standard_normal((rows, columns), dtype=np.float32)
    if kind.endswith("_K"):  # gguf can read these and not write them: random blocks with sane scales
        block, size = gguf.GGML_QUANT_SIZES[name]
        raw = rng.integers(0, 256, (rows, columns // block, size), dtype=np.uint8)
        scale = np.frombuffer(np.float16(0.01).tobytes(), dtype=np.uint8)
        if kind == "Q6_K":
            raw[..., -2:] = scale
        else:
            raw[..., 0:2] = raw[..., 2:4] = scale
        raw = raw.reshape(rows, -1)
    else:
        raw = quantize(values, name).view(np.uint8)
    return raw.tobytes(), dequantize(raw, name)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("slice_elements", [1 << 20, 700], ids=["one slice", "many slices"])
def test_each_type_is_read_as_gguf_dequantises_it(
    tmp_path: Path, kind: str, slice_elements: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "SLICE_ELEMENTS", slice_elements)
    raw, want = stored(kind, 10, 512)
    write_gguf(
        tmp_path / "m.gguf",
        {"output_norm.weight": ((32,), "F32", bytes(128)), "token_embd.weight": ((10, 512), kind, raw)},
    )
    checkpoint = GGUFCheckpoint(tmp_path / "m.gguf")
    got = torch.full((10, 512), torch.nan)
    checkpoint.read("model.embed_tokens.weight", got)

    assert torch.equal(got, torch.from_numpy(want))


def test_the_demo_models_types_are_read_as_their_format_says(tmp_path: Path) -> None:
    scale, least, q8_scale = 0.5, -3.0, 0.25
    nibbles = [i % 16 for i in range(32)]
    q4_1 = struct.pack("<ee", scale, least) + bytes(nibbles[i] | nibbles[i + 16] << 4 for i in range(16))
    q8_0 = struct.pack("<e32b", q8_scale, *range(-16, 16))
    write_gguf(
        tmp_path / "m.gguf", {"token_embd.weight": ((1, 32), "Q4_1", q4_1), "output.weight": ((1, 32), "Q8_0", q8_0)}
    )
    checkpoint = GGUFCheckpoint(tmp_path / "m.gguf")
    a, b = torch.empty(1, 32), torch.empty(1, 32)
    checkpoint.read("model.embed_tokens.weight", a)
    checkpoint.read("lm_head.weight", b)

    assert a[0].tolist() == [scale * n + least for n in nibbles]
    assert b[0].tolist() == [q8_scale * n for n in range(-16, 16)]


def test_the_rows_of_query_and_key_are_put_back_as_hugging_face_has_them(tmp_path: Path) -> None:
    original = torch.randn(32, 32)
    # llama.cpp's convert_hf_to_gguf.py: reshape(heads, 2, rows / heads / 2, ...).swapaxes(1, 2)
    written = original.reshape(4, 2, 4, 32).transpose(1, 2).reshape(32, 32)
    raw = written.numpy().tobytes()
    write_gguf(tmp_path / "m.gguf", {f"blk.0.attn_{x}.weight": ((32, 32), "F32", raw) for x in ("q", "v")})
    checkpoint = GGUFCheckpoint(tmp_path / "m.gguf")
    query, value = torch.empty(32, 32), torch.empty(32, 32)
    checkpoint.read("model.layers.0.self_attn.q_proj.weight", query)
    checkpoint.read("model.layers.0.self_attn.v_proj.weight", value)

    assert torch.equal(query, original)
    assert torch.equal(value, written)


def test_the_permutation_of_a_bias_is_undone_too() -> None:
    original = torch.arange(24.0)
    written = original.reshape(2, 2, 6).transpose(1, 2).reshape(24)

    assert torch.equal(undo_rotary_permutation(written, 2), original)


def named(*names: str) -> list[str]:
    return list(hf_names([TensorInfo(name, (1,), 0, 0) for name in names], layers=13))


def test_names_become_those_of_hugging_face() -> None:
    assert named("blk.12.ffn_gate.weight", "blk.0.attn_q.bias", "output.weight", "rope_freqs.weight") == [
        "model.layers.12.mlp.gate_proj.weight",
        "model.layers.0.self_attn.q_proj.bias",
        "lm_head.weight",
        "rope_freqs.weight",
    ]
    assert named("blk.0.attn_rot_embd.weight") == []


@pytest.mark.parametrize(
    "name",
    [
        "blk.0.attn_sinks.weight",
        "blk.0.attn_q_norm.weight",
        "blk.0.attn_norm.bias",
        "blk.0.attn_q.scale",
        "blk.13.attn_q.weight",
        "blk.01.attn_q.weight",
        "rope_factors_long.weight",
        "output.bias",
    ],
)
def test_a_tensor_that_would_be_left_out_is_refused(name: str) -> None:
    with pytest.raises(StartError, match="is not known") as caught:
        named(name)
    assert caught.value.reason is StartReason.MODEL_UNSUPPORTED


@pytest.mark.parametrize("name", ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"])
def test_a_bias_of_a_gguf_is_computed_with(name: str, tmp_path: Path) -> None:
    """llama.cpp's llama loads biases where they are; answers without them would be almost right."""
    embedding = {"token_embd.weight": ((2, 32), "F32", bytes(256))}
    write_gguf(tmp_path / "m.gguf", {**embedding, f"blk.0.{name}.bias": ((32,), "F32", bytes(128))})
    config = from_hf(GGUFCheckpoint(tmp_path / "m.gguf").config)
    assert (config.attention_bias, config.mlp_bias) == (name.startswith("attn"), name.startswith("ffn"))
    write_gguf(tmp_path / "m.gguf", embedding)
    config = from_hf(GGUFCheckpoint(tmp_path / "m.gguf").config)
    assert not config.attention_bias
    assert not config.mlp_bias


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("wanted", [torch.float32, torch.bfloat16])
def test_safetensors_of_each_float_type_are_read_into_the_models_dtype(
    tmp_path: Path, dtype: torch.dtype, wanted: torch.dtype
) -> None:
    values = torch.randn(5, 7).to(dtype)
    save_file({"a": values}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    tensors = CheckpointTensors(open_checkpoint(tmp_path), dtype=wanted, device=torch.device("cpu"))

    assert torch.equal(tensors.take("a", (5, 7)), values.to(wanted))


def sharded(folder: Path) -> dict[str, torch.Tensor]:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    tensors = {name: torch.randn(shape) for name, shape in llama_shapes(CONFIG).items()}
    names = sorted(tensors)
    files = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, part in files.items():
        save_file({name: tensors[name] for name in part}, folder / file)
    weight_map = {name: file for file, part in files.items() for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return tensors


def test_a_sharded_model_is_read_through_its_index(tmp_path: Path) -> None:
    tensors = sharded(tmp_path)
    save_file({"model.norm.weight": torch.zeros(16)}, tmp_path / "consolidated.safetensors")
    checkpoint = SafetensorsCheckpoint(tmp_path)

    assert dict(checkpoint.shapes) == {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    for name, tensor in tensors.items():
        got = torch.empty_like(tensor)
        checkpoint.read(name, got)
        assert torch.equal(got, tensor)


def test_shards_without_an_index_are_refused(tmp_path: Path) -> None:
    sharded(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()

    with pytest.raises(StartError, match=r"2 \.safetensors files and no model\.safetensors\.index\.json"):
        SafetensorsCheckpoint(tmp_path)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    tensors = sharded(tmp_path)
    save_file(tensors, tmp_path / "model-2.safetensors")

    with pytest.raises(StartError, match=r"is also in model-1\.safetensors"):
        SafetensorsCheckpoint(tmp_path)


def test_a_missing_tensor_and_a_wrong_shape_are_named(tmp_path: Path) -> None:
    sharded(tmp_path)
    tensors = CheckpointTensors(open_checkpoint(tmp_path), dtype=torch.float32, device=torch.device("cpu"))

    assert tensors.has("model.norm.weight")
    assert not tensors.has("lm_head.weight")
    with pytest.raises(StartError, match=r"lacks the tensor lm_head\.weight"):
        tensors.take("lm_head.weight", (24, 16))
    with pytest.raises(StartError, match=r"model\.norm\.weight has the shape \[16\], expected \[17\]"):
        tensors.take("model.norm.weight", (17,))
