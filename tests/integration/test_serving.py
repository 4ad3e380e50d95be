"""What a user of the official client sees of a running engine."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest

from tests.support import corpus
from tests.support.live_engine import MODEL, LiveEngine, memory_maps

pytestmark = pytest.mark.timeout(300)

QUESTION: list[Any] = [{"role": "user", "content": "What is the capital of France?"}]


def ask(engine: LiveEngine, **options: Any) -> Any:
    defaults: dict[str, Any] = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 12}
    return engine.openai.chat.completions.create(**(defaults | options))


def complete(engine: LiveEngine, prompt: Any, **options: Any) -> Any:
    defaults: dict[str, Any] = {"model": MODEL, "temperature": 0, "max_tokens": 8}
    return engine.openai.completions.create(prompt=prompt, **(defaults | options))


def test_the_model_answers_a_chat(engine: LiveEngine) -> None:
    answer = ask(engine)
    assert "Paris" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_has_the_same_text_as_the_whole_answer(engine: LiveEngine) -> None:
    whole = ask(engine)
    chunks = list(ask(engine, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].delta.content or "" for c in chunks[:-1]) == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_a_prompt_of_ids_and_one_of_text_give_the_same(engine: LiveEngine) -> None:
    text = "The quick brown fox"
    ids = json.loads(engine.post("/tokenize", json.dumps({"prompt": text}).encode())[2])["tokens"]
    assert complete(engine, ids).choices[0].text == complete(engine, text).choices[0].text


def test_a_beam_search_ends_at_a_stop_string(engine: LiveEngine) -> None:
    asked = {"use_beam_search": True, "early_stopping": True}
    answer = complete(engine, "1, 2, 3, 4, 5, 6,", n=2, max_tokens=40, stop=[","], extra_body=asked)
    assert [(choice.finish_reason, "," in choice.text) for choice in answer.choices] == [("stop", False)] * 2
    assert answer.usage.completion_tokens < 40


def test_lists_of_prompts_and_choices_are_numbered(engine: LiveEngine) -> None:
    answer = complete(engine, ["One two three", "Red green"], n=2, max_tokens=4)
    alone = [complete(engine, p, max_tokens=4).choices[0].text for p in ("One two three", "Red green")]
    assert [c.index for c in answer.choices] == [0, 1, 2, 3]
    assert [c.text for c in answer.choices] == [alone[0], alone[0], alone[1], alone[1]]


def test_a_seed_repeats_and_its_choices_differ(engine: LiveEngine) -> None:
    """vllm #51226, PR #11898: a seed ignored beside neighbours; equal samples for n > 1."""
    options = {"temperature": 1.0, "seed": 7, "n": 3, "max_tokens": 12}
    first = [c.message.content for c in ask(engine, **options).choices]
    with ThreadPoolExecutor(4) as pool:
        neighbours = [pool.submit(ask, engine, temperature=1.0, max_tokens=30) for _ in range(3)]
        second = [c.message.content for c in ask(engine, **options).choices]
        [n.result() for n in neighbours]
    assert first == second
    assert len(set(first)) > 1
    assert first != [c.message.content for c in ask(engine, **options | {"seed": 8}).choices]


def test_stop_strings_end_the_text(engine: LiveEngine) -> None:
    answer = complete(engine, "1 2 3 4", stop=[" 8"], max_tokens=30)
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].text == " 5 6 7"


def test_logprobs_are_those_of_the_shown_tokens(engine: LiveEngine) -> None:
    choice = ask(engine, logprobs=True, top_logprobs=3).choices[0]
    content = choice.logprobs.content
    assert "".join(t.token for t in content) == choice.message.content
    for token in content:
        assert token.logprob == max(t.logprob for t in token.top_logprobs), "greedy takes the likeliest"
        assert len(token.top_logprobs) == 3
    legacy = complete(engine, "1 2 3", logprobs=2).choices[0]
    assert "".join(legacy.logprobs.tokens) == legacy.text
    assert legacy.logprobs.text_offset[0] == 0


def test_min_tokens_and_logit_bias_change_the_answer(engine: LiveEngine) -> None:
    assert ask(engine, max_tokens=20, extra_body={"min_tokens": 20}).usage.completion_tokens == 20
    paris = json.loads(engine.post("/tokenize", b'{"prompt": " Paris"}')[2])["tokens"]
    biased = ask(engine, logit_bias={str(paris[0]): -100})
    assert " Paris" not in biased.choices[0].message.content


