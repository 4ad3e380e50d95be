"""Model files are foreign: each broken one is refused by name within a second, before anything of it is mapped or run.

Bugs of this kind elsewhere: CVE-2024-23496 and CVE-2024-21802 (GGUF counts that are trusted), CVE-2026-7482.
"""

from __future__ import annotations

import json
import resource
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kvik_engine.errors import StartError, StartReason
from kvik_engine.layers.tensors import TensorSource
from kvik_engine.models.read_config import from_hf
from kvik_engine.models.registry import build
from kvik_engine.weights.checkpoint import CheckpointTensors, open_checkpoint
from kvik_engine.weights.model_files import find_model_files
from kvik_engine.weights.safetensors import weight_files
from tests.support.model_files import (
    CONFIG,
    LLAMA_METADATA,
    GGUFFile,
    safetensors_bytes,
    string,
    write_safetensors_model,
)

INVALID, UNSUPPORTED, NOT_FOUND = StartReason.MODEL_INVALID, StartReason.MODEL_UNSUPPORTED, StartReason.MODEL_NOT_FOUND
F32, Q4_0, IQ2_XXS = 0, 2, 16
EMBEDDING = ("token_embd.weight", (32, 8), F32, 0)
DATA = bytes(32 * 8 * 4)


def sound(**changes: Any) -> GGUFFile:
    return GGUFFile(**{"tensors": [EMBEDDING], "data": DATA, **changes})


def metadata(**changes: Any) -> dict[str, Any]:
    return {**LLAMA_METADATA, **{f"llama.{key.replace('__', '.')}": value for key, value in changes.items()}}


def array_entry(kind: int, count: int, items: bytes = b"", key: str = "x") -> bytes:
    return string(key) + struct.pack("<IIQ", 9, kind, count) + items


