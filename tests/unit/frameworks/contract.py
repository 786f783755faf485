"""What each adapter passes on to its framework, and what its tools know of their task.

An adapter's test makes its agents as for `files`. `Made(seen, work=work, text=text)` makes one
whose tool "tool" awaits `work(value)`, with the value of the option `given` as the framework hands
it to tools; the model answers `text`, by default "seen". With `end="cut"` its limit cuts the
answer, and with `end="refused"` its service refuses without a word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, Final
from unittest import TestCase

from a2a.types import Part, Task
from google.protobuf.json_format import MessageToDict

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.frameworks.adapter import TOO_LONG
from a2a_serverless.tasks.entries import StatusChanged
from a2a_serverless.tasks.usage import Usage, total
from a2a_serverless.worker import TaskContext, current_context
from a2a_serverless.worker.sweeper import Sweeper
from tests.support import pages
from tests.support.workers import PacedClock, S, status_text
from tests.unit.frameworks import talks
from tests.unit.frameworks.files import PICTURE, Made, completed, raw
from tests.unit.frameworks.talks import Talk, answered, killed_everywhere

HIGH, LOW = "\ud83d", "\ude00"
"""The halves of the surrogate pair of 😀."""
TABLE = pages.part("build").partition("\n## Options\n")[2].partition("\n## ")[0]


def refused(make: Callable[[], Any]) -> str:
    """The sentence with which an adapter refuses to be made."""
    try:
        make()
    except ConfigurationError as error:
        return str(error)
    raise AssertionError("It is not refused.")


async def said_to(ctx: TaskContext) -> dict[str, str]:
    return {"said": ctx.user_text}


async def answers(talk: Talk, texts: Iterable[str]) -> list[Any]:
    """What tasks of one context are answered that begin with these texts."""
    return [answered((await talk.say(text))[1]) for text in texts]


def statuses(task: Task) -> list[str]:
    """The texts of the statuses before the last one."""
    told = [message for message in task.history if message.role != task.history[0].role]
    return [message.parts[0].text for message in told if message.parts]


async def check_the_table(made: Made, given: str) -> None:
    """The row in the page `frameworks` has each parameter of the framework's newest functions."""
    agent: Any = made([])
    passed = agent.passed
    (row,) = re.findall(rf"^\| `{passed.adapter}` \| .*$", TABLE, flags=re.MULTILINE)
    *_, names, own, _ = row.split("|")
    assert re.findall(r"`(\w+)`", names) == passed.names, passed.names
    assert {*re.findall(r"`(\w+)`", own)} == passed.own & passed.parameters, passed.own
    assert given in passed.names


async def check_an_option_that_does_not_exist(made: Made, given: str) -> None:
    """One sentence names it, and those that there are; it comes when the adapter is made."""
    agent: Any = made([])
    passed = agent.passed
    takes = f": it passes on {', '.join(passed.names)}."
    assert given in takes
    told = refused(lambda: made([], no_such=1))
    assert told == f"{passed.adapter} has no option 'no_such'{takes}", told
    own = max(passed.own)
    assert refused(lambda: made([], **{own: 1})) == f"{passed.adapter} gives {own!r} itself{takes}"
    told = refused(lambda: made([], show_tools=True, steps=False))
    assert "leave `steps=False` or `show_tools=True` out" in told, told


async def check_a_tool_knows_its_task(made: Made, given: str) -> None:
    """It gets this turn's value of the option, and what it says is said once, whatever dies."""

    async def play(calls: list[str], **options: Any) -> list[Any]:
        async def work(value: Any) -> None:
            ctx = current_context()
            await ctx.progress(1, 2, "Half way.")
            text = f"{value['said']} {len(ctx.files)} {ctx.user}"
            await ctx.emit_text_artifact(text, "of the tool", append=True)

        agent = made([], calls=calls, work=work, **{given: said_to}, **options)
        talk = Talk(agent, max_attempts=3)
        task = completed(await talk.show(Part(text="tool"), raw(PICTURE, "image/png")))
        (said,) = [each for each in task.artifacts if each.artifact_id == "of the tool"]
        return [
            "".join(part.text for part in said.parts),
            statuses(task).count("Half way."),
            dict(task.metadata)["progress"],
        ]

    assert await killed_everywhere(play)
    for options in ({}, {"steps": False}):
        assert (await play([], **options))[:2] == ["tool 1 ", 1], options


async def check_tool_calls_are_shown(made: Made, given: str) -> None:
    """With the switch alone: a status as it begins and one as it ends, with its arguments."""

    async def shown(calls: list[str], **options: Any) -> list[Any]:
        talk = Talk(made([], calls=calls, **options), max_attempts=3)
        head, task = await talk.say("tool")
        completed(task)
        written = await talk.entries(head, StatusChanged)
        told = [entry.metadata for entry in written if entry.metadata]
        ends = [MessageToDict(each)["tool"] for each in told if "tool" in each]
        return [statuses(task), ends[-2:]]

    async def play(calls: list[str]) -> list[Any]:
        texts, ends = await shown(calls, show_tools=True)
        (name,) = {each["name"] for each in ends}
        assert texts.count(f"Calls {name}.") == 1, texts
        assert len({each["call"] for each in ends}) == 1, ends
        assert ends[0]["arguments"] == {}, ends
        return [each["state"] for each in ends]

    assert await killed_everywhere(play)
    assert await play([]) == ["called", "returned"]
    texts, ends = await shown([])
    assert not [text for text in texts if text.startswith("Calls ")] + ends, (texts, ends)


