"""What every table has to do besides what `compare` shows, for the author of a table.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    async def test_my_table(check):
        await check(my_table())

The table has to have the indexes of `INDEXES`, and may have other items: each check makes its own.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.storage.layout import BY_DUE, BY_ID, INDEXES
from a2a_serverless.storage.table import (
    Added,
    Check,
    CopyOf,
    Delete,
    Key,
    Put,
    Range,
    RefusedError,
    Table,
    Update,
    Write,
)

_LARGE: Final = 400 * 1024
_LONG_KEY: Final = 1000
_PATIENCE_S: Final = 30


def _place(number: int = 0) -> Key:
    return Key(f"P{uuid.uuid4().hex}", f"S{number}")


def _put(number: int = 0, **values: Any) -> Put:
    """Return a write of an item at a place of its own."""
    return Put(item=_place(number)._asdict() | values)


def refused_writes() -> dict[str, Sequence[Write]]:
    """Return transactions that can never succeed, by what is wrong with them."""
    place = _place()
    return {
        "one item twice": [Delete(key=place), Put(item=place._asdict())],
        "101 writes": [_put(n) for n in range(101)],
        "an item of more than 400 KB": [_put(v="x" * _LARGE)],
        "a transaction of more than 4 MB": [_put(n, v="x" * 390_000) for n in range(11)],
        "an empty PK": [Put(item={"PK": "", "SK": "A"})],
        "an empty SK": [Put(item={"PK": "P", "SK": ""})],
        "a long PK": [Put(item={"PK": "P" * 2049, "SK": "A"})],
        "a long SK": [Put(item={"PK": "P", "SK": "A" * 1025})],
        "an empty key of an index": [_put(scope_key="", status_key="1")],
        "no key of an index": [_put(scope_key=None, status_key="1")],
        "a change of a key": [Update(key=place, values={"PK": "Q"})],
        "an attribute twice": [Update(key=place, values={"v": 1}, remove=["v"])],
        "an order of None": [Put(item=place._asdict(), when=[Check("v", "<", None)])],
        "a copy of nothing": [Update(key=_place(), values={"v": CopyOf("w")})],
    }


async def refuses_what_dynamodb_refuses(table: Table) -> None:
    """A transaction that can never succeed is refused, and nothing of it is stored."""
    for what, writes in refused_writes().items():
        await _is_refused(table.write(*writes, exactly=True), what)
        whole = [write.key for write in writes if min(map(len, write.key)) > 0]
        short = [key for key in whole[:2] if max(map(len, key)) < _LONG_KEY]
        _require(not any([await table.get(key) for key in short]), f"nothing is stored of {what}")


async def adds_to_numbers_alone(table: Table) -> None:
    """An addition to a text is refused, and the text stays."""
    text = _put(v="text")
    await table.write(text)
    await _is_refused(table.write(Update(key=text.key, values={"v": Added(1)})), "addition")
    _require(await table.get(text.key) == text.item, "a refused addition changes nothing")


async def refuses_ranges_that_dynamodb_refuses(table: Table) -> None:
    """An index is asked for no more than it projects, and a range begins before it ends."""
    for wanted in (
        Range(partition="P", when=[Check("SK", "=", "A")]),
        Range(partition="P", index=BY_DUE, when=[Check("state", "=", "a")]),
        Range(partition="P", index=BY_ID, only=("state",)),
        Range(partition="P", first="B", last="A"),
        Range(partition="P", when=[Check("v", "<", None)]),
    ):
        await _is_refused(_read(table, wanted), str(wanted))


async def names_an_index_that_is_not_there(table: Table) -> None:
    """One sentence says which index the table lacks."""
    try:
        await table.count(Range(partition="P", index="by-colour"))
    except (ConfigurationError, KeyError) as error:
        _require("by-colour" in str(error), f"the index is named: {error}")
    else:
        raise AssertionError("The index by-colour was not missed.")


async def names_each_item_once(table: Table) -> None:
    """Two keys of one item are refused, and so are more than 100 that are asked for once."""
    place = _place()
    await _is_refused(table.load([place, place]), "a key twice")
    await _is_refused(table.load([_place(n) for n in range(101)], once=True), "101 keys")


async def deletes_any_number(table: Table) -> None:
    """More items than one transaction takes are deleted, and what is not there is passed over."""
    writes = [_put(n) for n in range(30)]
    for write in writes:
        await table.write(write)
    keys = [write.key for write in writes]
    await table.delete([*keys, _place()])
    _require(set((await table.load(keys)).values()) == {None}, "all are deleted")


async def ends_a_wait_by_a_write(table: Table) -> None:
    """If the table wakes, a watch of a partition notices each kind of write to it."""
    if not table.wakes:
        return
    mine = _put(v=1)
    changes: list[Write] = [mine, Update(key=mine.key, values={"v": 2}), Delete(key=mine.key)]
    for change in changes:
        with table.watch(mine.key.PK) as watch:
            waiting = asyncio.create_task(watch.wait(2 * _PATIENCE_S))
            await asyncio.sleep(0)
            await table.write(change)
            await asyncio.wait_for(waiting, _PATIENCE_S)
    with table.watch(mine.key.PK) as watch:
        await table.write(mine)
        await asyncio.wait_for(watch.wait(2 * _PATIENCE_S), _PATIENCE_S)
        await asyncio.wait_for(watch.wait(0), _PATIENCE_S)


async def has_the_indexes(table: Table) -> None:
    """Each index of the layout has an item that has both of its keys."""
    for name, index in INDEXES.items():
        sort: Any = 1 if index.sort == "due_at" else "1"
        item = _put(**{index.partition: f"K{uuid.uuid4().hex}", index.sort: sort})
        await table.write(item)
        wanted = Range(partition=item.item[index.partition], index=name)
        for _ in range(100):
            if await _read(table, wanted):
                break
            await asyncio.sleep(0.05)  # an index may lag behind
        else:
            raise AssertionError(f"The index {name} does not have the item.")


Requirement = Callable[[Table], Awaitable[None]]

CHECKS: Final[Sequence[Requirement]] = (
    refuses_what_dynamodb_refuses,
    adds_to_numbers_alone,
    refuses_ranges_that_dynamodb_refuses,
    names_an_index_that_is_not_there,
    names_each_item_once,
    deletes_any_number,
    ends_a_wait_by_a_write,
    has_the_indexes,
)
"""All checks; each raises AssertionError where the table does something else."""


async def _read(table: Table, wanted: Range) -> list[Any]:
    return [item async for page in table.query(wanted) for item in page]


def _require(holds: object, what: str) -> None:
    if not holds:
        raise AssertionError(f"It does not hold that {what}.")


async def _is_refused(request: Awaitable[object], what: str) -> None:
    try:
        await request
    except RefusedError:
        return
    raise AssertionError(f"This was not refused: {what}.")