COUNT = len(LLAMA_METADATA) + 1
GGUF_FILES: dict[str, tuple[bytes, StartReason, str]] = {
    "empty": (b"", INVALID, "empty"),
    "another magic": (sound(magic=b"GGML").encode(), INVALID, "GGUF"),
    "big endian version": (sound(version=0x03000000).encode(), INVALID, "version"),
    "version 1": (sound(version=1).encode(), INVALID, "version"),
    "2^63 tensors": (sound(tensor_count=1 << 63).encode(), INVALID, "tensors"),
    "2^64 - 1 metadata entries": (sound(metadata_count=(1 << 64) - 1).encode(), INVALID, "entries"),
    "one tensor more than there are": (sound(tensor_count=2, data=b"").encode(), INVALID, ""),
    "key of 2^62 characters": (
        sound(metadata_count=COUNT, extra_metadata=string("x", length=1 << 62)).encode(),
        INVALID,
        "characters",
    ),
    "key longer than the file": (
        sound(metadata_count=COUNT, extra_metadata=string("x", length=1 << 20)).encode(),
        INVALID,
        "ends",
    ),
    "array of 2^61 numbers": (
        sound(metadata_count=COUNT, extra_metadata=array_entry(10, 1 << 61)).encode(),
        INVALID,
        "items",
    ),
    "array longer than the file": (
        sound(metadata_count=COUNT, extra_metadata=array_entry(10, 1 << 20)).encode(),
        INVALID,
        "ends",
    ),
    "array of arrays": (sound(metadata_count=COUNT, extra_metadata=array_entry(9, 1)).encode(), INVALID, "type"),
    "two million empty strings": (
        sound(metadata_count=COUNT, extra_metadata=array_entry(8, 2_200_000, bytes(8 * 2_200_000))).encode(),
        INVALID,
        "items",
    ),
    "three arrays of two million empty strings": (
        sound(
            metadata_count=COUNT + 2,
            extra_metadata=b"".join(
                array_entry(8, 2_000_000, bytes(8 * 2_000_000), key=key) for key in ("x", "y", "z")
            ),
        ).encode(),
        INVALID,
        "items of all arrays",
    ),
    "value of an unknown type": (
        sound(metadata_count=COUNT, extra_metadata=string("x") + struct.pack("<I", 99)).encode(),
        INVALID,
        "type",
    ),
    "key that stands twice": (
        sound(metadata_count=COUNT, extra_metadata=string("general.architecture") + struct.pack("<II", 4, 1)).encode(),
        INVALID,
        "twice",
    ),
    "tensor that stands twice": (sound(tensors=[EMBEDDING, EMBEDDING]).encode(), INVALID, "twice"),
    "alignment of three": (sound(metadata={**LLAMA_METADATA, "general.alignment": 3}).encode(), INVALID, "alignment"),
    "alignment of zero": (sound(metadata={**LLAMA_METADATA, "general.alignment": 0}).encode(), INVALID, "alignment"),
    "five dimensions": (sound(tensors=[("t", (2, 2, 2, 2, 2), F32, 0)]).encode(), INVALID, "dimensions"),
    "no dimension": (sound(tensors=[("token_embd.weight", (), F32, 0)]).encode(), INVALID, "dimension"),
    "dimension of zero": (sound(tensors=[("t", (0, 4), F32, 0)]).encode(), INVALID, "shape"),
    "shape whose product overflows 64 bits": (
        sound(tensors=[("t", ((1 << 39), (1 << 39), (1 << 39), 4), F32, 0)]).encode(),
        INVALID,
        "truncated",
    ),
    "shape larger than the file": (sound(tensors=[("t", (1 << 20, 64), F32, 0)]).encode(), INVALID, "truncated"),
    "offset past the end": (sound(tensors=[("t", (32, 8), F32, 1 << 40)]).encode(), INVALID, "truncated"),
    "offset near 2^64": (sound(tensors=[("t", (32, 8), F32, (1 << 64) - 32)]).encode(), INVALID, "truncated"),
    "tensors that overlap": (
        sound(tensors=[EMBEDDING, ("output_norm.weight", (32,), F32, 64)]).encode(),
        INVALID,
        "over another",
    ),
    "half of a quantisation block": (sound(tensors=[("t", (16, 8), Q4_0, 0)]).encode(), INVALID, "blocks"),
    "unknown tensor type": (sound(tensors=[("t", (32, 8), 250, 0)]).encode(), INVALID, "type"),
    "tensor type that is not read here": (
        sound(tensors=[("t", (256, 8), IQ2_XXS, 0)]).encode(),
        UNSUPPORTED,
        "IQ2_XXS",
    ),
    "truncated in its data": (sound().encode()[:-1], INVALID, "truncated"),
    "truncated in its head": (sound().encode()[:100], INVALID, "ends"),
    "head of a file alone": (b"GGUF", INVALID, "ends"),
    "another architecture": (sound(metadata={"general.architecture": "mamba"}).encode(), UNSUPPORTED, "mamba"),
    "an endless architecture": (sound(metadata={"general.architecture": "x" * 4_000_000}).encode(), UNSUPPORTED, "xx"),
    "an endless count": (
        sound(metadata={**LLAMA_METADATA, "llama.block_count": "x" * 4_000_000}).encode(),
        INVALID,
        "block_count",
    ),
    "architecture that is a number": (sound(metadata={"general.architecture": 5}).encode(), UNSUPPORTED, "5"),
    "no width": (
        sound(metadata={k: v for k, v in LLAMA_METADATA.items() if "embedding_length" not in k}).encode(),
        INVALID,
        "embedding_length",
    ),
    "width that is a text": (
        sound(metadata=metadata(embedding_length="../../etc/passwd")).encode(),
        INVALID,
        "embedding",
    ),
    "width below zero": (sound(metadata=metadata(embedding_length=-32)).encode(), INVALID, "embedding_length"),
    "two billion layers": (sound(metadata=metadata(block_count=2_000_000_000)).encode(), INVALID, "layers"),
    "heads that cannot be shared": (sound(metadata=metadata(attention__head_count_kv=3)).encode(), INVALID, "evenly"),
    "experts": (sound(metadata=metadata(expert_count=8)).encode(), UNSUPPORTED, "experts"),
    "yarn": (sound(metadata=metadata(rope__scaling__type="yarn")).encode(), UNSUPPORTED, "yarn"),
    "no layers in the file": (sound().encode(), INVALID, "lacks"),
}

