"""Which architectures the engine runs, by the names that config.json and GGUF metadata give. Without torch."""

from __future__ import annotations

from kvik_engine.errors import StartError, StartReason

LLAMA_FAMILY = ("LlamaForCausalLM", "MistralForCausalLM", "llama")
GEMMA_3 = ("Gemma3ForCausalLM",)
DEEPSEEK_2 = ("DeepseekV2ForCausalLM",)
SUPPORTED = (*LLAMA_FAMILY, *GEMMA_3, *DEEPSEEK_2)


def check_architecture(name: str) -> None:
    """StartError (ModelUnsupported) that lists the names, for another one."""
    if name not in SUPPORTED:
        raise StartError(
            StartReason.MODEL_UNSUPPORTED,
            f"the architecture {name[:80]!r} is not supported; supported are {', '.join(SUPPORTED)}",
        )
