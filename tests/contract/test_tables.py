"""Every table does what its model does: dictionaries, a file, DynamoDB."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Final

import pytest

from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.storage.table import Key, Operator, Put, Range, Table, Write
from a2a_serverless_tools.testing import tables
from tests.support.clocks import ManualClock
from tests.support.databases import LOCAL, LONG, moto_database

TRANSACTIONS = 3000 if LONG else 150
ON_MOTO_TOO = 3000 if LONG else 50
"""moto is slower the more it stores."""
PLACE = Key("P", "A")
EQUAL: Final[tuple[Operator, ...]] = ("=", "<>", "absent", "present")
ON_MOTO = [value for value in tables.VALUES if value is not None]
LENIENT: Final[Mapping[tables.Requirement, str]] = {
    tables.refuses_what_dynamodb_refuses: "takes transactions of more than 4 MB, and NULL as a key",
    tables.refuses_ranges_that_dynamodb_refuses: "takes a filter on a key, and an order of NULL",
}
"""The checks that say something else on moto than on DynamoDB, and what moto does."""


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("backend", ["file", LOCAL], indirect=True)
async def test_random_transactions_do_the_same(backend: Table, seed: int) -> None:
    """What is written, refused and found is the same, item by item."""
    compared = await tables.compare(backend, seed=seed, transactions=TRANSACTIONS)
    assert min(compared.written, compared.failed, compared.queries) > TRANSACTIONS // 10
    assert compared.refused


@pytest.mark.parametrize("seed", [1, 2, 3] if LONG else [1])
async def test_random_transactions_do_the_same_on_moto(seed: int, clock: ManualClock) -> None:
    """It is so on moto, as far as it compares: without an order, and without NULL."""
    with moto_database() as moto:
        table = moto.opened(clock=clock)
        await tables.compare(
            table, seed=seed, transactions=ON_MOTO_TOO, values=ON_MOTO, operators=EQUAL
        )


async def test_a_difference_is_told() -> None:
    """The comparison, and the checks, fail for a table that does one thing of its own."""

    class Forgetful(MemoryTable):
        async def count(self, wanted: Range) -> int:
            del wanted
            return 0

    class Careless(MemoryTable):
        async def write(self, *writes: Write, exactly: bool = False) -> None:
            del writes, exactly

    with pytest.raises(AssertionError, match=": 0, and not"):
        await tables.compare(Forgetful(INDEXES), seed=1)
    for check in (tables.refuses_what_dynamodb_refuses, tables.adds_to_numbers_alone):
        with pytest.raises(AssertionError):
            await check(Careless(INDEXES))


@pytest.mark.parametrize("check", tables.CHECKS, ids=lambda check: check.__name__)
async def test_every_table_keeps_the_contract(backend: Table, check: tables.Requirement) -> None:
    """The checks for authors of tables pass on ours."""
    await check(backend)


@pytest.mark.parametrize("check", tables.CHECKS, ids=lambda check: check.__name__)
async def test_moto_keeps_the_contract(check: tables.Requirement, clock: ManualClock) -> None:
    """The checks pass on moto, which needs no emulator, but for what it is told of."""
    allowed = pytest.raises(AssertionError) if check in LENIENT else nullcontext()
    with moto_database() as moto, allowed:
        await check(moto.opened(clock=clock))


@pytest.mark.parametrize("backend", ["memory", "file"], indirect=True)
async def test_a_watch_does_not_notice_other_partitions(backend: Table) -> None:
    """A write to another partition ends no wait."""
    with backend.watch("P") as watch:
        waiting = asyncio.create_task(watch.wait(60))
        await backend.write(Put(item={"PK": "Q", "SK": "A"}))
        await asyncio.sleep(0.05)
        assert not waiting.done()
        await backend.write(Put(item={"PK": "P", "SK": "A"}))
        async with asyncio.timeout(30):
            await waiting
