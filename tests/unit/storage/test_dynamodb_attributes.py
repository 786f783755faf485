"""The values of attributes."""

from __future__ import annotations

from typing import Any

import pytest

from a2a_serverless.storage.codec import due_of, seconds
from a2a_serverless.storage.dynamodb import Typed, plain, typed

ODD: Typed = {"f": {"N": "1.5"}, "t": {"BOOL": True}, "m": {"M": {}}, "l": {"SS": ["1"]}}


def test_seconds_round_up() -> None:
    """An item expires with the second in which its time ends."""
    assert [seconds(ms) for ms in (0, 1, 999, 1000, 1001)] == [0, 1, 1, 1, 2]


def test_what_no_release_stores_is_of_another_form() -> None:
    """A value that no release stores is read as neither int, text nor bytes."""
    known = plain({"s": {"S": "1"}, "n": {"N": "1"}, "b": {"B": b"1"}, "e": {"N": "1E+2"}})
    assert known == {"s": "1", "n": 1, "b": b"1", "e": 100}
    assert not any(isinstance(value, str | int | bytes) for value in plain(ODD).values())


def test_what_was_read_is_written_as_it_was() -> None:
    """Every value that was read can stand in a condition or an item, a damaged one too."""
    item = {"s": {"S": ""}, "n": {"N": "-7"}, "b": {"B": b"1"}, "none": {"NULL": True}, **ODD}
    assert typed(plain(item)) == item
    with pytest.raises(TypeError, match="no value of type object"):
        typed({"x": object()})


@pytest.mark.parametrize(
    ("item", "due_at"), [({"due_at": 7}, 7), ({"due_at": 7.9}, 7), ({"due_at": "7"}, 0), ({}, 0)]
)
def test_an_item_of_the_due_index_has_a_time(item: dict[str, Any], due_at: int) -> None:
    """An item is due at its millisecond, without a fraction; without a number it is due at once."""
    assert due_of(item) == due_at
