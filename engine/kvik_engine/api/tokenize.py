"""POST /tokenize and /detokenize."""

from __future__ import annotations

from aiohttp import web

from kvik_engine.api.body import received
from kvik_engine.api.error_body import json_response
from kvik_engine.api.fitting import check_token_ids
from kvik_engine.api.limits import max_body_bytes
from kvik_engine.api.messages import chat_prompt
from kvik_engine.api.schema import DetokenizeRequest, TokenizeRequest
from kvik_engine.api.service import SERVICE
from kvik_engine.errors import UserError
from kvik_engine.text.detokenizer import decode
from kvik_engine.text.tokenizer import TextModel


async def tokenize(request: web.Request) -> web.StreamResponse:
    """Token ids of a prompt, or of messages through the chat template."""
    service = request.app[SERVICE]
    async with received(request, service, TokenizeRequest) as body:
        service.check_model(body.model)
        tokens = await service.in_thread(_tokens, service.text, body, max_body_bytes(service.model.max_tokens))
    return json_response({"count": len(tokens), "max_model_len": service.model.max_tokens, "tokens": tokens})


def _tokens(text: TextModel, body: TokenizeRequest, max_chars: int) -> list[int]:
    if (body.prompt is None) == (body.messages is None):
        raise UserError("Give either prompt or messages.", param="prompt")
    if body.messages is not None and body.add_special_tokens is not None:
        raise UserError("The chat template decides about special tokens.", param="add_special_tokens")
    if body.prompt is not None:
        if body.add_generation_prompt is not None:
            raise UserError("add_generation_prompt goes with messages.", param="add_generation_prompt")
        return text.encode(body.prompt, add_special_tokens=body.add_special_tokens is not False)
    generate = body.add_generation_prompt is not False
    return chat_prompt(text, body.messages or [], max_chars=max_chars, add_generation_prompt=generate)


async def detokenize(request: web.Request) -> web.StreamResponse:
    """The text of token ids; special tokens add nothing."""
    service = request.app[SERVICE]
    async with received(request, service, DetokenizeRequest) as body:
        service.check_model(body.model)
        return json_response({"prompt": await service.in_thread(_text, service.text, body.tokens)})


def _text(text: TextModel, tokens: list[int]) -> str:
    check_token_ids(tokens, text.vocab_size, param="tokens")
    return decode(text.bytes, tokens)
