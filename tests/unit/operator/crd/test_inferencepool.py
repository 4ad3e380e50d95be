from typing import Any

import pytest

from kvik_operator.crd.inferencepool import Device, InferencePool, SloClass
from kvik_operator.errors import PoolError
from tests.support.pools import KEY, SOURCE, UID, make_pool


def test_a_stored_pool_is_read_with_its_names_and_defaults() -> None:
    pool = InferencePool.from_object(make_pool(generation=3))
    assert (pool.key, pool.uid, pool.generation) == (KEY, UID, 3)
    assert (pool.spec.slo.class_, pool.spec.resources.device, pool.spec.replicas) == (
        SloClass.BALANCED,
        Device.GPU,
        1,
    )
    assert pool.spec.scaling is None
    assert pool.status == {}


def test_fields_of_a_newer_schema_are_ignored() -> None:
    pool = InferencePool.from_object(make_pool(speculation={"method": "NGram"}, model={"source": SOURCE, "new": 1}))
    assert pool.spec.model.source == SOURCE


@pytest.mark.parametrize(
    ("groups", "field"),
    [
        ({"batching": {"maxRequests": "many"}}, "spec.batching.maxRequests"),
        ({"slo": {"class": "Fast"}}, "spec.slo.class"),
        ({"model": {}}, "spec.model"),
        ({"resources": {"requests": {"cpu": []}}}, "spec.resources.requests"),
        ({"template": {"env": [{"value": "x"}]}}, "spec.template.env"),
    ],
)
def test_what_the_schema_should_have_refused_names_its_field(groups: dict[str, Any], field: str) -> None:
    with pytest.raises(PoolError) as raised:
        InferencePool.from_object(make_pool(**groups))
    assert raised.value.field.startswith(field)
    assert str(raised.value).startswith(field)


def test_a_pool_without_a_spec_is_an_error_of_the_pool() -> None:
    pool = make_pool()
    del pool["spec"]
    with pytest.raises(PoolError, match=r"^spec: "):
        InferencePool.from_object(pool)
