"""The small model of tests about quantised KV caches: three query heads for each head of keys and values."""

from kvik_engine.models.config import ModelConfig

MODEL = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=101,
    hidden_size=64,
    intermediate_size=96,
    layers=3,
    heads=6,
    kv_heads=2,
    head_dim=64,
    context_length=96,
    norm_eps=1e-5,
    rope_theta=10000.0,
    tie_embeddings=False,
)
