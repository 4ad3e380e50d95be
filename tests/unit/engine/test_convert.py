"""GGUF metadata becomes exactly the tokenizer that the model was trained with; hostile files end in a reason."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from kvik_engine.config import EngineConfig
from kvik_engine.convert import converted, prepare, try_template
from kvik_engine.errors import StartError, StartReason
from kvik_engine.spelling import SPELLING_FILE, read_spelling
from kvik_engine.text.detokenizer import decode
from kvik_engine.text.gguf_tokenizer import tokenizer_from_gguf
from kvik_engine.text.tokenizer import load_text_model
from tests.support.byte_tokenizer import byte_text_model
from tests.support.demo_model import demo_model
from tests.support.gguf_files import byte_level_metadata, tiny_gguf
from tests.support.live_api import engine_config

SAMPLES = [
    "Hello, world! It's 12345 o'clock.",
    "don't we'll they've I'm",
    "  leading and   inner   spaces\t\ttabs\n\n\nnewlines\r\n",
    "def f(x):\n    return x ** 2  # comment",
    "Grüße, 日本語, العربية, हिन्दी, 😀👨‍👩‍👧, e\u0301, \u200d",
    "0 00 000 0000 1.5e-10 0x1F",
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|>",
    "a" * 500 + " " * 500,
    "\x00\x01\x7f\u00a0\u2028",
    "",
]


def config(path: Path, cache: Path, **more: Any) -> EngineConfig:
    run_dir = cache.with_name("run")
    run_dir.mkdir(exist_ok=True)
    return engine_config(run_dir, model_path=str(path), cache_dir=str(cache), **more)


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    path.write_bytes(tiny_gguf(byte_level_metadata()))
    return path


def test_the_demo_model_encodes_as_its_makers_tokenizer_does(tmp_path: Path) -> None:
    ours = load_text_model(converted(demo_model(), tmp_path))
    text = "Hello 12345 wörld 😀 <|im_end|>\n\tfoo's"
    want = [19556, 216, 33, 34, 35, 36, 37, 267, 29989, 400, 40303, 218, 216, 2, 198, 197, 15236, 506]
    assert ours.encode(text, add_special_tokens=True) == want


@pytest.mark.long
def test_the_demo_models_tokenizer_equals_transformers_own_conversion(tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    gguf_file = demo_model()
    theirs = AutoTokenizer.from_pretrained(str(gguf_file.parent), gguf_file=gguf_file.name)
    ours = load_text_model(converted(gguf_file, tmp_path))
    for text in SAMPLES:
        assert ours.encode(text, add_special_tokens=True) == theirs(text)["input_ids"], text
    chat = [
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "Yes"},
        {"role": "user", "content": "?"},
    ]
    assert ours.template is not None
    rendered = ours.template.render(chat, max_chars=10_000)
    assert rendered == theirs.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert ours.stop_token_ids == (2,)


def test_smollm_splits_every_numeric_character_off() -> None:
    """As its tokenizer.json says (Digits, then ByteLevel); transformers' GGUF conversion loses this for ½."""
    pre_tokenizer = tokenizer_from_gguf(byte_level_metadata(**{"tokenizer.ggml.pre": "smollm"})).pre_tokenizer
    assert [piece for piece, _ in pre_tokenizer.pre_tokenize_str("a 12½")] == ["a", "Ġ", "1", "2", "Â½"]


def test_conversion_is_done_once_and_kept_by_the_digest_of_the_metadata(tiny: Path, tmp_path: Path) -> None:
    first = converted(tiny, tmp_path)
    (first / "mark").touch()
    assert (converted(tiny, tmp_path) / "mark").exists()
    tiny.write_bytes(tiny_gguf(byte_level_metadata(**{"llama.context_length": 512})))
    assert not (converted(tiny, tmp_path) / "mark").exists()


def test_the_configuration_gets_both_paths(tiny: Path, tmp_path: Path) -> None:
    prepared = prepare(config(tiny.parent, tmp_path / "cache"))
    assert prepared.model_path == str(tiny)
    assert prepared.tokenizer_path is not None
    hf = json.loads((Path(prepared.tokenizer_path) / "config.json").read_text())
    assert (hf["model_type"], hf["num_key_value_heads"], hf["tie_word_embeddings"]) == ("llama", 2, True)


