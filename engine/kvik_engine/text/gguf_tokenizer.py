"""A GGUF's tokenizer metadata as a `tokenizers` object. Used by convert alone.

GGUF names the pre-tokenizer (`tokenizer.ggml.pre`) instead of describing it; the table below says what each name
stands for, as in llama.cpp's src/llama-vocab.cpp and in the tokenizer.json of the models it was made from.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE

from kvik_engine.errors import StartError, StartReason

_CONTROL, _USER_DEFINED = 3, 4
_MAX_TOKEN_CHARS = 512
"""Every cut of a SentencePiece token is looked up: what that takes grows with the square."""

_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2_SPLIT = _LLAMA3_SPLIT.replace(r"\p{N}{1,3}", r"\p{N}")


def tokenizer_from_gguf(metadata: dict[str, Any]) -> Tokenizer:
    """Build the tokenizer. StartError: ModelInvalid for damaged metadata, ModelUnsupported for an unknown kind."""
    kind = metadata.get("tokenizer.ggml.model")
    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    if kind == "gpt2":
        tokenizer = _byte_level(metadata, tokens)
    elif kind == "llama":
        tokenizer = _sentencepiece(metadata, tokens)
    else:
        raise StartError(
            StartReason.MODEL_UNSUPPORTED, f"the GGUF tokenizer {repr(kind)[:80]} is not known (gpt2, llama)"
        )
    _add_marked_tokens(tokenizer, metadata, tokens)
    _add_bos(tokenizer, metadata, tokens, default=kind == "llama")
    return tokenizer


def _byte_level(metadata: dict[str, Any], tokens: list[str]) -> Tokenizer:
    merges = [tuple(m.split(" ", 1)) for m in _strings(metadata, "tokenizer.ggml.merges")]
    vocabulary = {token: i for i, token in enumerate(tokens)}
    known = [(m[0], m[1]) for m in merges if len(m) == 2 and all(part in vocabulary for part in (*m, "".join(m)))]
    if len(known) != len(merges):
        raise StartError(StartReason.MODEL_INVALID, "a merge of the GGUF tokenizer joins tokens that do not exist")
    ignore_merges = metadata.get("tokenizer.ggml.pre") in ("llama-bpe", "llama3")
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=known, fuse_unk=False, ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = _pre_tokenizer(metadata.get("tokenizer.ggml.pre"))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _pre_tokenizer(name: object) -> pre_tokenizers.PreTokenizer:
    make = _PRE_TOKENIZERS.get(name) if isinstance(name, str) else None
    if make is None:
        raise StartError(
            StartReason.MODEL_UNSUPPORTED,
            f"the GGUF pre-tokenizer {repr(name)[:80]} is not known ({', '.join(sorted(_PRE_TOKENIZERS))})",
        )
    return make()


def _split_then_bytes(pattern: str) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _gpt2() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _gpt2()])


_PRE_TOKENIZERS: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "gpt-2": _gpt2,
    "smollm": _smollm,
    "llama-bpe": lambda: _split_then_bytes(_LLAMA3_SPLIT),
    "llama3": lambda: _split_then_bytes(_LLAMA3_SPLIT),
    "qwen2": lambda: _split_then_bytes(_QWEN2_SPLIT),
}


def _sentencepiece(metadata: dict[str, Any], tokens: list[str]) -> Tokenizer:
    """SentencePiece BPE stores scores; every split of a token into two known ones is a merge, best score first."""
    scores = metadata.get("tokenizer.ggml.scores")
    if not isinstance(scores, list) or len(scores) != len(tokens) or not all(map(_is_score, scores)):
        raise StartError(StartReason.MODEL_INVALID, "the GGUF tokenizer has no score for each token")
    if max(map(len, tokens)) > _MAX_TOKEN_CHARS:
        raise StartError(
            StartReason.MODEL_INVALID, f"a token of the GGUF tokenizer is longer than {_MAX_TOKEN_CHARS} characters"
        )
    vocabulary = {token: i for i, token in enumerate(tokens)}
    ranked: list[tuple[float, int, int, str, str]] = []
    for token, score in zip(tokens, scores, strict=True):
        for cut in range(1, len(token)):
            left, right = vocabulary.get(token[:cut]), vocabulary.get(token[cut:])
            if left is not None and right is not None:
                ranked.append((-score, left, right, token[:cut], token[cut:]))
    ranked.sort()
    unknown = _token_at(tokens, metadata.get("tokenizer.ggml.unknown_token_id"))
    merges = [(left, right) for *_, left, right in ranked]
    tokenizer = Tokenizer(BPE(vocab=vocabulary, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    spaces = [normalizers.Replace(" ", "▁")]
    prepend = [normalizers.Prepend("▁")] if metadata.get("tokenizer.ggml.add_space_prefix", True) else []
    tokenizer.normalizer = normalizers.Sequence([*prepend, *spaces])
    strip = [decoders.Strip(" ", 1, 0)] if prepend else []
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
    )
    return tokenizer


def _is_score(value: object) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def _add_marked_tokens(tokenizer: Tokenizer, metadata: dict[str, Any], tokens: list[str]) -> None:
    """Control tokens become special, user-defined ones are matched whole in the text."""
    types = metadata.get("tokenizer.ggml.token_type")
    if types is None:
        return
    if not isinstance(types, list) or len(types) != len(tokens):
        raise StartError(StartReason.MODEL_INVALID, "the GGUF tokenizer has no type for each token")
    for wanted, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        marked = [
            AddedToken(t, normalized=False, special=special) for t, k in zip(tokens, types, strict=True) if k == wanted
        ]
        tokenizer.add_special_tokens(marked) if special else tokenizer.add_tokens(marked)


def _add_bos(tokenizer: Tokenizer, metadata: dict[str, Any], tokens: list[str], *, default: bool) -> None:
    bos_id = metadata.get("tokenizer.ggml.bos_token_id")
    bos = _token_at(tokens, bos_id)
    llama3 = metadata.get("tokenizer.ggml.pre") in ("llama-bpe", "llama3")
    if bos is None or not metadata.get("tokenizer.ggml.add_bos_token", default or llama3):
        return
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{bos} $A", pair=f"{bos} $A {bos} $B", special_tokens=[(bos, bos_id)]
    )


def special_token(metadata: dict[str, Any], name: str) -> str | None:
    """The text of the token that `tokenizer.ggml.<name>_token_id` names."""
    return _token_at(_strings(metadata, "tokenizer.ggml.tokens"), metadata.get(f"tokenizer.ggml.{name}_token_id"))


def _token_at(tokens: list[str], index: object) -> str | None:
    return tokens[index] if type(index) is int and 0 <= index < len(tokens) else None


def _strings(metadata: dict[str, Any], key: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, list) or not value or not all(isinstance(v, str) for v in value):
        raise StartError(StartReason.MODEL_INVALID, f"the GGUF file has no list of strings {key}")
    return value
