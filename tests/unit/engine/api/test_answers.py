"""The shapes of answers, whole and streamed, of both APIs."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kvik_engine.ipc.messages import Submit
from tests.support.byte_tokenizer import END
from tests.support.live_api import MODEL, LiveApi, live_api


async def test_a_chat_is_answered(api: LiveApi) -> None:
    reply = await api.chat(model=MODEL)
    assert reply.status == 200
    body = reply.json
    assert body["object"] == "chat.completion"
    assert body["id"].startswith("chatcmpl-")
    assert body["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello, world", "refusal": None},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]
    prompt = len("user\nHi\nassistant\n") + 3
    assert body["usage"] == {
        "prompt_tokens": prompt,
        "completion_tokens": 13,
        "total_tokens": prompt + 13,
        "prompt_tokens_details": {"cached_tokens": 16},
    }


async def test_a_chat_streams_role_text_and_reason(api: LiveApi) -> None:
    reply = await api.chat(stream=True)
    assert reply.headers["Content-Type"].startswith("text/event-stream")
    events = reply.events
    assert {e["object"] for e in events} == {"chat.completion.chunk"}
    assert len({e["id"] for e in events}) == 1
    assert events[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert "".join(e["choices"][0]["delta"].get("content", "") for e in events) == "Hello, world"
    assert [e["choices"][0]["finish_reason"] for e in events][-1] == "stop"
    assert all(e["choices"][0]["finish_reason"] is None for e in events[:-1])
    assert "usage" not in events[0]


async def test_usage_comes_last_and_is_null_before(api: LiveApi) -> None:
    events = (await api.chat(stream=True, stream_options={"include_usage": True})).events
    assert all(e["usage"] is None for e in events[:-1])
    assert events[-1]["choices"] == []
    assert events[-1]["usage"]["completion_tokens"] == 13


async def test_choices_stream_with_their_index(api: LiveApi) -> None:
    events = (await api.chat(stream=True, n=3)).events
    texts = dict.fromkeys(range(3), "")
    for event in events:
        for choice in event["choices"]:
            texts[choice["index"]] += choice["delta"].get("content", "")
    assert texts == dict.fromkeys(range(3), "Hello, world")


async def test_completions_number_choices_prompt_by_prompt(api: LiveApi) -> None:
    api.core.reply = lambda submit: bytes(submit.prompt)
    reply = await api.complete(prompt=["ab", "cd"], n=2)
    choices = reply.json["choices"]
    assert [(c["index"], c["text"]) for c in choices] == [(0, "ab"), (1, "ab"), (2, "cd"), (3, "cd")]
    assert reply.json["object"] == "text_completion"
    assert reply.json["usage"]["prompt_tokens"] == 4


async def test_a_completion_streams(api: LiveApi) -> None:
    events = (await api.complete(stream=True, prompt=[72, 105])).events
    assert "".join(e["choices"][0]["text"] for e in events) == "Hello, world"
    assert api.core.submits[0].prompt == [72, 105]


async def test_default_lengths(api: LiveApi) -> None:
    await api.complete()
    await api.chat()
    completion, chat = api.core.submits
    assert completion.params.max_tokens == 16
    assert chat.params.max_tokens == 256 - len(chat.prompt), "a chat may use what is left of the context"


async def test_a_cut_answer_ends_with_length(api: LiveApi) -> None:
    reply = await api.chat(max_completion_tokens=5)
    assert reply.json["choices"][0]["finish_reason"] == "length"
    assert reply.json["choices"][0]["message"]["content"] == "Hello"


async def test_a_stop_string_cuts_the_text_and_what_is_billed(api: LiveApi) -> None:
    reply = await api.chat(stop=[", w", "zz"])
    assert reply.json["choices"][0]["message"]["content"] == "Hello"
    assert reply.json["choices"][0]["finish_reason"] == "stop"
    assert reply.json["usage"]["completion_tokens"] == len("Hello, w")


async def test_a_stop_string_can_be_part_of_the_text(api: LiveApi) -> None:
    reply = await api.chat(stop=", w", include_stop_str_in_output=True)
    assert reply.json["choices"][0]["message"]["content"] == "Hello, w"


async def test_no_event_shows_what_a_stop_string_cuts(api: LiveApi) -> None:
    events = (await api.chat(stream=True, stop=["world"])).events
    shown = [e["choices"][0]["delta"].get("content", "") for e in events]
    assert "".join(shown) == "Hello, "


async def test_chat_logprobs(api: LiveApi) -> None:
    reply = await api.chat(logprobs=True, top_logprobs=2, max_tokens=2)
    content = reply.json["choices"][0]["logprobs"]["content"]
    assert content[0] == {
        "token": "H",
        "logprob": -0.5,
        "bytes": [72],
        "top_logprobs": [
            {"token": "H", "logprob": -0.5, "bytes": [72]},
            {"token": "bytes:\\x80", "logprob": -9999.0, "bytes": [128]},
        ],
    }
    assert len(content) == 2


async def test_chat_logprobs_without_alternatives(api: LiveApi) -> None:
    content = (await api.chat(logprobs=True, max_tokens=1)).json["choices"][0]["logprobs"]["content"]
    assert content[0]["top_logprobs"] == []


async def test_completion_logprobs(api: LiveApi) -> None:
    api.core.reply = lambda submit: "aé!".encode()
    logprobs = (await api.complete(logprobs=1)).json["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["a", "bytes:\\xc3", "bytes:\\xa9", "!"]
    assert logprobs["token_logprobs"] == [-0.5] * 4
    assert logprobs["top_logprobs"][0] == {"a": -0.5}
    assert logprobs["text_offset"] == [0, 1, 1, 2]


async def test_logprobs_of_text_cut_by_a_stop_string_are_not_sent(api: LiveApi) -> None:
    for stream in (False, True):
        reply = await api.complete(logprobs=0, stop=["world"], stream=stream)
        choices = [e["choices"][0] for e in reply.events] if stream else reply.json["choices"]
        tokens = [t for c in choices if c["logprobs"] for t in c["logprobs"]["tokens"]]
        assert "".join(tokens) == "Hello, "


async def test_a_character_over_two_tokens_is_one_delta(api: LiveApi) -> None:
    api.core.reply = lambda submit: "é😀".encode()
    events = (await api.complete(stream=True)).events
    assert [e["choices"][0]["text"] for e in events if e["choices"][0]["text"]] == ["é", "😀"]


async def test_sampling_reaches_the_core(api: LiveApi) -> None:
    sent = {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 40,
        "min_p": 0.1,
        "seed": -1,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.2,
        "logit_bias": {"65": -100, "66": 5.5},
        "min_tokens": 2,
        "stop_token_ids": [10, 10],
        "n": 2,
        "max_tokens": 9,
        "priority": -3,
        "slo_class": "batch",
        "cache_salt": "tenant",
    }
    assert (await api.chat(**sent)).status == 200
    submit = api.core.submits[0]
    params = submit.params
    assert (params.temperature, params.top_p, params.top_k, params.min_p) == (0.7, 0.9, 40, 0.1)
    assert params.seed == (1 << 64) - 1
    assert (params.presence_penalty, params.frequency_penalty, params.repetition_penalty) == (0.5, -0.5, 1.2)
    assert params.logit_bias == ((65, -100.0), (66, 5.5))
    assert (params.min_tokens, params.n, params.max_tokens) == (2, 2, 9)
    assert params.stop_token_ids == (END, 10)
    assert (submit.priority, submit.slo_class, submit.salt) == (-3, 2, b"tenant")


async def test_defaults_that_reach_the_core(api: LiveApi) -> None:
    await api.chat(temperature=1e-9, ignore_eos=True, top_k=-1)
    await api.chat(temperature=0.001)
    greedy, warm = api.core.submits
    assert greedy.params.greedy
    assert greedy.params.stop_token_ids == ()
    assert greedy.params.top_k is None
    assert (greedy.slo_class, greedy.priority, greedy.salt) == (1, 0, b"")
    assert warm.params.temperature == 0.01
    assert greedy.params.seed != warm.params.seed, "without a seed each request draws its own"


async def test_equal_prompts_without_a_seed_draw_different_ones_and_with_it_the_same(api: LiveApi) -> None:
    await api.complete(prompt=["Hi"] * 3, temperature=1)
    await api.complete(prompt=["Hi"] * 3, temperature=1, seed=5)
    drawn, given = api.core.submits[:3], api.core.submits[3:]
    assert len({s.params.seed for s in drawn}) == 3
    assert [s.params.seed for s in given] == [5] * 3


async def test_the_models_first_token_can_be_left_out(api: LiveApi) -> None:
    assert (await api.complete(add_special_tokens=False)).status == 200
    assert (await api.chat(add_special_tokens=False)).status == 200
    assert (await api.chat(add_special_tokens=True)).error["param"] == "add_special_tokens"


async def test_content_may_come_in_parts_and_roles_are_mapped(api: LiveApi) -> None:
    await api.chat(
        messages=[
            {"role": "developer", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": None},
            {"role": "tool", "content": "4", "tool_call_id": "x"},
        ]
    )
    text = bytes(t for t in api.core.submits[0].prompt if t < 256).decode()
    assert text == "system\na\nb\nassistant\n\ntool\n4\nassistant\n"


async def test_models_are_listed_and_found_by_ids_with_slashes(api: LiveApi) -> None:
    listed = (await api.get("/v1/models")).json
    assert listed["object"] == "list"
    assert listed["data"][0]["id"] == MODEL
    assert listed["data"][0]["max_model_len"] == 256
    assert (await api.get(f"/v1/models/{MODEL}")).json == listed["data"][0]
    missing = await api.get("/v1/models/other/model")
    assert missing.status == 404
    assert missing.error["code"] == "model_not_found"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"prompt": "Hi", "add_generation_prompt": True}, "add_generation_prompt"),
        ({"messages": [{"role": "user", "content": "Hi"}], "add_special_tokens": False}, "add_special_tokens"),
    ],
)
async def test_tokenize_refuses_what_it_would_ignore(api: LiveApi, body: dict[str, Any], param: str) -> None:
    answer = await api.post("/tokenize", body)
    assert (answer.status, answer.json["error"]["param"]) == (400, param)


async def test_a_bias_cannot_be_given_twice_by_leading_zeros(api: LiveApi) -> None:
    answer = await api.chat(logit_bias={"1": 100, "01": 100})
    assert (answer.status, answer.json["error"]["param"]) == (400, "logit_bias")


async def test_counting_tokens_is_logged_only_when_it_fails(api: LiveApi, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    for body in ({"prompt": "Hi"}, {"prompt": "Hi", "add_generation_prompt": True}):
        await api.post("/tokenize", body)
    told = [record for record in caplog.records if record.getMessage() == "request"]
    assert [vars(record)["status"] for record in told] == [400]


async def test_tokenize_and_detokenize_are_inverse(api: LiveApi) -> None:
    tokens = (await api.post("/tokenize", {"prompt": "Héllo"})).json
    assert tokens == {"count": 6, "max_model_len": 256, "tokens": list("Héllo".encode())}
    assert (await api.post("/detokenize", {"tokens": tokens["tokens"]})).json == {"prompt": "Héllo"}
    chat = (await api.post("/tokenize", {"messages": [{"role": "user", "content": "Hi"}]})).json
    assert chat["tokens"][0] == 256
    turns = {"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": False}
    assert (await api.post("/tokenize", turns)).json["count"] < chat["count"]


async def test_a_stream_has_no_event_for_a_part_of_a_character(api: LiveApi) -> None:
    """Clients that append `delta.content` fail on an event without it."""
    api.core.reply = lambda submit: "a🎉b".encode()
    deltas = [event["choices"][0] for event in (await api.chat(stream=True)).events]
    assert [d["delta"] for d in deltas[1:-1]] == [{"content": "a"}, {"content": "🎉"}, {"content": "b"}]


async def test_responses_do_not_tell_what_runs_the_server(api: LiveApi) -> None:
    for path in ("/health", "/v1/anything"):
        assert "Server" not in (await api.get(path)).headers


async def test_the_clients_request_id_is_echoed_and_never_a_key(api: LiveApi) -> None:
    """vllm #10583: equal X-Request-Ids of two clients must not meet."""
    replies = [await api.post("/v1/completions", {"prompt": "Hi"}, headers={"X-Request-Id": "same"}) for _ in range(2)]
    assert [r.headers["x-request-id"] for r in replies] == ["same", "same"]
    assert len({s.request_id for s in api.core.submits}) == 2
    odd = await api.post("/v1/completions", {"prompt": "Hi"}, headers={"X-Request-Id": "x" * 500})
    assert odd.headers["x-request-id"].startswith("req-")


@pytest.fixture
async def base_model(tmp_path: Path) -> AsyncIterator[LiveApi]:
    async with live_api(tmp_path, template=None) as made:
        yield made


async def test_a_model_without_a_template_completes_but_does_not_chat(base_model: LiveApi) -> None:
    assert (await base_model.complete()).status == 200
    refused = await base_model.chat()
    assert refused.status == 400
    assert refused.error["param"] == "messages"


async def test_a_failed_row_is_an_error_and_not_an_answer(api: LiveApi) -> None:
    api.core.error_after = 3
    whole = await api.chat()
    assert whole.status == 500
    assert whole.error["type"] == "server_error"
    events = (await api.chat(stream=True)).events
    assert events[-1]["error"]["message"] == "non-finite logits"


async def test_the_order_of_submits_does_not_matter_to_prompts(api: LiveApi) -> None:
    def reply(submit: Submit) -> bytes:
        return b"x" * submit.prompt[0]

    api.core.reply = reply
    choices = (await api.complete(prompt=[[9], [3], [6]])).json["choices"]
    assert [len(c["text"]) for c in choices] == [9, 3, 6]