ENTRY = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}
SAFETENSORS_FILES: dict[str, tuple[bytes, StartReason, str]] = {
    "empty": (b"", INVALID, "ends"),
    "head of 2^63 bytes": (safetensors_bytes({}, b"", length=1 << 63), INVALID, "head"),
    "head longer than the file": (safetensors_bytes({}, b"", length=1 << 20), INVALID, "ends"),
    "head that is no JSON": (safetensors_bytes(b"{]", b""), INVALID, "JSON"),
    "head that is a list": (safetensors_bytes([], b""), INVALID, "object"),
    "head nested a million deep": (safetensors_bytes(b"[" * 1_000_000, b""), INVALID, "nested deeper"),
    "head that is not UTF-8": (safetensors_bytes(b'{"\xff": 1}', b""), INVALID, "JSON"),
    "number of 100,000 digits": (safetensors_bytes(b'{"a": ' + b"9" * 100_000 + b"}", b""), INVALID, "JSON"),
    "tensor that stands twice": (
        safetensors_bytes(b'{"a": %b, "a": %b}' % ((json.dumps(ENTRY).encode(),) * 2), bytes(24)),
        INVALID,
        "twice",
    ),
    "entry that is a text": (safetensors_bytes({"a": "x"}, b""), INVALID, "object"),
    "offset past the end": (
        safetensors_bytes({"a": {**ENTRY, "data_offsets": [0, 1 << 40]}}, bytes(24)),
        INVALID,
        "lies",
    ),
    "offset below zero": (safetensors_bytes({"a": {**ENTRY, "data_offsets": [-24, 0]}}, bytes(24)), INVALID, "offsets"),
    "end before start": (safetensors_bytes({"a": {**ENTRY, "data_offsets": [24, 0]}}, bytes(24)), INVALID, "lies"),
    "shape of other bytes": (safetensors_bytes({"a": {**ENTRY, "shape": [2, 4]}}, bytes(24)), INVALID, "bytes"),
    "shape whose product overflows": (
        safetensors_bytes({"a": {**ENTRY, "shape": [(1 << 47), (1 << 47), 4]}}, bytes(24)),
        INVALID,
        "bytes",
    ),
    "shape with a half": (safetensors_bytes({"a": {**ENTRY, "shape": [2.5, 3]}}, bytes(24)), INVALID, "shape"),
    "dimension of zero": (safetensors_bytes({"a": {**ENTRY, "shape": [0, 3]}}, bytes(24)), INVALID, "shape"),
    "tensors that overlap": (safetensors_bytes({"a": ENTRY, "b": ENTRY}, bytes(24)), INVALID, "over another"),
    "bytes of no tensor": (safetensors_bytes({"a": ENTRY}, bytes(40)), INVALID, "no tensor"),
    "unknown dtype": (safetensors_bytes({"a": {**ENTRY, "dtype": "Q9"}}, bytes(24)), INVALID, "Q9"),
    "dtype that is not read here": (
        safetensors_bytes({"a": {"dtype": "I8", "shape": [24], "data_offsets": [0, 24]}}, bytes(24)),
        UNSUPPORTED,
        "I8",
    ),
    "no tensors": (safetensors_bytes({}, b""), INVALID, "lacks"),
}

