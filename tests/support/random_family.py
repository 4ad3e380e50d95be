"""Small random models of a family, by transformers' own classes and as the engine loads them: the same weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from transformers import PreTrainedModel

from kvik_engine.attention.cpu_backend import CpuBackend
from kvik_engine.models.config import ModelConfig
from kvik_engine.models.read_config import from_hf
from kvik_engine.models.registry import Model, build
from kvik_engine.runner.load import make_runner
from kvik_engine.runner.runner import ModelRunner, RunnerLimits
from kvik_engine.weights.checkpoint import Checkpoint, CheckpointTensors, open_checkpoint

CPU = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class Family:
    """One model twice."""

    theirs: PreTrainedModel
    checkpoint: Checkpoint

    @property
    def config(self) -> ModelConfig:
        return from_hf(self.checkpoint.config)

    @property
    def tensors(self) -> CheckpointTensors:
        return CheckpointTensors(self.checkpoint, dtype=torch.float32, device=CPU)

    def ours(self) -> Model:
        return build(self.config, self.tensors)

    def runner(self, *, rows: int, block_tokens: int) -> ModelRunner:
        return make_runner(
            self.config,
            self.tensors,
            dtype="fp32",
            backend=CpuBackend(),
            limits=RunnerLimits(max_requests=rows, max_tokens=self.config.context_length, block_tokens=block_tokens),
            max_batch_tokens=64,
            progress=lambda _: None,
        )

    @torch.inference_mode()
    def greedy(self, prompt: Sequence[int], count: int) -> tuple[list[int], float]:
        """Tokens by transformers, without a cache; and by how much the best token led the next one at least."""
        tokens = list(prompt)
        margin = float("inf")
        for _ in range(count):
            best = self.theirs(torch.tensor([tokens]), use_cache=False).logits[0, -1].topk(2)
            margin = min(margin, (best.values[0] - best.values[1]).item())
            tokens.append(int(best.indices[0]))
        return tokens[len(prompt) :], margin

    @torch.inference_mode()
    def logprobs_after(self, tokens: Sequence[int]) -> list[float]:
        """By transformers, from the whole sequence: the log-probability of each token of the vocabulary."""
        logits = self.theirs(torch.tensor([list(tokens)]), use_cache=False).logits[0, -1]
        return logits.float().log_softmax(dim=-1).tolist()


def random_family(theirs: PreTrainedModel, folder: Path, *, seed: int = 5) -> Family:
    """Every weight is drawn anew, scaled so that activations stay near unit size; norms differ from one another and
    from their initial value, biases are not zero."""
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.copy_(0.5 + 0.3 * torch.randn(parameter.shape, generator=draw))
            else:
                parameter.copy_(torch.randn(parameter.shape, generator=draw) * parameter.shape[-1] ** -0.5)
    theirs.eval().save_pretrained(folder)
    return Family(theirs, open_checkpoint(folder))