def test_a_repeated_prompt_hits_the_prefix_cache_and_answers_the_same(engine: LiveEngine) -> None:
    prompt = "Once upon a time there was a fox who lived in the wood. " * 6
    cold, warm = complete(engine, prompt), complete(engine, prompt)
    assert warm.usage.prompt_tokens_details.cached_tokens >= 16
    assert cold.choices[0].text == warm.choices[0].text


def test_sixteen_clients_at_once_get_what_each_gets_alone(engine: LiveEngine) -> None:
    prompts = [f"Number {i} is followed by" for i in range(16)]
    alone = [complete(engine, p).choices[0].text for p in prompts[:4]]
    with ThreadPoolExecutor(16) as pool:
        together = [a.choices[0].text for a in pool.map(lambda p: complete(engine, p), prompts)]
    assert together[:4] == alone


def test_errors_arrive_as_the_clients_own_types(engine: LiveEngine) -> None:
    with pytest.raises(openai.NotFoundError) as missing:
        ask(engine, model="gpt-5")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as bad:
        ask(engine, temperature=3)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        ask(engine, messages=[{"role": "user", "content": "word " * 9000}])
    assert long.value.code == "context_length_exceeded"


def test_models_are_listed(engine: LiveEngine) -> None:
    assert [m.id for m in engine.openai.models.list()] == [MODEL]
    assert engine.openai.models.retrieve(MODEL).id == MODEL


def test_bad_input_leaves_the_engine_unharmed(engine: LiveEngine) -> None:
    core = engine.child("core.main")
    context = json.loads(engine.get("/info")[1])["model"]["context"]
    for case in [*corpus.CASES, *corpus.too_long(context)]:
        status, _, body = engine.post(case.path, case.body)
        assert status == case.status, (case.name, body)
        error = json.loads(body)["error"]
        assert (error["param"], error["code"]) == (case.param, case.code), case.name
    assert engine.child("core.main") == core
    assert ask(engine, max_tokens=1).choices[0].finish_reason == "length"


def test_the_api_process_never_loads_torch_or_transformers(engine: LiveEngine) -> None:
    assert "libtorch" not in memory_maps(engine.child("api.main"))
    script = (
        "import sys, kvik_engine.api.main\n"
        "found = {'torch', 'transformers', 'triton', 'huggingface_hub'} & set(sys.modules)\n"
        "assert not found, found"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_launcher_stays_small(engine: LiveEngine) -> None:
    """Standard library only: neither an HTTP library nor numpy in PID 1."""
    assert engine.process is not None
    maps = memory_maps(engine.process.pid)
    assert "site-packages" not in maps or "numpy" not in maps
    assert "libtorch" not in maps


def test_load_info_and_metrics_show_what_happened(engine: LiveEngine) -> None:
    before = engine.load["step"]
    ask(engine)
    load = engine.load
    assert load["state"] == "ready"
    assert load["step"] > before
    assert 0 < load["ttft_p90_seconds"] < 60
    assert load["prefill_tokens_per_second"] > 0
    info = json.loads(engine.get("/info")[1])
    assert info["kv"]["blocks_total"] == load["kv_blocks_total"]
    assert info["model"]["parameters"] > 100_000_000
    page = engine.get("/metrics")[1].decode()
    assert 'vllm:num_requests_running{model_name="smollm2"} 0.0' in page
    assert engine.get("/metrics", engine.port)[0] == engine.get("/health", engine.port)[0] == 200


def test_probes_answer_quickly_under_load(engine: LiveEngine) -> None:
    """A tenth of E4: long prompts are parsed, rendered and tokenized while the probe is asked.

    llm-d-benchmark #1734: probes that were late under load took all pods of a pool out at once.
    """
    context = json.loads(engine.get("/info")[1])["model"]["context"]
    long = "word " * (context + 1000)
    slowest = 0.0
    with ThreadPoolExecutor(8) as pool:
        asked = [
            pool.submit(
                engine.post, corpus.CHAT, json.dumps({"messages": [{"role": "user", "content": long}]}).encode()
            )
            for _ in range(24)
        ]
        while not all(a.done() for a in asked):
            started = time.monotonic()
            assert engine.probe("/live") == 200
            slowest = max(slowest, time.monotonic() - started)
    assert [a.result()[0] for a in asked] == [400] * 24
    assert slowest < 9, "the kubelet's timeout, and three times that for a machine which is not ours alone"
