"""config.json values become a ModelConfig, in every spelling that Hugging Face has used."""

from __future__ import annotations

from typing import Any

import pytest

from kvik_engine.errors import StartError, StartReason
from kvik_engine.layers.rope_scaling import LinearScaling, Llama3Scaling
from kvik_engine.models.config import from_hf
from kvik_engine.models.random_weights import RandomTensors
from kvik_engine.models.registry import build
from kvik_engine.weights.gguf_config import config_from_gguf
from kvik_engine.weights.gguf_header import GGUFHeader, TensorInfo
from tests.support.model_files import CONFIG, LLAMA_METADATA

LLAMA3 = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


def config(**values: Any) -> Any:
    return from_hf({**CONFIG, **values})


def test_defaults_are_those_of_hugging_face() -> None:
    bare = {key: value for key, value in CONFIG.items() if key not in ("num_key_value_heads", "head_dim")}
    got = from_hf(bare)

    assert (got.heads, got.kv_heads, got.head_dim) == (4, 4, 4)
    assert (got.attention_bias, got.mlp_bias, got.rope_scaling) == (False, False, None)


@pytest.mark.parametrize(
    ("values", "theta", "scaling"),
    [
        ({"rope_theta": 500000.0}, 500000.0, None),
        ({"rope_theta": None, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}, 1e6, None),
        ({"rope_scaling": None}, 10000.0, None),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, 10000.0, LinearScaling(2.0)),
        ({"rope_scaling": {"rope_type": "llama3", **LLAMA3}}, 10000.0, Llama3Scaling(32.0, 1.0, 4.0, 8192)),
        (
            {"rope_theta": None, "rope_parameters": {"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3}},
            5e5,
            Llama3Scaling(32.0, 1.0, 4.0, 8192),
        ),
    ],
    ids=["theta", "transformers 5", "null scaling", "old linear", "llama 3.1", "llama 3.1 in transformers 5"],
)
def test_rope_is_read_in_old_and_new_spelling(values: dict[str, Any], theta: float, scaling: object) -> None:
    got = config(**values)

    assert got.rope_theta == theta
    assert got.rope_scaling == scaling


def test_a_sliding_window_limits_the_context_to_what_it_sees() -> None:
    assert config(max_position_embeddings=32768, sliding_window=4096).context_length == 4096
    assert config(max_position_embeddings=32768, sliding_window=None).context_length == 32768


def test_an_unknown_architecture_is_refused_with_those_that_work() -> None:
    with pytest.raises(
        StartError, match="'Qwen9ForCausalLM' is not supported; supported are LlamaForCausalLM"
    ) as caught:
        build(config(architectures=["Qwen9ForCausalLM"]), NO_TENSORS)

    assert caught.value.reason is StartReason.MODEL_UNSUPPORTED


NO_TENSORS: RandomTensors = None  # type: ignore[assignment]


def gguf(tensors: dict[str, tuple[int, ...]] | None = None, **metadata: object) -> Any:
    shapes = {"token_embd.weight": (32, 48), **(tensors or {})}
    table = tuple(TensorInfo(name, shape, 0, 0) for name, shape in shapes.items())
    values = {**LLAMA_METADATA, **{key.replace("__", "."): value for key, value in metadata.items()}}
    return from_hf(config_from_gguf(GGUFHeader(3, values, table, 0, 0)))


def test_a_gguf_files_metadata_gives_the_same_config() -> None:
    got = gguf(llama__rope__freq_base=100000.0)

    assert (got.architecture, got.vocab_size, got.hidden_size, got.layers) == ("LlamaForCausalLM", 48, 32, 1)
    assert (got.heads, got.kv_heads, got.head_dim, got.rope_theta) == (4, 2, 8, 100000.0)


def test_a_gguf_file_without_an_output_matrix_has_tied_embeddings() -> None:
    assert gguf().tie_embeddings
    assert not gguf({"output.weight": (32, 48)}).tie_embeddings


def test_linear_scaling_in_a_gguf_file_is_read() -> None:
    got = gguf(llama__rope__scaling__type="linear", llama__rope__scaling__factor=4.0)

    assert got.rope_scaling == LinearScaling(4.0)


@pytest.mark.parametrize(
    "metadata",
    [
        {"llama__expert_count": 8},
        {"llama__attention__sliding_window": 4096},
        {"llama__rope__dimension_count": 4},
        {"llama__attention__value_length": 16},
    ],
    ids=["experts", "window", "partial rotary", "wider values"],
)
def test_what_a_gguf_file_asks_for_and_we_do_not_compute_is_refused(metadata: dict[str, object]) -> None:
    with pytest.raises(StartError) as caught:
        gguf(**metadata)

    assert caught.value.reason is StartReason.MODEL_UNSUPPORTED