def test_a_folder_of_safetensors_uses_its_own_files(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    byte_text_model().tokenizer.save(str(tmp_path / "tokenizer.json"))
    prepared = prepare(config(tmp_path, tmp_path / "cache"))
    assert prepared.tokenizer_path == prepared.model_path == str(tmp_path)
    assert not (tmp_path / "cache").exists()


def test_tokens_are_spelled_for_the_core_as_texts_show_them(tmp_path: Path) -> None:
    prepared = prepare(config(demo_model(), tmp_path / "cache"))
    spell = read_spelling(Path(prepared.run_dir) / SPELLING_FILE)
    assert prepared.tokenizer_path is not None
    text = load_text_model(Path(prepared.tokenizer_path))
    spelled = [spell(token) for token in range(text.vocab_size + 1)]
    assert [decode(text.bytes, [token]) for token in (19556, 216, 29989)] == [
        spelled[token].decode() for token in (19556, 216, 29989)
    ]
    assert [token for token, bytes_ in enumerate(spelled) if not bytes_] == [
        *sorted(text.bytes.special),
        text.vocab_size,
    ]


def test_sentencepiece_scores_become_merges_in_their_order(tmp_path: Path) -> None:
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "a", "b", "ab", "▁ab", "▁a"]
    scores = [0.0] * 259 + [-9.0, -9.0, -9.0, -2.0, -3.0, -1.0]
    metadata = byte_level_metadata(
        **{
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.scores": scores,
            "tokenizer.ggml.token_type": [2, 3, 3] + [6] * 256 + [1] * 6,
            "tokenizer.ggml.bos_token_id": 1,
            "tokenizer.ggml.eos_token_id": 2,
            "tokenizer.ggml.unknown_token_id": 0,
        }
    )
    path = tmp_path / "spm.gguf"
    path.write_bytes(tiny_gguf(metadata))
    model = load_text_model(converted(path, tmp_path))
    names = [tokens[i] for i in model.encode("ab é", add_special_tokens=True)]
    assert names == ["<s>", "▁ab", "▁", "<0xC3>", "<0xA9>"]


