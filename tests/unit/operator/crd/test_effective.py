from datetime import timedelta
from typing import Any

import pytest

from kvik_operator.crd.effective import Effective, EffectiveApiKeys, disk_cache_room, effective
from kvik_operator.crd.inferencepool import Admission, Dtype, KvDtype, PreemptionMode, PrefixCache
from kvik_operator.crd.quantities import parse_quantity
from kvik_operator.errors import PoolError
from tests.support.pools import SOURCE, spec_of

ON_CPU = {"resources": {"device": "CPU"}}


def effective_of(**groups: Any) -> Effective:
    return effective(spec_of(**groups), "chat")


def batching_of(**groups: Any) -> tuple[int, int, int, int]:
    batching = effective_of(**groups).batching
    return (
        batching.max_requests,
        batching.max_batch_tokens,
        batching.chunked_prefill_tokens,
        batching.max_queued_requests,
    )


CLASSES = {
    # class: ttft, (requests, batch, chunk, queue), (kv full, queue full, target), stabilization, drain
    "Interactive": (timedelta(milliseconds=500), (32, 2048, 256, 64), (0.7, 2, 0.7), 300, 120),
    "Balanced": (timedelta(seconds=2), (64, 4096, 512, 256), (0.8, 5, 0.75), 300, 120),
    "Batch": (None, (256, 8192, 2048, 4096), (0.95, 64, 0.8), 600, 600),
}


@pytest.mark.parametrize("name", CLASSES)
def test_the_class_decides_what_nobody_set(name: str) -> None:
    ttft, want_batching, (kv_full, queue_full, target), stabilization, drain = CLASSES[name]
    groups = {"slo": {"class": name}, "scaling": {"maxReplicas": 4}}
    values = effective_of(**groups)
    assert values.ttft == ttft
    assert batching_of(**groups) == want_batching
    assert values.scaling is not None
    assert values.scaling.pod_full_at.kv_utilization == kv_full
    assert values.scaling.pod_full_at.queued_requests == queue_full
    assert values.scaling.pod_full_at.ttft == ttft
    assert values.scaling.target_load == target
    assert values.scaling.scale_down_stabilization == timedelta(seconds=stabilization)
    assert values.drain_timeout == timedelta(seconds=drain)
    assert values.startup_timeout == timedelta(minutes=30)


def test_without_scaling_replicas_are_fixed() -> None:
    assert effective_of().scaling is None


def test_explicit_values_win_over_the_class() -> None:
    values = effective_of(
        slo={"class": "Interactive", "ttft": "900ms"},
        batching={"maxRequests": 4, "maxBatchTokens": 64, "chunkedPrefillTokens": 16, "maxQueuedRequests": 0},
        scaling={
            "maxReplicas": 3,
            "minReplicas": 2,
            "targetLoadPercent": 50,
            "podFullAt": {"kvUtilizationPercent": 60, "queuedRequests": 9, "ttft": "3s"},
            "scaleDownStabilization": "20s",
        },
        startup={"timeout": "90s"},
        drain={"timeout": "30s"},
    )
    assert (values.ttft, values.startup_timeout, values.drain_timeout) == (
        timedelta(milliseconds=900),
        timedelta(seconds=90),
        timedelta(seconds=30),
    )
    batching = values.batching
    assert (batching.max_requests, batching.max_batch_tokens, batching.chunked_prefill_tokens) == (4, 64, 16)
    assert batching.max_queued_requests == 0
    assert values.scaling is not None
    assert (values.scaling.min_replicas, values.scaling.max_replicas, values.scaling.target_load) == (2, 3, 0.5)
    full = values.scaling.pod_full_at
    assert (full.kv_utilization, full.queued_requests, full.ttft) == (0.6, 9, timedelta(seconds=3))
    assert values.scaling.scale_down_stabilization == timedelta(seconds=20)


def test_the_ttft_at_which_a_pod_is_full_follows_the_target() -> None:
    values = effective_of(slo={"ttft": "750ms"}, scaling={"maxReplicas": 2})
    assert values.scaling is not None
    assert values.scaling.pod_full_at.ttft == timedelta(milliseconds=750)


def test_a_batch_pool_with_a_target_of_its_own_has_a_ttft_term() -> None:
    values = effective_of(slo={"class": "Batch", "ttft": "30s"}, scaling={"maxReplicas": 2})
    assert values.scaling is not None
    assert values.scaling.pod_full_at.ttft == timedelta(seconds=30)


@pytest.mark.parametrize("name", CLASSES)
def test_a_cpu_lowers_what_the_class_decides(name: str) -> None:
    requests, batch, chunk, _ = batching_of(slo={"class": name}, **ON_CPU)
    assert (requests, batch, chunk) == (32, 512, 128)


