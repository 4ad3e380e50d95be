"""The oracle: transformers' own Llama on its own conversion of the embedded model: fp32, no padding, prompt by prompt.

Its load of a GGUF file takes half a minute, so the result is kept as safetensors in the cache folder under a stamp of
the file and of transformers' version.

The prompts of tests/data/oracle_prompts.json were searched for once: 3 to 900 tokens, and at each of 64 steps the
likeliest token leads the next by at least 1e-3, so that rounding in another order cannot change the answer.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import torch
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM, GenerationConfig, GgufConfig, LlamaForCausalLM, PreTrainedModel

DATA = Path(__file__).parents[1] / "data" / "oracle_prompts.json"
STEPS = 64
MARGIN = 1e-3


@dataclass(frozen=True, slots=True)
class OraclePrompt:
    """A prompt and its greedy continuation, end tokens ignored."""

    prompt: list[int]
    tokens: list[int]


@cache
def oracle_prompts() -> tuple[OraclePrompt, ...]:
    """Shortest first."""
    return tuple(OraclePrompt(**entry) for entry in json.loads(DATA.read_text()))


class Oracle:
    """Computes logits in one pass, without a cache of its own."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model.eval()

    @torch.inference_mode()
    def logits(self, case: OraclePrompt) -> Tensor:
        """fp32 [STEPS, vocabulary]: before each token of the recorded continuation."""
        ids = torch.tensor([case.prompt + case.tokens[:-1]])
        return self._model(ids, use_cache=False).logits[0, len(case.prompt) - 1 :]

    @torch.inference_mode()
    def beams(self, prompt: list[int], width: int, tokens: int) -> list[list[int]]:
        """Answers of a beam search, best first, end tokens ignored."""
        ids = torch.tensor([prompt])
        done = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            generation_config=GenerationConfig(
                num_beams=width, num_return_sequences=width, do_sample=False, max_new_tokens=tokens
            ),
        )
        return done[:, len(prompt) :].tolist()


def load_oracle(gguf: Path) -> Oracle:
    """From the cache folder, converted first if need be."""
    folder = _cache_folder() / _stamp(gguf)
    if not folder.exists():
        _convert(gguf, folder)
    return Oracle(
        LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True)
    )


def _convert(gguf: Path, folder: Path) -> None:
    """Atomic: a run that is broken off leaves no half of a model under the stamp."""
    model = AutoModelForCausalLM.from_pretrained(
        gguf.parent,
        gguf_file=gguf.name,
        dtype=torch.float32,
        quantization_config=GgufConfig(dequantize=True),
    )
    unfinished = folder.with_suffix(".part")
    shutil.rmtree(unfinished, ignore_errors=True)
    model.save_pretrained(unfinished)
    unfinished.rename(folder)


def _stamp(gguf: Path) -> str:
    with gguf.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return f"{digest[:16]}-{transformers.__version__}"


def _cache_folder() -> Path:
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = root / "kvik" / "oracle"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
