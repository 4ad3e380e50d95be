"""First step of a start, in a child process: look at the model's files and make what the other processes read.

    python -m kvik_engine.convert RUN_DIR/config.json

checks the digest, turns a GGUF's metadata into tokenizer.json, tokenizer_config.json and config.json (cached by the
digest of the metadata), tries the chat template on a sample, writes how tokens are spelled and
the tokens of the sample text, and rewrites the
configuration with `model_path` and `tokenizer_path` filled. Foreign files are parsed here first, so what hangs or dies
on them is this process and not the server. Exit 78 and one line `Reason: message` when the model cannot be served.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvik_engine.bounded_json import read_json_object
from kvik_engine.config import EngineConfig
from kvik_engine.errors import StartError, StartReason
from kvik_engine.exits import EXIT_START_ERROR, report_start_error
from kvik_engine.sample_text import SAMPLE_FILE, write_sample
from kvik_engine.spelling import SPELLING_FILE, write_spelling
from kvik_engine.text.chat_template import TemplateError, TemplateOverrun
from kvik_engine.text.gguf_tokenizer import special_token, tokenizer_from_gguf
from kvik_engine.text.tokenizer import (
    CONFIG_FILE,
    TOKENIZER_CONFIG_FILE,
    TOKENIZER_FILE,
    TextModel,
    load_text_model,
)
from kvik_engine.weights.gguf_config import config_from_gguf
from kvik_engine.weights.gguf_header import GGUFHeader, read_header
from kvik_engine.weights.model_files import check_digest, find_model_files

FORMAT = 1
"""Raised when the conversion changes, so that an older cache is not used."""
_SAMPLE_CHARS = 1 << 20
_MOST_SPELLED = 1 << 20
"""Ids. A file may give any number to a token; those from here on end no beam by their text."""
_TURNS = [{"role": role, "content": "Hello"} for role in ("system", "user", "assistant", "user")]
_SAMPLES = (_TURNS[1:2], _TURNS[:2], _TURNS[1:], _TURNS)
"""A template may take no system message, and look at turns only where there are some."""


def main() -> int:
    config_file = Path(sys.argv[1])
    try:
        config = prepare(EngineConfig.read(config_file))
    except StartError as error:
        report_start_error(error)
        return EXIT_START_ERROR
    config.write(config_file)
    return 0


def prepare(config: EngineConfig) -> EngineConfig:
    """The configuration with the model's real paths. StartError when it cannot be served."""
    files = find_model_files(Path(config.model_path))
    check_digest(files, config.model_digest)
    folder = files.root if files.gguf is None else converted(files.gguf, Path(config.cache_dir))
    model = load_text_model(folder)
    check_vocabulary(model, folder)
    try_template(model)
    write_spelling(
        Path(config.run_dir) / SPELLING_FILE, map(model.bytes.shown, range(min(model.vocab_size, _MOST_SPELLED)))
    )
    if config.quantises_kv:
        write_sample(Path(config.run_dir) / SAMPLE_FILE, model)
    return replace(config, model_path=str(files.weights), tokenizer_path=str(folder))


def converted(gguf: Path, cache_dir: Path) -> Path:
    """The folder with the converted files of `gguf`; made unless the cache has it.

    StartError: ConfigInvalid when the cache cannot be written, else as the readers of the file say.
    """
    header = read_header(gguf)
    target = cache_dir / "converted" / f"{_head_digest(gguf, header)}-{FORMAT}"
    if not target.is_dir():
        try:
            _convert_into(target, header)
        except OSError as error:
            raise StartError(
                StartReason.CONFIG_INVALID, f"--cache-dir {cache_dir} cannot be written: {error.strerror}"
            ) from error
    return target


def _convert_into(target: Path, header: GGUFHeader) -> None:
    """Make `target` at once, so that nobody reads a half-written one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(dir=target.parent, prefix=".making-"))
    try:
        write_converted(header, making)
        making.rename(target)
    except OSError:
        if not target.is_dir():  # else another start was quicker
            raise
    finally:
        shutil.rmtree(making, ignore_errors=True)


def write_converted(header: GGUFHeader, folder: Path) -> None:
    """Write the three files that a safetensors model would bring."""
    metadata = header.metadata
    config = config_from_gguf(header)
    tokenizer_from_gguf(metadata).save(str(folder / TOKENIZER_FILE), pretty=False)
    names = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding"}
    special: dict[str, Any] = {name: special_token(metadata, key) for name, key in names.items()}
    template = metadata.get("tokenizer.chat_template")
    special["chat_template"] = template if isinstance(template, str) else None
    known = {name: value for name, value in special.items() if value is not None}
    (folder / TOKENIZER_CONFIG_FILE).write_text(json.dumps(known, ensure_ascii=False, indent=1))
    (folder / CONFIG_FILE).write_text(json.dumps(config, indent=1))


def check_vocabulary(model: TextModel, folder: Path) -> None:
    """StartError when the tokenizer or the end tokens have ids that the model has no row for."""
    rows = read_json_object(folder / CONFIG_FILE).get("vocab_size") if (folder / CONFIG_FILE).exists() else None
    highest = max(model.vocab_size - 1, *model.stop_token_ids, 0)
    if type(rows) is int and highest >= rows:
        raise StartError(StartReason.MODEL_INVALID, f"the tokenizer has the id {highest}, the model {rows} tokens")


def try_template(model: TextModel) -> None:
    """Render sample chats. StartError when the template overruns its bounds; what it merely refuses is no fault."""
    if model.template is None:
        return
    for sample in _SAMPLES:
        try:
            model.template.render(sample, max_chars=_SAMPLE_CHARS)
        except TemplateOverrun as error:
            raise StartError(StartReason.MODEL_INVALID, str(error)) from error
        except TemplateError:
            continue


def _head_digest(gguf: Path, header: GGUFHeader) -> str:
    """SHA-256 of all that the conversion reads: the bytes before the tensor data."""
    with gguf.open("rb") as file:
        return hashlib.sha256(file.read(header.data_offset)).hexdigest()


if __name__ == "__main__":
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    sys.exit(main())