CONFIGS: dict[str, tuple[bytes, StartReason, str]] = {
    "empty": (b"", INVALID, "JSON"),
    "a pickle": (b"\x80\x04\x95\x00.", INVALID, "JSON"),
    "five megabytes": (b'{"a": "' + b"x" * 5_000_000 + b'"}', INVALID, "larger"),
    "code": (json.dumps({**CONFIG, "architectures": ["os.system"]}).encode(), UNSUPPORTED, "os.system"),
    "no architecture": (json.dumps({**CONFIG, "architectures": None}).encode(), INVALID, "architectures"),
    "a billion layers": (json.dumps({**CONFIG, "num_hidden_layers": 10**9}).encode(), INVALID, "num_hidden_layers"),
    "layers as a text": (json.dumps({**CONFIG, "num_hidden_layers": "2"}).encode(), INVALID, "num_hidden_layers"),
    "layers that are true": (json.dumps({**CONFIG, "num_hidden_layers": True}).encode(), INVALID, "num_hidden_layers"),
    "eps that is infinite": (b'{"rms_norm_eps": Infinity, ' + json.dumps(CONFIG).encode()[1:], INVALID, ""),
    "another activation": (json.dumps({**CONFIG, "hidden_act": "relu"}).encode(), UNSUPPORTED, "relu"),
    "longrope": (json.dumps({**CONFIG, "rope_scaling": {"rope_type": "longrope"}}).encode(), UNSUPPORTED, "longrope"),
    "yarn without a factor": (json.dumps({**CONFIG, "rope_scaling": {"type": "yarn"}}).encode(), INVALID, "factor"),
    "yarn over a flat rotation": (
        json.dumps({**CONFIG, "rope_theta": 1.0, "rope_scaling": {"type": "yarn", "factor": 2}}).encode(),
        INVALID,
        "rope_theta",
    ),
    "yarn whose ends cross": (
        json.dumps({**CONFIG, "rope_scaling": {"type": "yarn", "factor": 2, "beta_fast": 1}}).encode(),
        INVALID,
        "beta_fast",
    ),
    "rotation of a part": (
        json.dumps({**CONFIG, "rope_parameters": {"partial_rotary_factor": 0.5}}).encode(),
        UNSUPPORTED,
        "part of each head",
    ),
    "layer kinds for other layers": (
        json.dumps({**CONFIG, "layer_types": ["full_attention"]}).encode(),
        INVALID,
        "layer_types",
    ),
    "a layer of another kind": (
        json.dumps({**CONFIG, "layer_types": ["full_attention", "linear_attention"]}).encode(),
        UNSUPPORTED,
        "linear_attention",
    ),
    "a window of no token": (json.dumps({**CONFIG, "sliding_window": 0}).encode(), INVALID, "sliding_window"),
    "llama3 scaling without a span": (
        json.dumps(
            {
                **CONFIG,
                "rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4},
            }
        ).encode(),
        INVALID,
        "high_freq_factor",
    ),
    "quantised": (json.dumps({**CONFIG, "quantization_config": {"bits": 4}}).encode(), UNSUPPORTED, "quantized"),
    "odd head": (json.dumps({**CONFIG, "head_dim": 3}).encode(), INVALID, "even"),
    "wider than its tensors": (json.dumps({**CONFIG, "hidden_size": 64, "head_dim": 16}).encode(), INVALID, "shape"),
}


def load(path: Path) -> None:
    """Open and build, as the runner does."""
    checkpoint = open_checkpoint(path)
    tensors: TensorSource = CheckpointTensors(checkpoint, dtype=torch.float32, device=torch.device("cpu"))
    build(from_hf(checkpoint.config), tensors)


