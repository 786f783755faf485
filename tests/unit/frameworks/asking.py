"""What holds of each adapter's question in the middle of five steps, once it is answered.

`make(calls, release, *names)` makes an agent of a release that asks its model, looks, asks its
model again, deletes what has `names`, and asks its model for the answer. It notes in `calls` what
it pays for: "model 1" with the number of the release, "look", "delete a". It asks its client before
it deletes. In the second release prompt and tool of the look have other texts and names.

`say(task, *consents)` makes an answer to the questions of a task: by default a text.
"""

# ruff: noqa: FBT003 - a consent is its answer

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from a2a.server.agent_execution import AgentExecutor
from a2a.types import Task

from a2a_serverless.worker import Worker
from tests.support.workers import S, user_request
from tests.unit.frameworks.files import raw
from tests.unit.frameworks.talks import Talk, answered, killed_everywhere, question

Make = Callable[..., Worker | AgentExecutor]
Say = Callable[..., Any]


def plainly(_: Task, first: bool, *_others: bool) -> str:  # noqa: FBT001 - a consent
    """Answer the first of several questions by a text: the others are asked later."""
    return "yes" if first else "no"


def waits_for_its_client(task: Task) -> bool:
    return bool(task.status.state == S.TASK_STATE_INPUT_REQUIRED)


async def check_five_steps_run_once(make: Make, say: Say) -> None:
    """Killed anywhere, and answered on newer code: each step once, and the newer prompt behind."""
    calls: list[str] = []

    async def play(paid: list[str]) -> Any:
        talk = Talk(make(paid, 1, "a"), max_attempts=3)
        head, task = await talk.say("go")
        assert waits_for_its_client(task), task.status
        talk.become(make(paid, 2, "a"))
        done = answered(await talk.answer(head, say(task, True)))
        calls[:] = paid
        return done

    await play([])
    assert calls == ["model 1", "look", "model 1", "delete a", "model 2"], calls
    recorded = await killed_everywhere(play, all_paid=False)  # a node that asks has a record, too
    assert len(recorded) in (5, 6), recorded


async def check_a_refusal(make: Make, say: Say) -> None:
    """What was refused is not done, and the agent goes on."""
    calls: list[str] = []
    talk = Talk(make(calls, 1, "a"))
    head, task = await talk.say("go")
    talk.become(make(calls, 2, "a"))
    answered(await talk.answer(head, say(task, False)))
    assert calls == ["model 1", "look", "model 1", "model 2"], calls


async def check_several_at_once(make: Make, say: Say) -> None:
    """Each call gets its own answer, asked one by one or in one message; all else runs once."""
    calls: list[str] = []
    talk = Talk(make(calls, 1, "a", "b"))
    head, task = await talk.say("go")
    for consent in (True, False):
        talk.become(make(calls, 2, "a", "b"))
        if waits_for_its_client(task):
            assert question(task), task.status
            task = await talk.answer(head, say(task, consent, False))
    answered(task)
    assert sum(call.startswith("delete") for call in calls) == 1, calls
    assert calls[:3] == ["model 1", "look", "model 1"], calls
    assert (calls.count("look"), calls.count("model 1"), calls.count("model 2")) == (1, 2, 1), calls


async def check_an_answer_that_does_not_fit(make: Make, say: Say) -> None:
    """A file is asked about again; nothing has run, and the next answer goes on."""
    calls: list[str] = []
    talk = Talk(make(calls, 1, "a"))
    head, task = await talk.say("go")
    again = await talk.answer(head, user_request(raw(b"", "image/png")))
    assert waits_for_its_client(again), again.status
    assert calls == ["model 1", "look", "model 1"], calls
    answered(await talk.answer(head, say(task, True)))
    assert calls == ["model 1", "look", "model 1", "delete a", "model 1"], calls


CHECKS: Final = tuple(each for name, each in list(globals().items()) if name.startswith("check_"))
"""What holds for each adapter."""