class BusyError(Exception):
    status_code = 429


async def check_a_model_that_is_away(made: Made, given: str) -> None:
    """It is waited for, however the framework wraps what its client has raised."""
    for error, what in ((ConnectionError("refused"), "no connection"), (BusyError(), "HTTP 429")):
        talks.waits(await Talk(made([], error=error), max_attempts=3).told("go"), what)


async def check_an_empty_answer(made: Made, given: str) -> None:
    """The task completes as before; the log names the line to write. An answer warns of nothing."""
    log = "a2a_serverless.frameworks.adapter", "WARNING"
    with TestCase().assertLogs(*log) as logged:
        _, task = await Talk(made([], text="")).say("hello")
    assert task.status.state == S.TASK_STATE_COMPLETED, task.status
    (told,) = logged.output
    assert "without an answer: " in told, told
    assert logged.records[0].__dict__["action"] == "empty_answer"
    with TestCase().assertNoLogs(*log):
        completed((await Talk(made([], **{given: said_to})).say("hello"))[1])


async def check_tokens_are_counted(made: Made, given: str) -> None:
    """Those of each call of the model, once, however often the turn's code runs again."""

    async def play(calls: list[str], **options: Any) -> Usage:
        talk = Talk(made([], calls=calls, **{given: said_to}, **options), max_attempts=3)
        head, task = await talk.say("tool")
        completed(task)
        used = total((await talk.bench.head(head)).usage)
        asked = sum(call.startswith("request") for call in calls)
        assert used == Usage("", asked, 10 * asked, 2 * asked, 4 * asked), (used, calls)
        return Usage("", calls=0)

    assert await killed_everywhere(play)
    await play([], steps=False)


async def check_a_tool_may_sleep(made: Made, given: str) -> None:
    """Without steps its turn leaves the process there, which is no error of the tool."""
    heard: list[str] = []

    async def work(value: Any) -> None:
        try:
            await current_context().sleep(3600)
        except BaseException as error:
            heard.append(type(error).__name__)
            raise

    clock, agent = PacedClock(), made([], work=work, steps=False, **{given: said_to})
    talk = Talk(agent, clock=clock, visibility_s=5400)
    with TestCase().assertNoLogs("a2a_serverless", "WARNING"), talks.nothing_is_reported():
        head, _ = await talk.say("tool")
    assert ((await talk.bench.head(head)).turn.parked, heard) == ("asleep", ["TurnParked"])
    await clock.pass_time(3600)
    await Sweeper(talk.bench.storage, talk.bench.operations, clock=clock).sweep()
    await talk.bench.work()
    completed(await talk.bench.task(head))


async def check_a_budget_ends_the_turn(made: Made, given: str) -> None:
    """Before the model's next call; the client reads why, and the task is not started again."""
    calls: list[str] = []
    talk = Talk(made([], calls=calls, **{given: said_to}), max_attempts=3, task_tokens=12)
    head, task = await talk.say("tool")
    assert task.status.state == S.TASK_STATE_FAILED, task.status
    told = "The budget of this task is used up: 12 of 12 tokens."
    assert status_text(task).startswith(told), task.status
    assert sum(call.startswith("request") for call in calls) == 1, calls
    assert total((await talk.bench.head(head)).usage).tokens == 12


async def check_halves_of_characters(made: Made, given: str) -> None:
    """They are joined, or replaced, in the answer and in what the next request has."""
    text, expected = f"{LOW}a{HIGH}{LOW}b{HIGH}", "\ufffda😀b\ufffd"
    for options in ({}, {"steps": False}):
        talk = Talk(made([], text=text, **{given: said_to}, **options))
        for said in ("hello", "tool"):
            task = completed((await talk.say(said))[1])
            assert expected in "".join(part.text for a in task.artifacts for part in a.parts)


async def check_a_refusal_ends_the_task(made: Made, given: str) -> None:
    """At once, and the client reads that the model has refused; also of an answer that is cut."""
    told = {"refused": "The agent's model has refused this", "cut": TOO_LONG}
    states = {"refused": S.TASK_STATE_REJECTED, "cut": S.TASK_STATE_FAILED}
    for end, text in told.items():
        for options in ({}, {"steps": False}):
            calls: list[str] = []
            agent = made([], calls=calls, end=end, **{given: said_to}, **options)
            _, task = await Talk(agent, max_attempts=3).say("hello")
            assert task.status.state == states[end], task.status
            assert status_text(task).startswith(text), task.status
            assert len(calls) == 1, calls
            said = [part.text for artifact in task.artifacts for part in artifact.parts]
            assert "".join(said) == ("seen" if end == "cut" else ""), said


CHECKS: Final = tuple(each for name, each in list(globals().items()) if name.startswith("check_"))
"""What holds for each adapter."""
