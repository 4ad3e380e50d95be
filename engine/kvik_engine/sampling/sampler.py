"""Choose each row's next token.

Order: raw logprobs, min_tokens, logit_bias, penalties, then greedy or temperature, min_p, top_k, top_p, noise.
"""

from __future__ import annotations

from torch import Tensor

from kvik_engine.sampling import cpu_choice, device_choice
from kvik_engine.sampling.batch import Samples, SamplingBatch
from kvik_engine.sampling.logprobs import raw_logprobs
from kvik_engine.sampling.penalties import add_bias, apply_penalties, mask_stop_tokens


def sample(logits: Tensor, batch: SamplingBatch) -> Samples:
    """fp32 [rows, vocabulary], spoilt here. No operation mixes rows; a row pays for what it asks for."""
    on_cpu = logits.device.type == "cpu"
    finite = cpu_choice.finite_rows(logits) if on_cpu else device_choice.finite_rows(logits)
    raw = raw_logprobs(logits, batch.rows)
    mask_stop_tokens(logits, batch)
    add_bias(logits, batch.rows)
    apply_penalties(logits, batch)
    choose = cpu_choice.choose if on_cpu else device_choice.choose
    tokens = choose(logits, batch, finite)
    return Samples(
        tokens=tokens,
        finite=finite,
        logprobs=None if raw is None else raw.of(tokens),
        top_logprobs=None if raw is None else raw.top_values,
        top_tokens=None if raw is None else raw.top_tokens,
    )
