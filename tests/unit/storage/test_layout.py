"""The places of items."""

from __future__ import annotations

import itertools

from a2a_serverless.storage import layout


def test_shards_are_used_evenly() -> None:
    """Task ids spread evenly over all shards, always the same way."""
    shards = [layout.shard_of(f"task-{number}") for number in range(4000)]
    assert set(shards) == set(range(layout.SHARDS))
    assert min(map(shards.count, range(layout.SHARDS))) > 800
    assert layout.shard_of("task-1") == layout.shard_of("task-1")


def test_an_owner_is_read_from_the_key() -> None:
    """Scope and task id stand in the partition key, whatever the id holds."""
    assert layout.owner_of(layout.task_partition("scope", "a:b.c_-")) == ("scope", "a:b.c_-")


def test_parts_sort_by_version_and_part() -> None:
    """The order of keys is the order of commits."""
    keys = [layout.event_sort("i", v, p) for v, p in itertools.product((1, 9, 10, 100), (0, 1, 12))]
    assert keys == sorted(keys)
    assert layout.event_sort("i", 10) < layout.event_sort("i", 10, 0)
    assert layout.event_sort("i", 10) > layout.event_sort("i", 9, 999)
    assert max(keys) < layout.HEAD < layout.PUSH
