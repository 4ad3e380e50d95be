"""An engine whose weights are kept in int8."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvik_kernels.cpu.library import LibraryUnavailable, load_library
from tests.support.demo_model import demo_model
from tests.support.live_engine import MODEL, LiveEngine, started


def multiplies_bytes() -> bool:
    try:
        return load_library().multiplies_bytes
    except LibraryUnavailable:
        return False


@pytest.mark.skipif(not multiplies_bytes(), reason="no products of bytes on this CPU")
def test_an_engine_with_weights_of_int8_says_so_and_knows_what_it_knew(tmp_path: Path) -> None:
    with started(LiveEngine(tmp_path, demo_model(), {"quantization": "int8"})) as engine:
        answer = engine.openai.chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "What is the capital of France? Answer in one short sentence."}],
            max_tokens=16,
            temperature=0,
        )
        info = json.loads(engine.get("/info")[1])
    assert info["quantization"] == "int8"
    assert "Paris" in (answer.choices[0].message.content or "")
