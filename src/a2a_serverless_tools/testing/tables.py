"""Random requests to a table and to its model: for the authors of a table.

    from a2a_serverless_tools.testing.tables import compare

    async def test_my_table_is_like_the_model() -> None:
        await compare(MyTable(INDEXES), seed=1)

The model is `MemoryTable`, which says by `holds` and `changed` what conditions and changes mean.
The table has to have the indexes of `INDEXES`, and may have other items.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from a2a_serverless.errors import ConditionFailedError
from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.layout import BY_DUE, BY_SCOPE, INDEXES
from a2a_serverless.storage.table import (
    Added,
    Check,
    CopyOf,
    Delete,
    Item,
    Kept,
    Key,
    Operator,
    Put,
    Range,
    RefusedError,
    Table,
    Update,
    When,
    Write,
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
OPERATORS: Final[tuple[Operator, ...]] = ("=", "<>", "<", "<=", ">", ">=", "absent", "present")
GROUP: Final = 6
"""Transactions after which all items are compared."""


@dataclass(slots=True)
class Compared:
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
) -> Compared:
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
        self.compared = Compared()
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
        keys = [self._key() for _ in range(4)]
        for only in ((), ("v", "token")):
            loaded = await self._table.load(set(keys), only=only)
            _same(loaded, await self.model.load(set(keys), only=only), keys)

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
        values = [v for v in self._values if v is not None or operator in ("=", "<>")]
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
        new = self._random.choice([CopyOf("token"), Added(1)])
        return Update(key=self._key(), values={"v": new})

    def _write(self) -> Write:
        draw, item = self._random, self._item()
        match draw.choice(["put", "delete", "update", "update"]):
            case "put":
                return Put(item=item, when=self._when())
            case "delete":
                return Delete(key=key_of(item), when=self._when())
        values = {name: value for name, value in item.items() if name not in ("PK", "SK")}
        for name in values.keys() & set(NAMES):
            if self._often(25):
                values[name] = Kept(values[name])
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
