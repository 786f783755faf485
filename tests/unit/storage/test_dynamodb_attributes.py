"""The values of attributes."""

from __future__ import annotations

from a2a_serverless.storage.dynamodb_attributes import seconds


def test_seconds_round_up() -> None:
    """An item expires with the second in which its time ends."""
    assert [seconds(ms) for ms in (0, 1, 999, 1000, 1001)] == [0, 1, 1, 1, 2]
