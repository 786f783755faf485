"""The values of attributes."""

from __future__ import annotations

import pytest

from a2a_serverless.storage.dynamodb_attributes import Item, due_of, plain, seconds


def test_seconds_round_up() -> None:
    """An item expires with the second in which its time ends."""
    assert [seconds(ms) for ms in (0, 1, 999, 1000, 1001)] == [0, 1, 1, 1, 2]


def test_what_no_release_stores_is_of_another_form() -> None:
    """A value that no release stores is read as neither int, text nor bytes."""
    known = plain({"s": {"S": "1"}, "n": {"N": "1"}, "b": {"B": b"1"}, "e": {"N": "1E+2"}})
    assert known == {"s": "1", "n": 1, "b": b"1", "e": 100}
    odd = plain({"f": {"N": "1.5"}, "t": {"BOOL": True}, "m": {"M": {}}, "l": {"SS": ["1"]}})
    assert not any(isinstance(value, str | int | bytes) for value in odd.values())


@pytest.mark.parametrize(
    ("item", "due_at"),
    [
        ({"due_at": {"N": "7"}}, 7),
        ({"due_at": {"N": "7.9"}}, 7),
        ({"due_at": {"S": "7"}}, 0),
        ({}, 0),
    ],
)
def test_an_item_of_the_due_index_has_a_time(item: Item, due_at: int) -> None:
    """An item is due at its millisecond, without a fraction; without a number it is due at once."""
    assert due_of(item) == due_at
