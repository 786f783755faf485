"""What a framework keeps of a conversation from task to task, and over a question to the client.

The first is the state of the turn's context, under the caller's scope and the contextId: two
callers who choose the same contextId share nothing. It is stored with the end of a task. The second
is a record of the turn that asks.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NoReturn, Self, TypeAlias

from a2a_serverless.errors import StateTooLargeError
from a2a_serverless.frameworks.parts import answer_refusal
from a2a_serverless.frameworks.steps import RECORD_TOO_LARGE, final_errors
from a2a_serverless.tasks.entries import StepId
from a2a_serverless.tasks.identity import unicode_of
from a2a_serverless.worker import FinalError, TaskContext
from a2a_serverless.worker.context import active_turn
from a2a_serverless.worker.failures import RecordTooLargeError
from a2a_serverless.worker.steps import PAUSE

logger = logging.getLogger(__name__)

_MARK_BYTES: Final = 100
"""What `load` leaves free, so that the mark of a full conversation always has room."""

_QUESTIONS: Final = ("question", "message", "prompt")
"""The names under which a dict has the question that a person reads."""
ARTIFACT: Final = "answer"
"""The artifact of what a framework streams."""
_BETWEEN: Final = "\n\n"
"""What stands between two messages of it."""

Ask: TypeAlias = Callable[[TaskContext, Any], Awaitable[Any]]
"""Asks the client a question, a JSON value, by the turn's `ask`; returns what is of the answer."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """The state of a conversation, and how far a task's run of it has come.

    A run that asks its client ends its process, and what it goes on with is a record of the turn
    (`ask`). `load` finds it with the answers: nothing before the question runs again, whatever the
    code is then.
    """

    ctx: TaskContext
    framework: str
    ended: Any | None
    """What the tasks that have ended have left; None: no task has ended."""
    waiting: Any | None
    """What the run has kept with its last questions; None: it has asked nothing yet."""
    answers: list[Any]
    """Those of the client to these questions."""
    pauses: int
    """How often the run has asked before: its steps are told apart by it."""
    refused: int
    """The bytes that the state would have with an answer that had no room; 0: none so far."""
    _ask: Ask
    _said: Counter[str]
    """What the code had said outside of steps before the run went on."""

    @classmethod
    async def load(
        cls, ctx: TaskContext, framework: str, *, growth: float = 1, ask: Ask | None = None
    ) -> Self:
        """Return the conversation of a task's first message, or of the answer to a question.

        `growth` is how many bytes of state a byte of the message becomes, at the least. By default
        `ask` takes answers of text or data.

        Raises:
            TurnParked: a question of the last ones is still to be asked.
            FinalError: the state was not stored by this framework's adapter.
            StateTooLargeError: what is kept has no room for the message, or an earlier answer had
                none.
        """
        turn, ask = active_turn(ctx), ask or partial(_ask_for_value, framework)
        waiting, answers, pauses = None, list[Any](), 0
        while (record := await turn.recorded(StepId(PAUSE, "", pauses + 1))) is not None:
            pauses += 1
            pause = json.loads(record.value)
            _check_framework(framework, f"The question of task {ctx.task_id}", pause)
            turn.journal.skip(pause["said"])
            answers = [await ask(ctx, question) for question in pause["questions"]]
            waiting = pause["kept"]
        state = await ctx.load_context() or {"framework": framework, "ended": None}
        _check_framework(framework, f"The state of context {ctx.context_id}", state)
        ended, refused = state["ended"], state.get("refused", 0)
        if waiting is None:
            _check_room(ctx, state, growth, refused)
        said = Counter(turn.journal.said)
        return cls(ctx, framework, ended, waiting, answers, pauses, refused, ask, said)

    async def ask(self, kept: Any, *questions: Any) -> NoReturn:
        """Ask the client one question after the other, and keep what the run goes on with.

        A question is a text, or any JSON value, which is also sent as data. A dict that has its
        question as "question", "message" or "prompt" is read as that.

        Raises:
            TurnParked: always; `load` returns what was kept, with the answers.
            FinalError: what is to be kept is larger than a record may be.
        """
        turn = active_turn(self.ctx)
        said = turn.journal.said - self._said
        pause = {
            "framework": self.framework,
            "kept": kept,
            "questions": questions,
            "said": said,
        }
        with final_errors({RecordTooLargeError: RECORD_TOO_LARGE}):
            turn.delay(StepId(PAUSE, "", self.pauses + 1), pause)
        await self._ask(self.ctx, questions[0])
        raise RuntimeError("A question is answered when the code runs again, and not before.")

    async def end(self, ended: Any) -> None:
        """Keep what the conversation's next task begins with. End this task next.

        If that is too large, the task ends with its answer all the same. The state stays as it was,
        and `load` refuses every later message before the agent runs.
        """
        try:
            await self._store(ended, self.refused)
        except StateTooLargeError as error:
            extra = {"action": "conversation_full", "task_id": self.ctx.task_id}
            logger.warning("%s", error, extra={**extra, "context_id": self.ctx.context_id})
            await self._store(self.ended, error.size)

    async def _store(self, ended: Any, refused: int) -> None:
        state = {"framework": self.framework, "ended": ended}
        await self.ctx.update_context(state | {"refused": refused} if refused else state)


def _check_framework(framework: str, name: str, stored: Any) -> None:
    """Raise FinalError unless a state or a pause, called `name`, is of a framework's adapter."""
    if not isinstance(stored, dict) or stored.get("framework") != framework:
        raise FinalError(
            f"{name} was not stored by an agent of {framework}:"
            " after a change of the framework, begin new conversations or delete the old ones.",
            client_text="The agent cannot read this conversation: begin a new one.",
        )


