"""Changes that race with others, the secret of waits, and what counts in memory."""

from __future__ import annotations

from unittest import mock

import pytest

from a2a_serverless.errors import UnavailableError
from a2a_serverless.storage import allowance, changes, signals
from a2a_serverless.storage.allowance import Allowance, Sleepers
from a2a_serverless.storage.dictionaries import MemoryTable
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.storage.table import Key, Put, RefusedError, Update, are
from tests.support.clocks import ManualClock
from tests.support.databases import Dictionaries


@pytest.fixture
def table() -> MemoryTable:
    return MemoryTable(INDEXES)


async def test_a_change_that_always_loses_ends(table: MemoryTable, clock: ManualClock) -> None:
    """It waits after each few losses, and says in the end what others have changed."""
    key = Key("A", "B")
    await table.write(Put(item=key._asdict()))
    lost = changes.Change(
        "before",
        lambda now: f"{now}, after",
        lambda _, after: Update(key=key, values={"said": after}, when=are(said="of nobody")),
        lambda _: "of others",
    )
    began = clock.monotonic()
    with pytest.raises(UnavailableError, match=f"have changed A {changes.MOST_TRIES} times"):
        await changes.change(table, clock, lost)
    assert clock.monotonic() > began
    assert not lost.is_stored


async def test_a_value_that_no_table_keeps_is_refused(table: MemoryTable) -> None:
    """Before anything is written."""
    with pytest.raises(RefusedError, match="no value of type float"):
        await table.write(Put(item={"PK": "A", "SK": "B", "share": 0.5}))
    assert await table.get(Key("A", "B")) is None


async def test_the_secret_of_waits_is_made_once(table: MemoryTable) -> None:
    """Other processes read it; one that is deleted while it is made is no secret."""
    made = await signals.wait_secret(table)
    signals._SECRETS.clear()
    with mock.patch.object(table, "did", side_effect=AssertionError):
        assert await signals.wait_secret(table) == made
    other = MemoryTable(INDEXES)
    with (
        mock.patch.object(other, "did", return_value=False),
        pytest.raises(UnavailableError, match="was deleted while it was made"),
    ):
        await signals.wait_secret(other)


async def test_many_callers_are_forgotten(
    clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is known of them is bounded, and each is counted anew."""
    monkeypatch.setattr(allowance, "_MOST_CALLERS", 2)
    few = mock.AsyncMock(return_value=0)
    bound = Allowance(1000)
    assert all([await bound.admits(caller, 0, few) for caller in "abcab"])
    assert (len(bound._left) <= 2, few.await_count) == (True, 5)
    sleepers = Sleepers(Dictionaries(clock).storage(), 2)
    monkeypatch.setattr(Sleepers, "count", mock.AsyncMock(return_value=9))
    for caller in "abc":
        await sleepers.note(caller)
    assert [*sleepers._watched] == ["c"]
