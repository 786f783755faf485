"""Every table does what its model does: dictionaries, a file, DynamoDB."""

from __future__ import annotations

import asyncio
from typing import Final

import pytest

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.layout import BY_DUE, BY_ID, INDEXES
from a2a_serverless.storage.table import (
    Added,
    Check,
    CopyOf,
    Delete,
    Key,
    Matches,
    Operator,
    Put,
    Range,
    RefusedError,
    Table,
    Update,
    Write,
)
from a2a_serverless_tools.testing.tables import VALUES, compare
from tests.support.clocks import ManualClock
from tests.support.databases import LOCAL, LONG, moto_database, new_scope

TRANSACTIONS = 3000 if LONG else 150
PLACE = Key("P", "A")
EQUAL: Final[tuple[Operator, ...]] = ("=", "<>", "absent", "present")
TEXTS = [value for value in VALUES if isinstance(value, str)]


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("backend", ["file", LOCAL], indirect=True)
async def test_random_transactions_do_the_same(backend: Table, seed: int) -> None:
    """What is written, refused and found is the same, item by item."""
    compared = await compare(backend, seed=seed, transactions=TRANSACTIONS)
    assert min(compared.written, compared.failed, compared.queries) > TRANSACTIONS // 10
    assert compared.refused


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_random_transactions_of_texts_do_the_same_on_moto(
    seed: int, clock: ManualClock
) -> None:
    """It is so on moto, as far as it compares: without an order, and values of one type."""
    with moto_database() as moto:
        table = moto.opened(clock=clock)
        await compare(table, seed=seed, transactions=TRANSACTIONS, values=TEXTS, operators=EQUAL)


async def test_a_difference_is_told() -> None:
    """The comparison fails for a table that does one thing of its own."""

    class Forgetful(MemoryTable):
        async def count(self, wanted: Range) -> Matches:
            return (await super().count(wanted))._replace(passed=0)

    with pytest.raises(AssertionError, match="passed=0"):
        await compare(Forgetful(INDEXES), seed=1)


def place(number: int = 0) -> Key:
    """A place that no other test has."""
    return Key(f"P{new_scope().digest}", f"S{number}")


def written(number: int = 0, **values: object) -> Put:
    """A write of an item at a place of its own."""
    return Put(item=place(number)._asdict() | values)


TWICE = place()
LARGE = 400 * 1024
LONG_KEY = 1000


@pytest.mark.parametrize(
    "writes",
    [
        pytest.param([Delete(key=TWICE), Put(item=TWICE._asdict())], id="one item twice"),
        pytest.param([written(n) for n in range(101)], id="101 writes"),
        pytest.param([written(v="x" * LARGE)], id="an item of more than 400 KB"),
        pytest.param(
            [written(n, v="x" * 390_000) for n in range(11)], id="a transaction of more than 4 MB"
        ),
        pytest.param([Put(item={"PK": "", "SK": "A"})], id="an empty PK"),
        pytest.param([Put(item={"PK": "P", "SK": ""})], id="an empty SK"),
        pytest.param([Put(item={"PK": "P" * 2049, "SK": "A"})], id="a long PK"),
        pytest.param([Put(item={"PK": "P", "SK": "A" * 1025})], id="a long SK"),
        pytest.param([written(scope_key="", status_key="1")], id="an empty key of an index"),
        pytest.param([written(scope_key=None, status_key="1")], id="no key of an index"),
        pytest.param([Update(key=PLACE, values={"PK": "Q"})], id="a change of a key"),
        pytest.param([Update(key=PLACE, values={"v": 1}, remove=["v"])], id="an attribute twice"),
        pytest.param(
            [Put(item=PLACE._asdict(), when=[Check("v", "<", None)])], id="an order of None"
        ),
        pytest.param([Update(key=place(), values={"v": CopyOf("w")})], id="a copy of nothing"),
    ],
)
async def test_what_dynamodb_refuses_is_refused(backend: Table, writes: list[Write]) -> None:
    """A transaction that can never succeed is refused, and nothing of it is stored."""
    with pytest.raises(RefusedError):
        await backend.write(*writes, exactly=True)
    whole = [write.key for write in writes if min(map(len, write.key)) > 0]
    stored = [await backend.get(key) for key in whole[:2] if max(map(len, key)) < LONG_KEY]
    assert set(stored) <= {None}


async def test_only_numbers_are_added_to(backend: Table) -> None:
    """An addition to a text is refused, and the text stays."""
    text = written(v="text")
    await backend.write(text)
    with pytest.raises(RefusedError):
        await backend.write(Update(key=text.key, values={"v": Added(1)}))
    assert await backend.get(text.key) == text.item


@pytest.mark.parametrize(
    "wanted",
    [
        Range(partition="P", when=[Check("SK", "=", "A")]),
        Range(partition="P", index=BY_DUE, when=[Check("state", "=", "a")]),
        Range(partition="P", index=BY_ID, only=("state",)),
        Range(partition="P", first="B", last="A"),
        Range(partition="P", when=[Check("v", "<", None)]),
    ],
    ids=["filter by a key", "filter", "projection", "bounds", "an order of None"],
)
async def test_a_range_that_dynamodb_refuses_is_refused(backend: Table, wanted: Range) -> None:
    """An index is asked for no more than it projects, and a range begins before it ends."""
    with pytest.raises(RefusedError):
        async for _ in backend.query(wanted):
            pass


async def test_an_index_that_is_not_there_is_named(backend: Table) -> None:
    """One sentence says which index the table lacks."""
    with pytest.raises((ConfigurationError, KeyError), match="by-colour"):
        await backend.count(Range(partition="P", index="by-colour"))


async def test_a_request_names_each_item_once(backend: Table) -> None:
    """Two keys of one item are refused, and so are more than 100 that are asked for once."""
    with pytest.raises(RefusedError):
        await backend.load([PLACE, PLACE])
    with pytest.raises(RefusedError):
        await backend.load([place(n) for n in range(101)], once=True)


async def test_deletions_are_of_any_number(backend: Table) -> None:
    """More items than one transaction takes are deleted, and what is not there is passed over."""
    writes = [written(n) for n in range(30)]
    for write in writes:
        await backend.write(write)
    keys = [write.key for write in writes]
    await backend.delete([*keys, place()])
    assert set((await backend.load(keys)).values()) == {None}


@pytest.mark.parametrize("backend", ["memory", "file"], indirect=True)
async def test_a_write_ends_the_wait_for_its_partition(backend: Table) -> None:
    """A watch of a partition notices each kind of write to it, and no write to another one."""
    mine = written(v=1)
    changes: list[Write] = [mine, Update(key=mine.key, values={"v": 2}), Delete(key=mine.key)]
    for change in changes:
        with backend.watch(mine.key.PK) as watch:
            waiting = asyncio.create_task(watch.wait(60))
            await backend.write(written())
            await asyncio.sleep(0.05)
            assert not waiting.done()
            await backend.write(change)
            async with asyncio.timeout(30):
                await waiting
    with backend.watch(mine.key.PK) as watch:
        await backend.write(mine)
        async with asyncio.timeout(30):
            await watch.wait(60)
        await asyncio.wait_for(watch.wait(0), 30)
