"""Loading a model's text files in the forms that real repositories have."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvik_engine.errors import StartError, StartReason
from kvik_engine.text.tokenizer import TextModel, load_text_model
from tests.support.byte_tokenizer import END, START, byte_tokenizer


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def load(folder: Path, **files: Any) -> TextModel:
    """Write `files` (their names without .json) and load."""
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return load_text_model(folder)


def rendered(model: TextModel) -> str:
    assert model.template is not None
    return model.template.render([{"role": "user", "content": "Hi"}], max_chars=1000)


def test_a_tokenizer_alone_is_enough_to_complete(folder: Path) -> None:
    model = load(folder)
    assert model.template is None
    assert model.stop_token_ids == ()
    assert model.encode("é", add_special_tokens=True) == [0xC3, 0xA9]
    assert model.vocab_size == 258


def redescribe(folder: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Write the folder's tokenizer.json anew as `change` made it."""
    path = folder / "tokenizer.json"
    described = json.loads(path.read_text())
    change(described)
    path.write_text(json.dumps(described))


def test_ids_with_holes_count_up_to_the_highest(folder: Path) -> None:
    """Counting tokens let the check of the model's rows miss the last ids, and /detokenize refuse them."""

    def move_the_last_byte(described: dict[str, Any]) -> None:
        vocabulary = described["model"]["vocab"]
        vocabulary["far"] = vocabulary.pop("ÿ") + 44

    redescribe(folder, move_the_last_byte)
    model = load(folder)
    assert model.vocab_size == 300
    assert (model.bytes.of(299), model.bytes.of(298)) == (b"far", b"")
    assert model.encode("a<|im_end|>", add_special_tokens=False) == [0x61, END]


def test_an_added_token_behind_a_gap_is_refused(folder: Path) -> None:
    """The library would give it the next free id, and the model would read it as another token."""

    def leave_a_gap(described: dict[str, Any]) -> None:
        described["added_tokens"][1]["id"] = 300

    redescribe(folder, leave_a_gap)
    with pytest.raises(StartError, match=r"'<\|im_end\|>' the id 300, .* would be 257") as caught:
        load(folder)
    assert caught.value.reason is StartReason.MODEL_INVALID


def test_a_hole_that_moves_the_added_tokens_is_refused(folder: Path) -> None:
    redescribe(folder, lambda described: described["model"]["vocab"].update(far=299))
    with pytest.raises(StartError, match=r"'<\|im_start\|>' the id 256, .* would be 257"):
        load(folder)


def test_end_tokens_are_gathered_from_all_files(folder: Path) -> None:
    model = load(
        folder,
        generation_config={"eos_token_id": [START, 7]},
        config={"eos_token_id": 9},
        tokenizer_config={"eos_token": {"content": "<|im_end|>", "lstrip": False}},
    )
    assert model.stop_token_ids == (7, 9, START, END)


@pytest.mark.parametrize("eos", [None, "x", -1, True, [None, "y", 1.5], {}])
def test_end_tokens_that_are_none_are_left_out(folder: Path, eos: Any) -> None:
    assert load(folder, config={"eos_token_id": eos}, tokenizer_config={"eos_token": "no such"}).stop_token_ids == ()


def test_the_template_comes_from_its_own_file_first(folder: Path) -> None:
    (folder / "chat_template.jinja").write_text("file")
    assert rendered(load(folder, tokenizer_config={"chat_template": "config"})) == "file"


def test_of_named_templates_the_default_is_taken(folder: Path) -> None:
    named = [{"name": "tool_use", "template": "tools"}, {"name": "default", "template": "{{ eos_token }}"}]
    assert rendered(load(folder, tokenizer_config={"chat_template": named, "eos_token": "<|im_end|>"})) == "<|im_end|>"
    assert load(folder, tokenizer_config={"chat_template": named[:1]}).template is None


def test_saved_truncation_and_padding_are_switched_off(folder: Path) -> None:
    """They would cut prompts silently."""
    tokenizer = byte_tokenizer()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=8)
    tokenizer.save(str(folder / "tokenizer.json"))
    assert len(load(folder).encode("abcdef", add_special_tokens=False)) == 6


def test_tokens_that_are_no_text_are_shown_by_their_bytes(folder: Path) -> None:
    model = load(folder)
    assert model.token_text(0x41) == "A"
    assert model.token_text(0xE2) == "bytes:\\xe2"
    assert model.token_text(END) == "<|im_end|>"


def test_a_folder_without_a_tokenizer_is_refused_by_the_files_name(tmp_path: Path) -> None:
    with pytest.raises(StartError, match=r"tokenizer\.json") as caught:
        load_text_model(tmp_path)
    assert caught.value.reason is StartReason.MODEL_NOT_FOUND
