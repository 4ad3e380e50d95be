"""A tokenizer whose token is a byte: any text, split anywhere, is easy to make. Ids 0 to 255 are the bytes."""

from __future__ import annotations

from tokenizers import AddedToken, Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

from kvik_engine.text.chat_template import ChatTemplate
from kvik_engine.text.token_bytes import byte_alphabet, token_bytes
from kvik_engine.text.tokenizer import TextModel

START, END = 256, 257
VOCAB_SIZE = 258
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def byte_tokenizer() -> Tokenizer:
    """Byte-level BPE without merges, and the two special tokens."""
    tokenizer = Tokenizer(BPE(vocab=byte_alphabet(), merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(t, normalized=False, special=True) for t in ("<|im_start|>", "<|im_end|>")]
    )
    return tokenizer


def byte_text_model(template: str | None = TEMPLATE) -> TextModel:
    """The text layer on it."""
    tokenizer = byte_tokenizer()
    description = {
        "decoder": {"type": "ByteLevel"},
        "added_tokens": [{"id": START, "special": True}, {"id": END, "special": True}],
    }
    return TextModel(
        tokenizer=tokenizer,
        bytes=token_bytes(tokenizer, description),
        vocab_size=VOCAB_SIZE,
        stop_token_ids=(END,),
        template=None if template is None else ChatTemplate(template, {"eos_token": "<|im_end|>"}),
    )
