"""docs/pools.md against the code: reasons are API, so each is documented, and the class table is the one in use."""

import re
from pathlib import Path

import pytest

from kvik_operator.crd.effective import effective
from kvik_operator.crd.quantities import format_duration
from kvik_operator.names import ConditionType, Reason
from tests.support.pools import spec_of

PAGE = (Path(__file__).resolve().parents[4] / "docs" / "pools.md").read_text()


def rows(heading: str) -> list[list[str]]:
    """The cells of each row of the table whose first column is headed so."""
    table = PAGE.partition(f"| {heading} |")[2].partition("\n\n")[0]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


def test_every_reason_says_what_to_do() -> None:
    documented = [reason for row in rows("Reason") for reason in re.findall(r"`([A-Za-z]+)`", row[0])]
    assert sorted(documented) == sorted(map(str, Reason))


def test_every_condition_is_explained() -> None:
    assert [row[0].strip("`") for row in rows("Condition")] == list(ConditionType)


@pytest.mark.parametrize(("column", "name"), [(1, "Interactive"), (2, "Balanced"), (3, "Batch")])
def test_the_class_table_is_the_one_in_use(column: int, name: str) -> None:
    table = {
        row[0].strip("`"): row[column]
        for row in [
            [cell.strip() for cell in line.strip("|").split("|")]
            for line in PAGE.partition("(default) |")[2].partition("\n\n")[0].splitlines()[2:]
        ]
    }
    values = effective(spec_of(slo={"class": name}, scaling={"maxReplicas": 2}), "chat")
    assert values.scaling is not None
    ttft = "none" if values.ttft is None else format_duration(values.ttft)
    want = {
        "slo.ttft": ttft,
        "batching.maxRequests": str(values.batching.max_requests),
        "batching.maxBatchTokens": str(values.batching.max_batch_tokens),
        "batching.chunkedPrefillTokens": str(values.batching.chunked_prefill_tokens),
        "batching.maxQueuedRequests": str(values.batching.max_queued_requests),
        "scaling.podFullAt.kvUtilizationPercent": str(round(values.scaling.pod_full_at.kv_utilization * 100)),
        "scaling.podFullAt.queuedRequests": str(values.scaling.pod_full_at.queued_requests),
        "scaling.podFullAt.ttft": "none" if ttft == "none" else "as `slo.ttft`",
        "scaling.targetLoadPercent": str(round(values.scaling.target_load * 100)),
        "scaling.scaleDownStabilization": format_duration(values.scaling.scale_down_stabilization),
        "drain.timeout": format_duration(values.drain_timeout),
    }
    assert {key: value for key, value in table.items() if key != "for"} == want
