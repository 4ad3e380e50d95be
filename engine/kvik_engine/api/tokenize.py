"""POST /tokenize and /detokenize."""

from __future__ import annotations

from aiohttp import web

from kvik_engine.api.body import read_request
from kvik_engine.api.error_body import json_response
from kvik_engine.api.fitting import check_token_ids
from kvik_engine.api.limits import max_body_bytes
from kvik_engine.api.messages import chat_prompt
from kvik_engine.api.schema import DetokenizeRequest, TokenizeRequest
from kvik_engine.api.service import SERVICE
from kvik_engine.errors import UserError
from kvik_engine.text.detokenizer import decode


async def tokenize(request: web.Request) -> web.StreamResponse:
    """Token ids of a prompt, or of messages through the chat template."""
    service = request.app[SERVICE]
    body = await read_request(request, service, TokenizeRequest)
    service.check_model(body.model)
    context = service.model.max_tokens
    if (body.prompt is None) == (body.messages is None):
        raise UserError("Give either prompt or messages.", param="prompt")
    if body.messages is not None:
        tokens = await service.in_thread(
            chat_prompt,
            service.text,
            body.messages,
            max_chars=max_body_bytes(context),
            add_generation_prompt=body.add_generation_prompt is not False,
        )
    else:
        special = body.add_special_tokens is not False
        tokens = await service.in_thread(service.text.encode, body.prompt or "", add_special_tokens=special)
    return json_response({"count": len(tokens), "max_model_len": context, "tokens": tokens})


async def detokenize(request: web.Request) -> web.StreamResponse:
    """The text of token ids; special tokens add nothing."""
    service = request.app[SERVICE]
    body = await read_request(request, service, DetokenizeRequest)
    service.check_model(body.model)
    check_token_ids(body.tokens, service.text.vocab_size, param="tokens")
    return json_response({"prompt": await service.in_thread(decode, service.text.bytes, body.tokens)})
