"""Random requests to a table and to its model: for the authors of a table.

    from a2a_serverless_tools.testing.tables import compare

    async def test_my_table_is_like_the_model() -> None:
        await compare(MyTable(INDEXES), seed=1)

The model is `MemoryTable`, which says by `holds` and `changed` what conditions and changes mean.
The table has to have the indexes of `INDEXES`, and may have other items.
"""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

from a2a_serverless.errors import ConditionFailedError, ConfigurationError
from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.layout import BY_DUE, BY_ID, BY_SCOPE, INDEXES
from a2a_serverless.storage.table import (
    Added,
    Check,
    Delete,
    Item,
    Key,
    Operator,
    Put,
    Range,
    RefusedError,
    Table,
    Update,
    When,
    Write,
    are,
    beginning,
    key_of,
)

VALUES: Final = (
    None,
    "",
    "a",
    "b",
    "a#1",
    "é",
    "\U0001f600",
    0,
    1,
    7,
    -3,
    10**15,
    b"",
    b"x",
    b"xy",
)
NAMES: Final = ("v", "w", "token", "state")
OPERATORS: Final[tuple[Operator, ...]] = (*("=", "<>", "<", "<=", ">", ">=", "absent", "present"),)
ORDERED: Final = ("<", "<=", ">", ">=")
GROUP: Final = 6
"""Transactions after which all items are compared."""


@dataclass(slots=True)
class _Compared:
    """How much was compared."""

    written: int = 0
    failed: int = 0
    refused: int = 0
    queries: int = 0


async def compare(
    table: Table,
    *,
    seed: int,
    transactions: int = 300,
    values: Sequence[Any] = VALUES,
    operators: Sequence[Operator] = OPERATORS,
) -> _Compared:
    """Do random transactions and queries on a table and on its model.

    `values` are those of the attributes and `operators` those of conditions; an emulator that is
    wrong about some gets fewer.

    Raises:
        AssertionError: table and model say different things; the message has the request.
    """
    comparison = _Comparison(table, seed, values, operators)
    for number in range(transactions):
        await comparison.write()
        if number % GROUP == GROUP - 1:
            await comparison.query()
    return comparison.compared