def test_a_cpu_does_not_lower_what_is_explicit() -> None:
    explicit = {"maxRequests": 100, "maxBatchTokens": 1000, "chunkedPrefillTokens": 700}
    assert batching_of(batching=explicit, **ON_CPU)[:3] == (100, 1000, 700)


def test_a_small_explicit_batch_lowers_chunk_and_requests() -> None:
    assert batching_of(batching={"maxBatchTokens": 48})[:3] == (48, 48, 48)


def test_a_large_explicit_chunk_raises_the_batch() -> None:
    assert batching_of(batching={"chunkedPrefillTokens": 6000})[:3] == (64, 6000, 6000)


def test_many_explicit_requests_raise_the_batch() -> None:
    assert batching_of(batching={"maxRequests": 5000})[:3] == (5000, 5000, 512)


def test_the_model_is_named_like_the_pool_unless_it_has_a_name() -> None:
    assert effective_of().model.name == "chat"
    assert effective_of(model={"source": SOURCE, "name": "org/m"}).model.name == "org/m"


def test_absent_engine_settings_are_the_documented_ones() -> None:
    values = effective_of()
    assert values.model.dtype is Dtype.AUTO
    assert values.model.max_context_tokens is None
    assert (values.kv_cache.memory_percent, values.kv_cache.size) == (90, None)
    assert (values.kv_cache.block_tokens, values.kv_cache.prefix_cache) == (16, PrefixCache.RADIX)
    assert (values.kv_cache.key_dtype, values.kv_cache.value_dtype) == (KvDtype.AUTO, KvDtype.AUTO)


def test_an_explicit_kv_size_leaves_no_memory_percent() -> None:
    kv = effective_of(kvCache={"size": "256Mi", "prefixCache": "Disabled", "blockTokens": 32}).kv_cache
    assert (kv.size, kv.memory_percent, kv.block_tokens, kv.prefix_cache) == ("256Mi", None, 32, PrefixCache.DISABLED)


@pytest.mark.parametrize(
    ("resources", "want_requests", "want_limits"),
    [
        ({"device": "GPU"}, {"cpu": "4", "memory": "24Gi"}, {"memory": "24Gi"}),
        ({"device": "CPU"}, {"cpu": "1", "memory": "4Gi"}, {"memory": "4Gi"}),
        (
            {"device": "CPU", "requests": {"cpu": "300m", "memory": "2500Mi"}},
            {"cpu": "300m", "memory": "2500Mi"},
            {"memory": "2500Mi"},
        ),
        # A limit below the default request lowers the request, else the pod would be refused.
        (
            {"device": "CPU", "limits": {"memory": "2Gi", "cpu": "500m"}},
            {"cpu": "500m", "memory": "2Gi"},
            {"memory": "2Gi", "cpu": "500m"},
        ),
        (
            {"device": "CPU", "limits": {"memory": "8Gi"}, "requests": {"ephemeral-storage": 10}},
            {"cpu": "1", "memory": "4Gi", "ephemeral-storage": "10"},
            {"memory": "8Gi"},
        ),
    ],
)
def test_absent_resources_are_filled_in(
    resources: dict[str, Any], want_requests: dict[str, str], want_limits: dict[str, str]
) -> None:
    values = effective_of(resources=resources).resources
    assert dict(values.requests) == want_requests
    assert dict(values.limits) == want_limits


@pytest.mark.parametrize(
    ("resources", "swap_space", "want_request", "want_limit"),
    [
        ({}, "4Gi", "28Gi", "28Gi"),
        ({"requests": {"memory": "2500Mi"}}, "512Mi", "3012Mi", "3012Mi"),
        ({"requests": {"memory": "2Gi"}, "limits": {"memory": "3Gi"}}, "1Gi", "3Gi", "4Gi"),
        ({"requests": {"memory": "2G"}}, 500000000, "2500000000", "2500000000"),
    ],
)
def test_swap_space_comes_on_top_of_the_memory_request_and_limit(
    resources: dict[str, Any], swap_space: str | int, want_request: str, want_limit: str
) -> None:
    values = effective_of(resources=resources, kvCache={"swapSpace": swap_space})
    assert values.kv_cache.swap_space == str(swap_space)
    assert values.resources.requests["memory"] == want_request
    assert values.resources.limits["memory"] == want_limit


