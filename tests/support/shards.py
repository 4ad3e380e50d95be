"""Splits a run into shards by the tests' names alone, so that adding a test moves no other."""

import hashlib


def in_shard(name: str, shard: str) -> bool:
    """Whether the test of that name is in shard `I/N`, I from 0."""
    index, count = (int(part) for part in shard.split("/"))
    return int(hashlib.sha256(name.encode()).hexdigest(), 16) % count == index
