"""The testing kit's kill behind each record: it finds what a kill, or newer code, changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any

import pytest

from a2a_serverless.worker import TaskContext, Worker
from a2a_serverless_tools.testing import AgentBench
from a2a_serverless_tools.testing.fixtures import MakeBench


class Payer(Worker):
    """Reads, asks, and pays; notes in `ran` which steps have run."""

    question = "From which account?"

    def __init__(self, ran: list[str]) -> None:
        self.ran = ran

    def run(self, name: str) -> str:
        self.ran.append(name)
        return name

    async def handle(self, ctx: TaskContext) -> None:
        await ctx.step("read", self.run, "read")
        account = await ctx.ask(self.question, id="account")
        await ctx.step("pay", self.run, f"pay {account.text}")
        await ctx.emit_text_artifact("Paid", "receipt")
        await ctx.step("file", self.run, "file")
        await ctx.complete("Done")


class Newer(Payer):
    """The next release: another wording, a step more in front, and a question behind."""

    question = "Which account?"

    async def handle(self, ctx: TaskContext) -> None:
        await ctx.step("look", self.run, "look")
        await super().handle(ctx)


class Forgetful(Payer):
    """A release that no longer asks."""

    async def handle(self, ctx: TaskContext) -> None:
        await ctx.step("read", self.run, "read")
        await ctx.complete("Done")


def test_a_conversation_that_bears_kills(agent_bench: MakeBench) -> None:
    """The last turn comes back; behind each record there was a kill, and no step has run twice."""
    ran: list[str] = []
    run = agent_bench(lambda: Payer(ran)).kill_everywhere(["An invoice", {"account": "b"}])
    assert (run.state, run.artifacts["final-answer"].text) == ("completed", "Done")
    plays = 2 + len(["read", "ctx.ask", "pay", "file"])
    assert Counter(ran) == dict.fromkeys(["read", "pay b", "file"], plays)


def test_each_play_has_the_other_agents(agent_bench: MakeBench) -> None:
    """What the bench was given in the place of a called agent stands in for it in each play."""

    class Shop(Worker):
        async def handle(self, ctx: TaskContext) -> None:
            await ctx.complete((await ctx.call_agent("books", ctx.user_text)).text)

    bench = agent_bench(Shop, agents={"books": lambda said: f"a book on {said.text}"})
    assert bench.kill_everywhere(["tea"]).artifacts["final-answer"].text == "a book on tea"


def differs(play: Callable[[AgentBench], Any], handle: Callable[[], str], bench: MakeBench) -> str:
    """The sentence with which a worker's conversation differs."""

    class Made(Worker):
        async def handle(self, ctx: TaskContext) -> None:
            text = handle()
            await ctx.step("plan", len, "a")
            await ctx.complete(text)

    with pytest.raises(AssertionError) as found:
        bench(Made).kill_everywhere(play)
    return str(found.value)


def test_what_a_kill_changes_is_named(agent_bench: MakeBench) -> None:
    """The record, the turn, and what is different: here what the agent counts outside of steps.

    What differs without a kill is no kill's fault, and the sentence says so.
    """
    starts: list[str] = []

    def play(bench: AgentBench) -> None:
        starts.clear()
        bench.send("Plan")

    def handle() -> str:
        starts.append("start")
        return str(len(starts))

    assert differs(play, handle, agent_bench) == (
        "With a kill behind record 1 of 'plan' in turn 1, turn 1 ('Plan') has another content of"
        " artifacts: [('2', [], [])] instead of [('1', [], [])]."
    )
    numbers = map(str, count())
    told = differs(lambda bench: bench.send("Plan"), numbers.__next__, agent_bench)
    assert told.startswith("Played twice without a kill, turn 1 ('Plan') has another content"), told


def test_newer_code_goes_on_behind_each_record(agent_bench: MakeBench) -> None:
    """More steps and questions are no fault; a question that is not asked any more is."""
    ran: list[str] = []
    bench = agent_bench(lambda: Payer(ran))
    bench.kill_everywhere(["An invoice", "b"], newer=lambda: Newer(ran))
    with pytest.raises(AssertionError) as found:
        bench.kill_everywhere(["An invoice", "b"], newer=lambda: Forgetful(ran))
    told = str(found.value)
    assert "and the newer agent from there on, turn 2 ('b') fails: " in told
    assert "not asked the question 'account', which its client has answered" in told


def test_a_conversation_without_records_is_refused(agent_bench: MakeBench) -> None:
    """Nothing would be shown by it; and a dict opens no task."""

    class Echo(Worker):
        async def handle(self, ctx: TaskContext) -> None:
            await ctx.complete(ctx.user_text)

    with pytest.raises(ValueError, match="no records behind which to kill"):
        agent_bench(Echo).kill_everywhere(["hello"])
    with pytest.raises(TypeError, match="opens its task"):
        agent_bench(Echo).kill_everywhere([{"a": "b"}])
