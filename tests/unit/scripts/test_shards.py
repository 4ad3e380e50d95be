from tests.support.shards import in_shard


def test_every_test_is_in_exactly_one_shard_and_no_shard_is_empty() -> None:
    names = [f"tests/unit/test_a.py::test_{number}" for number in range(64)]

    shards = [[name for name in names if in_shard(name, f"{index}/4")] for index in range(4)]

    assert sorted(name for shard in shards for name in shard) == sorted(names)
    assert all(shards)
