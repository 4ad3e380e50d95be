from datetime import UTC, datetime

from kvik_operator.kube.store import Store
from kvik_operator.names import PoolKey
from kvik_operator.telemetry.metrics import OperatorMetrics

KEY = PoolKey("demo", "chat")


def samples(metrics: OperatorMetrics) -> list[str]:
    return [line for line in metrics.page().decode().splitlines() if not line.startswith("#")]


def test_every_series_of_ours_carries_our_prefix() -> None:
    metrics = OperatorMetrics("1.2.3", Store())
    metrics.reconciled(0.1, "ok")
    metrics.wrote("apply", "ok")
    metrics.scraped("ok")
    metrics.watches_restarted()
    metrics.decided(KEY, 0.5, 1)
    metrics.scaled(KEY, "up")
    metrics.certificate_presented("metrics-api", datetime(1970, 1, 2, tzinfo=UTC))
    names = {sample.split("{")[0].split(" ")[0] for sample in samples(metrics)}
    ours = {name for name in names if not name.startswith(("process_", "python_"))}
    assert ours
    assert all(name.startswith("kvik_operator_") for name in ours)
    assert 'kvik_operator_build_info{version="1.2.3"} 1.0' in samples(metrics)
    ends = 'kvik_operator_certificate_expiration_timestamp_seconds{certificate="metrics-api"} 86400.0'
    assert ends in samples(metrics)


def test_no_data_is_an_absent_series_and_not_a_zero() -> None:
    metrics = OperatorMetrics("1", Store())
    metrics.decided(KEY, 0.5, 2)
    assert 'kvik_operator_pool_desired_replicas{namespace="demo",pool="chat"} 2.0' in samples(metrics)
    metrics.decided(KEY, 0.0, None)
    assert not any(sample.startswith("kvik_operator_pool_desired_replicas") for sample in samples(metrics))


def test_a_pool_that_nobody_scales_any_more_keeps_its_counter_and_loses_its_gauges() -> None:
    metrics = OperatorMetrics("1", Store())
    metrics.undecided(KEY)
    metrics.decided(KEY, 2.0, 2)
    metrics.scaled(KEY, "up")
    metrics.undecided(KEY)
    (left,) = [sample for sample in samples(metrics) if 'pool="chat"' in sample and "_created" not in sample]
    assert left.startswith("kvik_operator_pool_scalings_total")


def test_the_series_of_a_deleted_pool_go_with_it() -> None:
    metrics = OperatorMetrics("1", Store())
    metrics.decided(KEY, 0.5, 2)
    metrics.scaled(KEY, "up")
    metrics.keep_pools([PoolKey("demo", "other")])
    assert not any('pool="chat"' in sample for sample in samples(metrics))


def test_a_gauge_asks_its_source_when_it_is_scraped() -> None:
    metrics, depth = OperatorMetrics("1", Store()), [1.0]
    metrics.gauge("kvik_operator_queue_depth", "help", lambda: depth[0])
    depth[0] = 7.0
    assert "kvik_operator_queue_depth 7.0" in samples(metrics)