def assert_refused(run: Callable[[], None], reason: StartReason, words: str) -> None:
    """A StartError of that reason that says those words, within seconds and without a large allocation."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.process_time()
    with pytest.raises(StartError) as caught:
        run()
    assert time.process_time() - started < 10, "a slow machine takes a second"
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000, "kilobytes"
    assert caught.value.reason == reason, caught.value
    assert words in caught.value.message, caught.value
    assert len(caught.value.message) < 400


@pytest.mark.parametrize(("content", "reason", "words"), GGUF_FILES.values(), ids=GGUF_FILES.keys())
def test_a_broken_gguf_file_is_refused(tmp_path: Path, content: bytes, reason: StartReason, words: str) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)

    assert_refused(lambda: load(path), reason, words)


@pytest.mark.parametrize(("content", "reason", "words"), SAFETENSORS_FILES.values(), ids=SAFETENSORS_FILES.keys())
def test_a_broken_safetensors_file_is_refused(tmp_path: Path, content: bytes, reason: StartReason, words: str) -> None:
    write_safetensors_model(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(content)

    assert_refused(lambda: load(tmp_path), reason, words)


@pytest.mark.parametrize(("content", "reason", "words"), CONFIGS.values(), ids=CONFIGS.keys())
def test_a_broken_config_is_refused(tmp_path: Path, content: bytes, reason: StartReason, words: str) -> None:
    write_safetensors_model(tmp_path)
    (tmp_path / "config.json").write_bytes(content)

    assert_refused(lambda: load(tmp_path), reason, words)


@pytest.mark.parametrize(
    ("weight_map", "reason", "words"),
    [
        ({}, INVALID, "weight_map"),
        ([], INVALID, "weight_map"),
        ({"a": "../../../etc/passwd.safetensors"}, INVALID, "plain file name"),
        ({"a": "/etc/shadow.safetensors"}, INVALID, "plain file name"),
        ({"a": "pytorch_model.bin"}, INVALID, "plain file name"),
        ({"a": "consolidated.safetensors"}, INVALID, "'consolidated.safetensors' is none of"),
        ({"a": ".hidden.safetensors"}, INVALID, "'.hidden.safetensors' is none of"),
        ({"a": "missing.safetensors"}, NOT_FOUND, "missing.safetensors"),
        ({str(i): f"{i}.safetensors" for i in range(2000)}, INVALID, "2000 files"),
    ],
    ids=[
        "empty",
        "a list",
        "path upwards",
        "absolute path",
        "pickle",
        "outside the digest",
        "hidden from the digest",
        "missing file",
        "too many files",
    ],
)
def test_a_broken_index_is_refused(tmp_path: Path, weight_map: object, reason: StartReason, words: str) -> None:
    write_safetensors_model(tmp_path)
    for outside in ("consolidated.safetensors", ".hidden.safetensors"):
        shutil.copy(tmp_path / "model.safetensors", tmp_path / outside)
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))

    assert_refused(lambda: load(tmp_path), reason, words)


@pytest.mark.parametrize("indexed", [True, False])
def test_every_file_that_is_loaded_is_in_the_digest(tmp_path: Path, indexed: bool) -> None:
    """A file outside it could be exchanged and `--digest` would still match."""
    write_safetensors_model(tmp_path)
    for outside in ("consolidated.safetensors", ".hidden.safetensors"):
        shutil.copy(tmp_path / "model.safetensors", tmp_path / outside)
    (tmp_path / "model.safetensors").rename(tmp_path / "model-1.safetensors")
    if indexed:
        index = {"weight_map": {"a": "model-1.safetensors"}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    loaded = weight_files(tmp_path)
    assert loaded == [tmp_path / "model-1.safetensors"]
    assert set(loaded) <= set(find_model_files(tmp_path).files)


def test_the_sound_safetensors_model_that_the_broken_ones_come_from_loads(tmp_path: Path) -> None:
    write_safetensors_model(tmp_path)

    load(tmp_path)


def test_a_pickle_beside_the_weights_is_not_looked_at(tmp_path: Path) -> None:
    write_safetensors_model(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"cos\nabort\n(tR.")
    (tmp_path / "modeling_llama.py").write_text("raise SystemExit")

    load(tmp_path)


def test_every_truncation_of_a_gguf_head_is_refused(tmp_path: Path) -> None:
    whole = sound(tensors=[EMBEDDING, ("output_norm.weight", (32,), F32, 1024)], data=DATA + bytes(128)).encode()
    path = tmp_path / "model.gguf"
    for size in range(len(whole) - 1):
        path.write_bytes(whole[:size])
        with pytest.raises(StartError):
            open_checkpoint(path)
    path.write_bytes(whole)
    open_checkpoint(path)