HOSTILE: dict[str, tuple[dict[str, Any], StartReason]] = {
    "another architecture": ({"general.architecture": "mamba"}, StartReason.MODEL_UNSUPPORTED),
    "another tokenizer": ({"tokenizer.ggml.model": "rwkv"}, StartReason.MODEL_UNSUPPORTED),
    "another pre-tokenizer": ({"tokenizer.ggml.pre": "chatglm"}, StartReason.MODEL_UNSUPPORTED),
    "no pre-tokenizer": ({"tokenizer.ggml.pre": 7}, StartReason.MODEL_UNSUPPORTED),
    "tokens that are numbers": ({"tokenizer.ggml.tokens": [1, 2, 3]}, StartReason.MODEL_INVALID),
    "merges of nothing": ({"tokenizer.ggml.merges": ["zz qq"]}, StartReason.MODEL_INVALID),
    "types too few": ({"tokenizer.ggml.token_type": [1]}, StartReason.MODEL_INVALID),
    "scores that are texts": (
        {"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": ["a", "b"], "tokenizer.ggml.scores": ["x", "y"]},
        StartReason.MODEL_INVALID,
    ),
    "a score that is no number": (
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": ["a", "b"],
            "tokenizer.ggml.scores": [0.0, math.nan],
        },
        StartReason.MODEL_INVALID,
    ),
    "a token of 200,000 characters, in whose every cut a merge is looked for": (
        {
            "tokenizer.ggml.model": "llama",
            "tokenizer.ggml.tokens": ["a", "b" * 200_000],
            "tokenizer.ggml.scores": [0.0, 0.0],
        },
        StartReason.MODEL_INVALID,
    ),
    "no heads": ({"llama.attention.head_count": 0}, StartReason.MODEL_INVALID),
    "text as a count": ({"llama.block_count": "many"}, StartReason.MODEL_INVALID),
    "a template that is broken": ({"tokenizer.chat_template": "{% for %}"}, StartReason.MODEL_INVALID),
    "a template that doubles for ever": (
        {"tokenizer.chat_template": "{% set n = namespace(s='x') %}" + "{% set n.s = n.s ~ n.s %}" * 60},
        StartReason.MODEL_INVALID,
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_gguf_is_refused_with_a_reason(name: str, tmp_path: Path) -> None:
    metadata, reason = HOSTILE[name]
    path = tmp_path / "hostile.gguf"
    path.write_bytes(tiny_gguf(byte_level_metadata(**metadata)))
    with pytest.raises(StartError) as caught:
        prepare(config(path, tmp_path / "cache"))
    assert caught.value.reason is reason, caught.value
    assert "has the id" not in caught.value.message


def test_a_template_that_never_ends_is_refused() -> None:
    loops = "{% for a in x %}" * 4 + "{% endfor %}" * 4
    with pytest.raises(StartError, match="takes more than") as caught:
        try_template(byte_text_model("{% set x = 'x' * 9999 %}" + loops))
    assert caught.value.reason is StartReason.MODEL_INVALID


@pytest.mark.parametrize(("vocab_size", "eos"), [(257, 1), (300, 400)])
def test_ids_that_the_model_has_no_row_for_are_refused_at_start(vocab_size: int, eos: int, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    byte_text_model().tokenizer.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": vocab_size, "eos_token_id": eos}))
    with pytest.raises(StartError, match="the tokenizer has the id") as caught:
        prepare(config(tmp_path, tmp_path / "cache"))
    assert caught.value.reason is StartReason.MODEL_INVALID


@pytest.mark.parametrize(("rows", "fits"), [(300, True), (299, False), (258, False)])
def test_the_highest_id_behind_a_hole_needs_a_row_too(rows: int, fits: bool, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    described = json.loads(byte_text_model().tokenizer.to_str())
    vocabulary = described["model"]["vocab"]
    vocabulary["far"] = vocabulary.pop("ÿ") + 44
    (tmp_path / "tokenizer.json").write_text(json.dumps(described))
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": rows}))
    if fits:
        prepare(config(tmp_path, tmp_path / "cache"))
        return
    with pytest.raises(StartError, match=f"the tokenizer has the id 299, the model {rows} tokens"):
        prepare(config(tmp_path, tmp_path / "cache"))


@pytest.mark.parametrize("turns", [1, 2, 3, 4])
def test_a_template_that_never_ends_in_a_longer_chat_is_refused(turns: int) -> None:
    source = "{% if messages | length == " + str(turns) + " %}{% for i in range(10 ** 9) %}{% endfor %}{% endif %}"
    with pytest.raises(StartError):
        try_template(byte_text_model(source))


def test_a_template_that_only_refuses_the_sample_is_kept() -> None:
    try_template(byte_text_model("{{ raise_exception('system prompt needed') }}"))


def test_other_files_than_expected_are_refused(tiny: Path, tmp_path: Path) -> None:
    with pytest.raises(StartError) as caught:
        prepare(config(tiny, tmp_path / "cache", model_digest="sha256:" + "0" * 64))
    assert caught.value.reason is StartReason.DIGEST_MISMATCH


def test_a_cache_that_cannot_be_written_is_a_wrong_setting(tiny: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartError, match="--cache-dir") as caught:
        prepare(config(tiny, tmp_path / "file"))
    assert caught.value.reason is StartReason.CONFIG_INVALID
    assert not list(tmp_path.glob("**/.making-*"))


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"[" * 100_000, b'{"a":' * 100 + b"1" + b"}" * 100, b"\xff\xfe"])
def test_a_damaged_tokenizer_file_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").touch()
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(StartError) as caught:
        prepare(config(tmp_path, tmp_path / "cache"))
    assert caught.value.reason is StartReason.MODEL_INVALID


def test_no_code_of_a_model_folder_is_imported(tmp_path: Path) -> None:
    """CVE-2025-66448, CVE-2026-22807, CVE-2026-27893: trust_remote_code off was bypassed three times in vLLM."""
    (tmp_path / "model.safetensors").touch()
    byte_text_model().tokenizer.save(str(tmp_path / "tokenizer.json"))
    trap = "import pathlib; pathlib.Path(__file__).with_name('ran').touch()"
    for name in ("tokenization_x", "modeling_x", "configuration_x", "sitecustomize"):
        (tmp_path / f"{name}.py").write_text(trap)
    auto = {"auto_map": {"AutoConfig": "configuration_x.C", "AutoTokenizer": ["tokenization_x.T", None]}}
    (tmp_path / "config.json").write_text(json.dumps(auto))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(auto | {"tokenizer_class": "T"}))
    prepare(config(tmp_path, tmp_path / "cache"))
    assert not (tmp_path / "ran").exists()
    assert not any(name.endswith("_x") for name in sys.modules)


def test_the_tokenizer_written_is_the_one_read_back(tiny: Path, tmp_path: Path) -> None:
    folder = converted(tiny, tmp_path)
    saved = Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert saved.encode("a é").ids == load_text_model(folder).encode("a é", add_special_tokens=True)
