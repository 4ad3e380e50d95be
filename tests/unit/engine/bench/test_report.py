"""A run as a table and as JSON."""

from __future__ import annotations

import json
from dataclasses import replace

from kvik_engine.bench.figures import Answer, Failure, Result, Slo, figures
from kvik_engine.bench.report import Run, as_json, as_table
from kvik_engine.bench.workloads import Workload

RUN = Run(
    url="http://h:1",
    model="m",
    workload=Workload("random", 10, 5, 512, 2, 4),
    requests=3,
    concurrency=2,
    rate=None,
    seed=7,
    warmup=1,
    ignore_eos=False,
    slo=Slo(ttft=0.5),
    exact_prompts=True,
    latest_start=None,
)
FIRST = Answer(0, 0.25, 1.25, (0.5, 0.5), 5, 10)
RESULTS: list[Result] = [
    FIRST,
    Answer(0, 1.0, 2.0, (1.0,), 5, 10),
    Failure("timed out", "60 s", 0, 2),
]


def test_times_are_told_in_milliseconds_and_rates_in_seconds() -> None:
    told = json.loads(json.dumps(as_json(RUN, figures(RESULTS, RUN.slo))))
    assert told["ttft_ms"]["mean"] == 625.0
    assert (told["requests_per_second"], told["output_tokens_per_second"]) == (1.0, 5.0)
    assert (told["goodput_requests_per_second"], told["slo_ms"]) == (0.5, {"ttft": 500.0, "tpot": None})
    assert told["load"] == {"concurrency": 2, "rate": None}
    assert told["tokens_from"] == "usage"
    assert told["failures"] == {"timed out": {"count": 1, "example": "60 s"}}


def test_a_table_names_what_failed_and_shows_no_numbers_for_what_there_is_none_of() -> None:
    table = as_table(RUN, figures(RESULTS[2:], Slo()))
    assert "failed 1 times: timed out: 60 s" in table
    assert "goodput" not in table
    assert "TTFT                   -" in table
    assert "approximate" not in table


def test_what_could_not_be_kept_stands_above_the_figures() -> None:
    run = replace(RUN, exact_prompts=False, concurrency=None, rate=3.0, latest_start=0.25)
    uncounted = replace(FIRST, tokens_from_usage=False)
    table = as_table(run, figures([uncounted, *RESULTS[1:]], run.slo)).splitlines()
    assert "3 conversations a second" in table[0]
    assert "approximate" in table[1]
    assert "by events" in table[2]
    assert "250 ms too late" in table[3]
