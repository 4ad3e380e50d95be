"""A model of safetensors, fetched from a hub, served, and equal to transformers token by token."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.support.byte_tokenizer import END, TEMPLATE, VOCAB_SIZE, byte_tokenizer
from tests.support.live_engine import LiveEngine, started
from tests.support.stand_in_hub import COMMIT, REPOSITORY, HubState, hub

pytestmark = pytest.mark.timeout(300)

PROMPT = list(b"The quick brown fox")
TOKENS = 12


def make_model(folder: Path) -> LlamaForCausalLM:
    """A tiny Llama with random weights, as a repository's files."""
    torch.manual_seed(5)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
        eos_token_id=END,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|im_end|>"}))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return model


def greedy(model: LlamaForCausalLM) -> list[int]:
    """transformers' tokens; the margin at each step is wide enough to compare."""
    tokens = list(PROMPT)
    with torch.no_grad():
        for _ in range(TOKENS):
            logits = model(torch.tensor([tokens])).logits[0, -1]
            logits[END] = float("-inf")
            best, second = torch.topk(logits, 2).values
            assert best - second > 1e-3
            tokens.append(int(logits.argmax()))
    return tokens[len(PROMPT) :]


def test_a_hub_model_of_safetensors_is_served_as_transformers_computes_it(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    want = greedy(make_model(repository))
    files = {path.name: path.read_bytes() for path in repository.iterdir()}
    with hub(HubState(files)) as endpoint:
        source = f"hf://{REPOSITORY}@main"
        environment = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path / "hf")}
        engine = LiveEngine(tmp_path / "engine", source, {"kv-cache-size": "16Mi"}, environment)
        with started(engine):
            body = {
                "prompt": PROMPT,
                "max_tokens": TOKENS,
                "temperature": 0,
                "logprobs": 0,
                "logit_bias": {str(END): -100},
            }
            answer = json.loads(engine.post("/v1/completions", json.dumps(body).encode())[2])
            said = [token_id(name) for name in answer["choices"][0]["logprobs"]["tokens"]]
            assert said == want
            info = json.loads(engine.get("/info")[1])
            assert info["model"]["revision"] == COMMIT
            assert info["startup"]["model_fetched"] is not None
            chat = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4}
            assert engine.post("/v1/chat/completions", json.dumps(chat).encode())[0] == 200
            engine.wait_idle()


def token_id(name: str) -> int:
    """The byte that a token's text in logprobs stands for."""
    return int(name.removeprefix("bytes:\\x"), 16) if name.startswith("bytes:") else name.encode()[0]