class _Comparison:
    """A table, its model, and what is drawn from a seed."""

    def __init__(
        self, table: Table, seed: int, values: Sequence[Any], operators: Sequence[Operator]
    ) -> None:
        self.model = MemoryTable(INDEXES)
        self.compared = _Compared()
        self._table = table
        self._values = values
        self._operators = operators
        self._random = random.Random(seed)  # noqa: S311 - repeatable, guards nothing
        self._mark = uuid.uuid4().hex
        """Tells this comparison's items from others in the table."""

    async def write(self) -> None:
        """Do one random transaction on both."""
        drawn = [self._write() for _ in range(self._random.choice([1, 1, 2, 3]))]
        if self._often(10):
            drawn = [self._risk()]
        writes = list({write.key: write for write in drawn}.values())
        exactly = self._often(20)
        told = await _told(self._table, writes, exactly=exactly)
        expected = await _told(self.model, writes, exactly=exactly)
        _same(told, expected, writes)
        self.compared.written += expected == "written"
        self.compared.refused += expected == "refused"
        self.compared.failed += isinstance(expected, dict)

    async def query(self) -> None:
        """Read what is stored in each way from both."""
        for wanted in self._ranges():
            told, expected = await _found(self._table, wanted), await _found(self.model, wanted)
            _same(told, expected, wanted)
            _same(await self._table.count(wanted), await self.model.count(wanted), wanted)
            self.compared.queries += 1
        for looks, state in product((None, 2), ("", "a")):
            told, expected = [
                await _counted(table, self._live(state), looks)
                for table in (self._table, self.model)
            ]
            _same(told, expected, "counted")
        keys = [self._key() for _ in range(4)]
        for only in ((), ("v", "token")):
            loaded = await self._table.load(set(keys), only=only)
            _same(loaded, await self.model.load(set(keys), only=only), keys)
        made = await self._table.made(_values_of, set(keys))
        _same(sorted(made), sorted(await self.model.made(_values_of, set(keys))), keys)

    def _ranges(self) -> Sequence[Range]:
        first, second = self._partition(0), self._partition(1)
        state = Check("state", self._random.choice(["=", "<>", "absent"]), "a")
        live = Check("expires_at", self._random.choice(["<", "<=", ">", ">="]), 2)
        newest = self._often(50)
        return [
            Range(partition=first, newest_first=newest),
            Range(partition=first, when=[state], only=("v",)),
            Range(partition=second, first="B", when=[live], page=1),
            Range(partition=second, last="B"),
            beginning(first, "HE"),
            Range(partition=f"{self._mark}s1", index=BY_SCOPE, first="2", when=[[state, live]]),
            Range(partition=f"{self._mark}d1", index=BY_DUE, first=0, last=3, newest_first=newest),
        ]

    def _live(self, state: str) -> list[Range]:
        return [
            Range(
                partition=f"{self._mark}{scope}",
                index=BY_SCOPE,
                when=[Check("expires_at", ">", 1), *(are(state=state) if state else ())],
                only=("expires_at", "status_key", "state"),
                newest_first=True,
            )
            for scope in ("s1", "s2")
        ]

    def _partition(self, number: int) -> str:
        return f"P{self._mark}#{number}"

    def _key(self) -> Key:
        draw = self._random
        return Key(
            self._partition(draw.randrange(2)), draw.choice(["A", "B", "HEAD", "Ä", "\uffff"])
        )

    def _item(self) -> Item:
        draw, mark = self._random, self._mark
        item = self._key()._asdict()
        item |= {name: draw.choice(self._values) for name in NAMES if self._often(60)}
        keys: dict[str, Sequence[Any]] = {
            "scope_key": [f"{mark}s1", f"{mark}s2"],
            "status_key": ["1", "2", "3"],
            "due_key": [f"{mark}d1"],
            "due_at": [-1, 1, 2, 3, 4],
            "expires_at": [1, 2, 3],
        }
        return item | {n: draw.choice(v) for n, v in keys.items() if self._often(50)}

    def _check(self) -> Check:
        draw = self._random
        operator = draw.choice(self._operators)
        is_ordered = operator in ORDERED
        values = [v for v in self._values if not is_ordered or isinstance(v, str | int | bytes)]
        return Check(draw.choice([*NAMES, "PK"]), operator, draw.choice(values))

    def _when(self) -> When:
        draw = self._random
        return [
            [self._check(), self._check()] if self._often(30) else self._check()
            for _ in range(draw.choice([0, 0, 1, 2]))
        ]

    def _often(self, percent: int) -> bool:
        return self._random.randrange(100) < percent

    def _risk(self) -> Write:
        """Return a write that is refused if the stored item does not fit it."""
        return Update(key=self._key(), values={"v": Added(1)})

    def _write(self) -> Write:
        draw, item = self._random, self._item()
        match draw.choice(["put", "delete", "update", "update"]):
            case "put":
                return Put(item=item, when=self._when())
            case "delete":
                return Delete(key=key_of(item), when=self._when())
        values = {name: value for name, value in item.items() if name not in ("PK", "SK")}
        if self._often(30):
            values["count"] = Added(draw.randrange(3))
        remove = [n for n in NAMES if n not in values and self._often(40)]
        return Update(key=key_of(item), values=values or {"x": 1}, remove=remove, when=self._when())


def _same(told: Any, expected: Any, request: object) -> None:
    if told != expected:
        raise AssertionError(f"{request}: {told}, and not {expected}")


async def _told(table: Table, writes: Sequence[Write], *, exactly: bool) -> Any:
    """Return what came of a transaction; if conditions failed, the items by place."""
    try:
        await table.write(*writes, exactly=exactly)
    except ConditionFailedError as failed:
        return dict(failed.items)
    except RefusedError:
        return "refused"
    return "written"