def _check_room(ctx: TaskContext, state: Any, growth: float, refused: int) -> None:
    """Check that a conversation has room for the turn's message.

    Raises:
        StateTooLargeError: it has not.
    """
    said = ctx.data_parts[0] if ctx.data_parts else ctx.user_text
    added = json.dumps(said, ensure_ascii=False).encode(errors="replace")
    size, limit = active_turn(ctx).size_of_state(state)
    size = max(size + int(len(added) * growth), refused)
    if size > limit - _MARK_BYTES:
        raise StateTooLargeError(size, limit)


async def _ask_for_value(framework: str, ctx: TaskContext, question: Any) -> Any:
    """Return the client's answer to a question: the message's data if it has any, or its text.

    An answer with a file is asked for again.
    """
    text, data = question, None
    if not isinstance(question, str):
        named = question if isinstance(question, dict) else {}
        texts = (named.get(name) for name in _QUESTIONS)
        found = next((each for each in texts if isinstance(each, str) and each.strip()), None)
        text, data = found or json.dumps(question, ensure_ascii=False), question
    answer = await ctx.ask(text, data=data)
    while why := answer_refusal(answer.parts, framework):
        answer = await ctx.ask(f"{why} {text}", data=data)
    return answer.text if answer.data is None else answer.data


@dataclass(frozen=True, slots=True)
class Messages:
    """The messages of a conversation, as JSON values, with which one turn begins.

    The messages of a task that waits are kept apart from those of tasks that have ended, and follow
    them: so the messages of a task that ends meanwhile are not lost.
    """

    ended: list[Any]
    own: list[Any]
    is_rewritten: bool

    @classmethod
    def of(cls, ended: list[Any] | None, waiting: dict[str, Any] | None) -> Self:
        """Return the messages of what `Conversation` has kept."""
        kept = waiting or {"own": []}
        is_rewritten = "all" in kept
        return cls(ended or [], kept["all"] if is_rewritten else kept["own"], is_rewritten)

    def begin(self) -> list[Any]:
        """Return what the turn begins with."""
        return list(self.own) if self.is_rewritten else [*self.ended, *self.own]

    def waiting(self, now: list[Any]) -> dict[str, Any]:
        """Return what to keep of `now` for a task that waits.

        If the framework has shortened or summed up the messages, it has also rewritten those of
        ended tasks: then all messages are kept as they are, and replace the others when the task
        ends.
        """
        count = len(self.ended)
        if self.is_rewritten or now[:count] != self.ended:
            return {"all": now}
        return {"own": now[count:]}


class Answer:
    """The text of a turn's model calls, sent as chunks of one artifact.

    A blank line parts two messages, such as those before and after the call of a tool, and what an
    earlier turn of the task has said. With `streams` False each message is one chunk.
    """

    def __init__(self, ctx: TaskContext, *, streams: bool = True) -> None:
        self.streams = streams
        self._ctx = ctx
        self._has_begun = any(one.artifact_id == ARTIFACT for one in ctx.previous_artifacts)
        self._message: object = None
        self._sent = ""

    async def add(self, text: str, message: object) -> None:
        """Send the next chunk; `message` is equal for the chunks of one message."""
        # Steps that are recorded may have begun the artifact.
        self._has_begun = self._has_begun or active_turn(self._ctx).projection.has_artifact(
            ARTIFACT
        )
        is_next = self._has_begun and message != self._message
        self._sent = text if message != self._message else self._sent + text
        self._has_begun, self._message = True, message
        text = f"{_BETWEEN}{text}" if is_next else text
        await self._ctx.emit_text_artifact(text, ARTIFACT, append=True)

    async def rest(self, text: str, message: object) -> None:
        """Send what the chunks of a message have not brought of its whole text.

        Nothing is sent of a text that begins otherwise than its chunks.
        """
        sent, text = unicode_of(self._sent if message == self._message else ""), unicode_of(text)
        if text.startswith(sent) and text != sent:
            await self.add(text[len(sent) :], message)


def is_sent(ctx: TaskContext, text: str) -> bool:
    """Return True if a text is the last message that `Answer` has sent."""
    sent = active_turn(ctx).projection.text_of(ARTIFACT)
    return not text or f"{_BETWEEN}{sent}".endswith(f"{_BETWEEN}{unicode_of(text)}")


def is_consent(answer: Any) -> bool:
    """Return True if an answer approves: "yes", "y", "ok", "approve", true, or {"approved": true}.

    Anything else refuses.
    """
    if isinstance(answer, dict):
        answer = answer.get("approved")
    return answer is True or str(answer).strip().lower() in {"yes", "y", "ok", "approve", "true"}


def refusal(answer: Any) -> str:
    """Return the sentence that tells a model of a refusal, with the user's words if there are any.

    null, false and {"approved": false} have no words.
    """
    if isinstance(answer, dict) and answer.keys() == {"approved"}:
        answer = answer["approved"]
    return f"The user has refused: {answer}" if answer else "The user has refused."
