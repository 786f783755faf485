"""An operator who ends a task's wait for a callback."""

from __future__ import annotations

from typing import Any

import pytest

from a2a_serverless import errors
from a2a_serverless.tasks.waits import MAX_SIGNAL_BYTES
from a2a_serverless.worker import Posted, TaskContext
from a2a_serverless_tools.operate.acts import Acts
from a2a_serverless_tools.operate.inspector import Inspector
from a2a_serverless_tools.operate.journal import newest
from tests.support.workers import S
from tests.unit.worker.test_steps import Handle, Stand

REFUSED = errors.UnsupportedOperationError


class Desk:
    """An operator, and the worker of an agent that waits for what is posted to callbacks."""

    def __init__(self, handle: Handle | None = None) -> None:
        self.posted: list[Posted] = []
        self.stand = Stand(handle or self._handle, public_url="https://agent.example")
        bench = self.stand.bench
        place: Any = {"place": "the table", "backends": bench.backends}
        self.acts = Acts(Inspector(bench.storage, bench.settings, **place), by="pat")

    async def _handle(self, ctx: TaskContext) -> None:
        await (await ctx.callback("asked")).wait(timeout_s=600)
        callbacks = [await ctx.callback("paid", key=key) for key in ("a", "b")]
        waits = [each.wait(timeout_s=600) for each in callbacks]
        self.posted += await ctx.gather(*waits)
        await ctx.complete()

    async def begin(self) -> None:
        await self.stand.send()
        await self.stand.work()

    async def signal(self, name: str, body: bytes, *, key: str = "", is_dry: bool = False) -> str:
        task = self.stand.task
        return await self.acts.signal(task.task_id, task.scope, name, body, key=key, is_dry=is_dry)

    async def journal(self) -> list[tuple[str, str, str]]:
        entries = await newest(self.stand.bench.storage, limit=10)
        return [(each.by, each.which, each.outcome) for each in entries]


async def test_an_operator_ends_the_waits_of_callbacks() -> None:
    """By name and key; the agent hears who it was, and the journal has what was done."""
    desk = Desk()
    await desk.begin()
    assert await desk.signal("asked", b"1") == "Its wait for the callback asked is over."
    await desk.stand.work()
    await desk.signal("paid", b'{"amount": 7}', key="b")
    await desk.signal("paid", b"[]", key="a")
    head = await desk.stand.work()
    assert head.state == S.TASK_STATE_COMPLETED
    assert [(each.data, each.by) for each in desk.posted] == [([], "pat"), ({"amount": 7}, "pat")]
    names = [f"callback {which}" for which in ("asked", "paid [a]", "paid [b]")]
    over = [("pat", name, f"Its wait for the {name} is over.") for name in names]
    assert sorted(await desk.journal()) == over


async def test_a_wait_that_is_not_open_is_refused() -> None:
    """The sentence says which waits are open; nothing is changed, and nothing is noted."""
    desk = Desk()
    await desk.begin()
    open_waits = r"^It does not wait for the callback paid \[a\], but for callback asked until \S+$"
    with pytest.raises(REFUSED, match=open_waits):
        await desk.signal("paid", b"1", key="a")
    with pytest.raises(errors.InvalidArgumentError, match=r"longer than 262,144 bytes"):
        await desk.signal("asked", b"1" * (MAX_SIGNAL_BYTES + 1))
    before = await desk.stand.head()
    assert await desk.signal("asked", b"1", is_dry=True) == "It can be done."
    assert (await desk.stand.head(), await desk.journal()) == (before, [])


async def test_what_waits_for_no_callback_is_refused() -> None:
    """A task that has ended, one that only sleeps, and one that is gone."""

    async def sleeps(ctx: TaskContext) -> None:
        await ctx.sleep(600)
        await ctx.complete()

    desk = Desk(sleeps)
    await desk.begin()
    with pytest.raises(REFUSED, match=r"^It waits for no callback\.$"):
        await desk.signal("asked", b"1")
    await desk.stand.pass_time(601)
    head = await desk.stand.work()
    assert head.is_terminal
    with pytest.raises(REFUSED, match=r"^It waits for no callback\.$"):
        await desk.signal("asked", b"1")
    with pytest.raises(errors.TaskNotFoundError):
        await desk.acts.signal("other", head.scope, "asked", b"1")


async def test_of_two_answers_at_once_the_first_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator hears that another one was faster, and so does the journal."""
    desk = Desk()
    await desk.begin()
    begin = (await desk.acts.journal()).begin

    async def beaten(act: str, **about: str) -> object:
        entry = await begin(act, **about)
        monkeypatch.undo()
        await desk.signal("asked", b"1")
        return entry

    monkeypatch.setattr(await desk.acts.journal(), "begin", beaten)
    with pytest.raises(REFUSED, match="has ended meanwhile"):
        await desk.signal("asked", b"2")
    outcomes = sorted(outcome[:9] for _, _, outcome in await desk.journal())
    assert outcomes == ["Its wait ", "not done:"]
