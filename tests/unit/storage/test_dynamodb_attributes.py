"""The values of attributes."""

from __future__ import annotations

from typing import Any

import pytest

from a2a_serverless.storage.codec import seconds
from a2a_serverless.storage.dynamodb import Typed, plain, typed
from a2a_serverless.storage.finding import due_tasks
from tests.support.clocks import ManualClock
from tests.support.databases import Dictionaries
from tests.support.messages import request
from tests.support.newer import head_key, set_attributes

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
    ("due_at", "shown"), [({"N": "7"}, 7), ({"N": "7.9"}, 7)], ids=["whole", "not whole"]
)
async def test_an_item_of_the_due_index_has_a_time(due_at: Any, shown: int) -> None:
    """An item is due at its millisecond, without a fraction."""
    database = Dictionaries(ManualClock())
    storage = database.storage()
    head = (await storage.open_task("c", request())).head
    set_attributes(database, head_key(head), {"due_at": due_at})
    assert [due.due_at for due in await due_tasks(storage, 10)] == [shown]