@pytest.mark.parametrize(
    ("resources", "want_request", "want_limit"),
    [
        ({}, "10576Mi", None),
        ({"requests": {"ephemeral-storage": "40Gi"}}, "51536Mi", None),
        ({"limits": {"ephemeral-storage": "50Gi"}}, "61776Mi", "61776Mi"),
        ({"requests": {"ephemeral-storage": "40Gi"}, "limits": {"ephemeral-storage": "50Gi"}}, "51536Mi", "61776Mi"),
    ],
)
def test_the_disk_cache_and_its_folders_come_on_top_of_the_ephemeral_storage(
    resources: dict[str, Any], want_request: str, want_limit: str | None
) -> None:
    """Kubernetes takes a limit for the request where there is none, and evicts a pod that is above its limit."""
    values = effective_of(resources=resources, kvCache={"swapSpace": "1Gi", "diskCache": {"size": "10Gi"}})
    assert values.kv_cache.disk_cache == "10Gi"
    assert disk_cache_room("10Gi") == "10576Mi"
    assert values.resources.requests["ephemeral-storage"] == want_request
    assert values.resources.limits.get("ephemeral-storage") == want_limit


def test_without_a_disk_cache_nothing_is_asked_of_the_disk() -> None:
    values = effective_of(kvCache={"swapSpace": "1Gi"})
    assert values.kv_cache.disk_cache is None
    assert "ephemeral-storage" not in values.resources.requests


@pytest.mark.parametrize("blocks", [100, 100_000])
@pytest.mark.parametrize("pages", [1, 90])
def test_an_engine_that_fills_its_disk_cache_stays_within_the_room_of_the_volume(blocks: int, pages: int) -> None:
    """256 folders of a page at least, and up to 128 bytes in them for a name of 66 letters: a kubelet counts them."""
    size = blocks * pages * 4096
    folders = max(256 * 4096, 128 * blocks)
    assert size + folders <= parse_quantity(disk_cache_room(str(size)))


def test_the_keys_are_those_of_the_entry_keys_unless_another_is_named() -> None:
    assert effective_of().api_keys is None
    assert effective_of(apiKeys={"secretRef": {"name": "a"}}).api_keys == EffectiveApiKeys("a", "keys")
    assert effective_of(apiKeys={"secretRef": {"name": "a", "key": "b"}}).api_keys == EffectiveApiKeys("a", "b")


def test_admission_is_by_queue_unless_goodput_is_asked_for() -> None:
    assert effective_of(slo={"class": "Interactive"}).batching.admission is Admission.QUEUE
    assert effective_of(batching={"admission": "Goodput"}).batching.admission is Admission.GOODPUT


def test_preemption_is_auto_with_a_measured_threshold_and_no_swap_space() -> None:
    values = effective_of()
    assert values.batching.preemption_mode is PreemptionMode.AUTO
    assert values.batching.swap_threshold_tokens is None
    assert values.kv_cache.swap_space == "0"


def test_explicit_preemption_wins() -> None:
    swap = effective_of(batching={"preemption": {"mode": "Swap"}}, kvCache={"swapSpace": "1Gi"}).batching
    assert swap.preemption_mode is PreemptionMode.SWAP
    auto = effective_of(batching={"preemption": {"swapThresholdTokens": 0}}, kvCache={"swapSpace": "1Gi"}).batching
    assert auto.swap_threshold_tokens == 0


def test_the_accelerator_is_the_default_one_on_a_gpu_and_none_on_a_cpu() -> None:
    assert effective_of().resources.accelerator == "nvidia.com/gpu"
    assert effective_of(resources={"accelerators": {"resourceName": "amd.com/gpu"}}).resources.accelerator == (
        "amd.com/gpu"
    )
    assert effective_of(**ON_CPU).resources.accelerator is None


@pytest.mark.parametrize(
    ("groups", "field"),
    [
        ({"slo": {"ttft": "soon"}}, "spec.slo.ttft"),
        ({"drain": {"timeout": "0s"}}, "spec.drain.timeout"),
        ({"startup": {"timeout": "1d"}}, "spec.startup.timeout"),
        ({"scaling": {"maxReplicas": 1, "scaleDownStabilization": "x"}}, "spec.scaling.scaleDownStabilization"),
        ({"scaling": {"maxReplicas": 1, "podFullAt": {"ttft": "x"}}}, "spec.scaling.podFullAt.ttft"),
        ({"kvCache": {"size": "big"}}, "spec.kvCache.size"),
        ({"kvCache": {"swapSpace": "big"}}, "spec.kvCache.swapSpace"),
        ({"kvCache": {"diskCache": {"size": "1e99"}}}, "spec.kvCache.diskCache.size"),
        ({"resources": {"limits": {"memory": "big"}}}, "spec.resources.limits.memory"),
    ],
)
def test_a_value_that_cannot_be_read_names_its_field(groups: dict[str, Any], field: str) -> None:
    with pytest.raises(PoolError) as raised:
        effective_of(**groups)
    assert raised.value.field == field
