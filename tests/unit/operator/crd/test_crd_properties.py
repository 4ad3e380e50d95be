"""Any spec: either it is read and its effective values hold together, or a PoolError names a field. Nothing else."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvik_operator.crd.effective import effective
from kvik_operator.crd.inferencepool import InferencePool
from kvik_operator.errors import PoolError
from tests.support.pools import SOURCE, make_pool, spec_of

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-10, 10**12) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
GROUPS = [
    *("model", "slo", "batching", "kvCache", "resources", "replicas", "engine"),
    *("scaling", "rollout", "startup", "drain", "template"),
]
FIELDS = [
    *("source", "name", "secretRef", "class", "ttft", "maxRequests", "maxBatchTokens", "size", "blockTokens"),
    *(
        "device",
        "requests",
        "limits",
        "cpu",
        "memory",
        "maxReplicas",
        "podFullAt",
        "timeout",
        "env",
        "tolerations",
        "version",
    ),
]


@given(st.dictionaries(st.sampled_from(GROUPS), JSON | st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=5)))
def test_a_spec_of_anything_is_read_or_refused_by_field(groups: dict[str, Any]) -> None:
    refused: PoolError | None = None
    try:
        effective(InferencePool.from_object(make_pool(**groups)).spec, "chat")
    except PoolError as error:
        refused = error
    assert refused is None or (refused.field.startswith("spec") and refused.message)


COUNT = st.none() | st.integers(1, 100_000)


@given(
    slo_class=st.sampled_from(["Interactive", "Balanced", "Batch"]),
    device=st.sampled_from(["GPU", "CPU"]),
    requests=COUNT,
    tokens=COUNT.filter(lambda count: count is None or count >= 16),
    chunk=COUNT,
)
def test_effective_batching_always_holds_together_and_keeps_what_is_explicit(
    slo_class: str, device: str, requests: int | None, tokens: int | None, chunk: int | None
) -> None:
    if tokens is not None and max(requests or 0, chunk or 0) > tokens:
        return  # the schema refuses explicit values that contradict each other
    explicit = {"maxRequests": requests, "maxBatchTokens": tokens, "chunkedPrefillTokens": chunk}
    batching = {name: value for name, value in explicit.items() if value is not None}
    spec = spec_of(model={"source": SOURCE}, slo={"class": slo_class}, resources={"device": device}, batching=batching)
    values = effective(spec, "chat").batching
    assert 1 <= values.max_requests <= values.max_batch_tokens
    assert 1 <= values.chunked_prefill_tokens <= values.max_batch_tokens
    assert requests in (None, values.max_requests)
    assert tokens in (None, values.max_batch_tokens)
    assert chunk in (None, values.chunked_prefill_tokens)