async def _found(table: Table, wanted: Range) -> list[Item]:
    """Return the items of a range; those with one sort key of an index in one order."""
    found = [item async for page in table.query(wanted) for item in page]
    if not wanted.index:
        return found
    sort = INDEXES[wanted.index].sort
    return sorted(found, key=lambda item: (item[sort], *key_of(item)), reverse=wanted.newest_first)


def _values_of(item: Item) -> str:
    return repr(sorted(item.items()))


async def _counted(table: Table, ranges: Sequence[Range], looks: int | None) -> Any:
    """Return what a table counts in ranges, without what depends on the order of equal keys."""
    found = await table.counted(ranges, looks=looks, shows=2)
    sort, is_down = INDEXES[ranges[0].index].sort, ranges[0].newest_first
    shown = sorted((item[sort] for item in found.items), reverse=is_down)
    ends = sorted(item[sort] for item in found.ends)
    if looks is None:
        return shown[:2], found.number
    return ends, [place for place in shown if not ends or place > ends[-1]][:2]


_LARGE: Final = 400 * 1024
_LONG_KEY: Final = 1000
_PATIENCE_S: Final = 30


def _place(number: int = 0) -> Key:
    return Key(f"P{uuid.uuid4().hex}", f"S{number}")


def _put(number: int = 0, **values: Any) -> Put:
    """Return a write of an item at a place of its own."""
    return Put(item=_place(number)._asdict() | values)


def _refused_writes() -> dict[str, Sequence[Write]]:
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
    }


async def refuses_what_dynamodb_refuses(table: Table) -> None:
    """Check that a transaction that can never succeed is refused, and nothing of it is stored."""
    for what, writes in _refused_writes().items():
        await _is_refused(table.write(*writes, exactly=True), what)
        whole = [write.key for write in writes if min(map(len, write.key)) > 0]
        short = [key for key in whole[:2] if max(map(len, key)) < _LONG_KEY]
        _require(not any([await table.get(key) for key in short]), f"nothing is stored of {what}")


async def adds_to_numbers_alone(table: Table) -> None:
    """Check that an addition to a text is refused, and the text stays."""
    text = _put(v="text")
    await table.write(text)
    await _is_refused(table.write(Update(key=text.key, values={"v": Added(1)})), "addition")
    _require(await table.get(text.key) == text.item, "a refused addition changes nothing")


async def refuses_ranges_that_dynamodb_refuses(table: Table) -> None:
    """Check that reads of what an index lacks, and of ranges that end too early, are refused."""
    for wanted in (
        Range(partition="P", when=[Check("SK", "=", "A")]),
        Range(partition="P", index=BY_DUE, when=[Check("state", "=", "a")]),
        Range(partition="P", index=BY_ID, only=("state",)),
        Range(partition="P", first="B", last="A"),
        Range(partition="P", when=[Check("v", "<", None)]),
    ):
        await _is_refused(_read(table, wanted), str(wanted))


async def names_an_index_that_is_not_there(table: Table) -> None:
    """Check that one sentence says which index the table lacks."""
    try:
        await table.count(Range(partition="P", index="by-colour"))
    except (ConfigurationError, KeyError) as error:
        _require("by-colour" in str(error), f"the index is named: {error}")
    else:
        raise AssertionError("The index by-colour was not missed.")


async def names_each_item_once(table: Table) -> None:
    """Check that a read refuses a key twice, and with `once` more than 100 keys."""
    place = _place()
    await _is_refused(table.load([place, place]), "a key twice")
    await _is_refused(table.load([_place(n) for n in range(101)], once=True), "101 keys")


async def deletes_any_number(table: Table) -> None:
    """Check that more items than a transaction takes are deleted, and absent ones passed over."""
    writes = [_put(n) for n in range(30)]
    for write in writes:
        await table.write(write)
    keys = [write.key for write in writes]
    await table.delete([*keys, _place()])
    _require(set((await table.load(keys)).values()) == {None}, "all are deleted")


async def ends_a_wait_by_a_write(table: Table) -> None:
    """Check that a watch of a partition notices each kind of write to it, if the table wakes."""
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
    """Check that each index of the layout has an item with both of its keys."""
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
