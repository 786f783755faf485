"""What is kept of a framework's conversation, and how a question is answered."""

from __future__ import annotations

from typing import Any

import pytest
from a2a.helpers import new_data_part
from a2a.types import TaskState

from a2a_serverless.errors import StateTooLargeError
from a2a_serverless.frameworks.conversation import (
    Answer,
    Conversation,
    Messages,
    is_consent,
    refusal,
)
from a2a_serverless.worker import TaskContext, Worker
from a2a_serverless_tools.contract import Storage
from tests.support.workers import artifact_texts, status_text
from tests.unit.frameworks.files import LIMIT
from tests.unit.frameworks.talks import Talk, answered, chunks, question

S = TaskState


@pytest.fixture(autouse=True)
def _room(monkeypatch: pytest.MonkeyPatch) -> None:
    """A conversation has room for less, so that one is full soon."""
    monkeypatch.setattr(StateTooLargeError, "LIMIT_OFFLOADED", LIMIT)


class Asking(Worker):
    """Asks about each message, and keeps both until they are answered; "?" asks nothing."""

    async def handle(self, ctx: TaskContext) -> None:
        conversation = await Conversation.load(ctx, "asking")
        messages = Messages.of(conversation.ended, conversation.waiting)
        now = [*messages.begin(), *(conversation.answers or [ctx.user_text])]
        if conversation.waiting is None and ctx.user_text != "?":
            asked = (ctx.data_parts or [{"about": ctx.user_text}])[0]
            await conversation.ask(messages.waiting(now), asked)
        await conversation.end(now)
        await ctx.complete_json(now)


async def kept(talk: Talk) -> Any:
    return await Storage(talk.bench.storage).load_context("ctx")


async def test_two_tasks_wait_at_once() -> None:
    """Each has its own part, and both join the conversation in the order in which they end."""
    talk = Talk(Asking())
    first, asks = await talk.say("one")
    assert question(asks) == {"about": "one"}
    second, _ = await talk.say("two")
    await talk.say("?")
    await talk.answer(second, "yes")
    await talk.answer(first, {"approved": False})
    ended = ["?", "two", "yes", "one", {"approved": False}]
    assert await kept(talk) == {"framework": "asking", "ended": ended}


@pytest.mark.parametrize(
    ("asked", "text"),
    [
        ({"question": "Pay it?", "amount": 12.5}, "Pay it?"),
        ({"amount": 12.5, "message": "Pay it?", "prompt": "no"}, "Pay it?"),
        ({"prompt": "Pay it?", "message": {"of": "a mail"}}, "Pay it?"),
        ({"question": " "}, '{"question": " "}'),
        (["a", "b"], '["a", "b"]'),
    ],
)
async def test_a_question_with_data_is_read_as_a_text(asked: Any, text: str) -> None:
    """What a dict names as its question is the text; the whole of it is the data."""
    task = await Talk(Asking()).show(new_data_part(asked))
    assert (status_text(task), question(task)) == (text, asked)


async def test_the_state_of_another_framework_is_not_read() -> None:
    """The task fails and the state stays as it was, whatever it is."""
    for state in ({"framework": "other", "ended": 1}, ["a", "chat"], {"n": 1}):
        talk = Talk(Asking())
        await Storage(talk.bench.storage).update_context("ctx", state)
        _, task = await talk.say("?")
        assert (task.status.state, await kept(talk)) == (S.TASK_STATE_FAILED, state)


class Doubling(Worker):
    """Keeps of each message twice its text, answers it, and counts its starts."""

    starts = 0

    async def handle(self, ctx: TaskContext) -> None:
        conversation = await Conversation.load(ctx, "doubling")
        self.starts += 1
        await ctx.emit_text_artifact(f"{len(ctx.user_text)} characters")
        await conversation.end((conversation.ended or "") + ctx.user_text * 2)
        await ctx.complete()


@pytest.mark.parametrize("said", ["x" * 345_000, "ä" * 170_000], ids=["ASCII", "UTF-8"])
async def test_a_message_without_room_is_refused_before_the_agent_runs(said: str) -> None:
    """At its first attempt; what was kept before stays, and the next task goes on with it."""
    agent = Doubling()
    talk = Talk(agent, max_attempts=3)
    await talk.say("?")
    before = await kept(talk)
    _, refused = await talk.say(said)
    assert refused.status.state == S.TASK_STATE_FAILED
    assert status_text(refused).startswith("The state of this conversation would have 34")
    assert "340000 can be kept: begin another conversation" in status_text(refused)
    assert (agent.starts, await kept(talk)) == (1, before)
    assert answered((await talk.say("?"))[1]) == "1 characters"


