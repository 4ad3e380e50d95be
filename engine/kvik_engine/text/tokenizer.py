"""The model's tokenizer and chat template, loaded from the files beside the weights (or from convert's cache).

`encode` releases the interpreter lock, so call it in a worker thread for anything long; the event loop stays free.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as HfTokenizer

from kvik_engine.bounded_json import json_object, read_bytes, read_json_object
from kvik_engine.errors import StartError, StartReason
from kvik_engine.text.chat_template import MAX_TEMPLATE_CHARS, ChatTemplate, TemplateError
from kvik_engine.text.token_bytes import TokenBytes, token_bytes

MAX_TOKENIZER_BYTES = 64 << 20
TOKENIZER_FILE = "tokenizer.json"
TOKENIZER_CONFIG_FILE = "tokenizer_config.json"
TEMPLATE_FILE = "chat_template.jinja"
GENERATION_FILE = "generation_config.json"
CONFIG_FILE = "config.json"
_SPECIAL_TOKENS = ("bos_token", "eos_token", "unk_token", "pad_token")


@dataclass(frozen=True, slots=True)
class TextModel:
    """All that the API process knows of the model."""

    tokenizer: HfTokenizer
    bytes: TokenBytes
    vocab_size: int
    """The highest id the tokenizer knows + 1: ids may have holes, and the model's own vocabulary may be padded."""
    stop_token_ids: tuple[int, ...]
    """The model's own end tokens."""
    template: ChatTemplate | None
    """None: the model has no chat template, chat is refused."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Token ids of `text`.

        Releases the interpreter lock: `encode` would hold it, 0.7 s for 1 MB. The fast form keeps no offsets, which
        halves the time and leaves less to free under the lock.
        """
        ids: list[int] = self.tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)[0].ids
        return ids

    def token_text(self, token: int) -> str:
        """A single token as OpenAI's logprobs show it: `bytes:\\\\xe2\\\\x80` when it is no text by itself."""
        data = self.bytes.of(token)
        try:
            return data.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{b:02x}" for b in data)


def load_text_model(folder: Path) -> TextModel:
    """Read the tokenizer files of `folder`. StartError when they are missing, damaged or of an unknown kind."""
    data = read_bytes(folder / TOKENIZER_FILE, MAX_TOKENIZER_BYTES)
    description = json_object(data, TOKENIZER_FILE)
    try:
        tokenizer = HfTokenizer.from_buffer(data)
    except Exception as error:  # tokenizers raises plain Exception
        raise StartError(StartReason.MODEL_INVALID, f"{TOKENIZER_FILE}: {error}") from error
    _check_added_tokens(tokenizer, description)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    config = _optional_json(folder / TOKENIZER_CONFIG_FILE)
    special = {name: _token_content(config.get(name)) for name in _SPECIAL_TOKENS}
    return TextModel(
        tokenizer=tokenizer,
        bytes=token_bytes(tokenizer, description),
        vocab_size=max(tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1,
        stop_token_ids=_stop_token_ids(folder, tokenizer, special["eos_token"]),
        template=_template(folder, config, {k: v for k, v in special.items() if v is not None}),
    )


def _check_added_tokens(tokenizer: HfTokenizer, description: dict[str, Any]) -> None:
    """The library numbers added tokens on from the model's, without a gap, whatever the file says. Then the model would
    take one token for another, so a file that says otherwise is refused."""
    for token in description.get("added_tokens") or []:
        taken = tokenizer.token_to_id(token["content"])
        if token["content"] and taken != token["id"]:
            raise StartError(
                StartReason.MODEL_INVALID,
                f"{TOKENIZER_FILE} gives the added token {token['content'][:80]!r} the id {token['id']}, but after the "
                f"ids before it it would be {taken}: there must be no gap",
            )


def _optional_json(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.exists() else {}


def _token_content(token: object) -> str | None:
    """A special token is a string, or an object with `content`."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None


def _stop_token_ids(folder: Path, tokenizer: HfTokenizer, eos: str | None) -> tuple[int, ...]:
    """The end tokens that generation_config, config and the tokenizer's own configuration name, all of them."""
    ids: set[int] = set()
    for name in (GENERATION_FILE, CONFIG_FILE):
        named = _optional_json(folder / name).get("eos_token_id")
        ids.update(i for i in (named if isinstance(named, list) else [named]) if type(i) is int and i >= 0)
    if eos is not None and (own := tokenizer.token_to_id(eos)) is not None:
        ids.add(own)
    return tuple(sorted(ids))


def _template(folder: Path, config: dict[str, Any], special: dict[str, str]) -> ChatTemplate | None:
    source: object = config.get("chat_template")
    if (folder / TEMPLATE_FILE).exists():
        source = read_bytes(folder / TEMPLATE_FILE, 4 * MAX_TEMPLATE_CHARS).decode(errors="replace")
    if isinstance(source, list):
        named = {t.get("name"): t.get("template") for t in source if isinstance(t, dict)}
        source = named.get("default")
    if not isinstance(source, str):
        return None
    try:
        return ChatTemplate(source, special)
    except TemplateError as error:
        raise StartError(StartReason.MODEL_INVALID, str(error)) from error