async def test_an_answer_is_delivered_also_where_the_conversation_is_full_by_it() -> None:
    """The task is completed; the conversation stays as it was, and takes no further message."""
    agent = Doubling()
    talk = Talk(agent, max_attempts=3)
    await talk.say("?")
    _, last = await talk.say("x" * 200_000)
    assert answered(last) == "200000 characters"
    assert (await kept(talk))["ended"] == "??"
    _, refused = await talk.say("and?")
    assert refused.status.state == S.TASK_STATE_FAILED
    assert status_text(refused).startswith("The state of this conversation would have 400")
    assert agent.starts == 2


def test_messages_that_were_rewritten_replace_the_others() -> None:
    """A framework that has summed up the conversation is believed; one that added is not."""
    added = Messages.of([1, 2], None)
    assert added.waiting([1, 2, 3]) == {"own": [3]}
    assert Messages.of([1, 2, 9], {"own": [3]}).begin() == [1, 2, 9, 3]
    assert added.waiting(["sum", 3]) == {"all": ["sum", 3]}
    rewritten = Messages.of([1, 2, 9], {"all": ["sum", 3]})
    assert rewritten.begin() == ["sum", 3]
    assert rewritten.waiting(["sum", 3, 4]) == {"all": ["sum", 3, 4]}


CONSENTS = ["yes", "Y", " OK ", "approve", "true", True, {"approved": True}, {"approved": "yes"}]
REFUSALS = ["no", "yes, but later", "", None, False, 1, {"approved": False}, {}, ["yes"]]


def test_only_a_plain_yes_approves() -> None:
    """What is not clear refuses: an approval may not be undone. A model reads why."""
    assert all(map(is_consent, CONSENTS))
    assert not [answer for answer in REFUSALS if is_consent(answer)]
    for wordless in (None, False, {"approved": False}):
        assert refusal(wordless) == "The user has refused."
    assert refusal("rather not") == "The user has refused: rather not"


class Saying(Worker):
    """Says something outside of steps before and behind two questions, which it asks in turn."""

    async def handle(self, ctx: TaskContext) -> None:
        await ctx.emit_text_artifact("Begins. ", "said", append=True)
        conversation = await Conversation.load(ctx, "saying")
        for number in range(conversation.pauses, 2):
            await ctx.send_status(f"Works {number}")
            await ctx.emit_text_artifact(f"Run {number}. ", "said", append=True)
            await conversation.ask(number, "First?", "Second?")
        await ctx.emit_text_artifact(f"{conversation.answers}", "said", append=True)
        await ctx.complete()


async def test_what_was_said_before_a_question_is_not_said_again() -> None:
    """Nor is it missed: the code that goes on behind its question begins with what follows."""
    talk = Talk(Saying())
    head, task = await talk.say("go")
    for answer in "abcd":
        assert task.status.state == S.TASK_STATE_INPUT_REQUIRED, task.status
        task = await talk.answer(head, answer)
    (said,) = artifact_texts(task).values()
    assert "".join(said) == "Begins. Run 0. Run 1. ['c', 'd']"
    told = [part.text for message in task.history for part in message.parts]
    assert [text for text in told if text.startswith("Works")] == ["Works 0", "Works 1"]


class Whole(Worker):
    """Says the beginning of three messages, and then what each says in all."""

    async def handle(self, ctx: TaskContext) -> None:
        answer = Answer(ctx)
        for number, (begin, whole) in enumerate([("Te", "Tea."), ("Cake.", "Cake."), ("x", "Ham")]):
            await answer.add(begin, number)
            await answer.rest(whole, number)
        await answer.rest("End.", "another")
        await ctx.complete()


async def test_what_the_chunks_of_a_message_have_not_brought() -> None:
    """It is sent behind them; nothing of a text that begins otherwise, or is there already."""
    assert await chunks(Whole()) == ["Te", "a.", "\n\nCake.", "\n\nx", "\n\nEnd."]
