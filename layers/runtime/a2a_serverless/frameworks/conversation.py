"""What a framework keeps of a conversation from turn to turn.

It is stored as the state of the turn's context, under the caller's scope and the contextId: two
callers who choose the same contextId share nothing. It is stored with the ending of a turn: a turn
that dies starts over from what the last ended turn has stored.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from typing import Any, Final, Self

from a2a_serverless.errors import StateTooLargeError
from a2a_serverless.frameworks.parts import check_answer
from a2a_serverless.tasks.identity import unicode_of
from a2a_serverless.worker import FinalError, TaskContext
from a2a_serverless.worker.context import active_turn

logger = logging.getLogger(__name__)

_MARK_BYTES: Final = 100
"""What `load` leaves free, so that the mark of a full conversation always has room."""

_QUESTIONS: Final = ("question", "message", "prompt")
"""The names under which a dict has the question that a person reads."""
ARTIFACT: Final = "answer"
"""The artifact of what a framework streams."""
_BETWEEN: Final = "\n\n"
"""What stands between two messages of it."""
MOST_WAITING: Final = 16
"""The most waiting tasks that a conversation remembers: those that asked last.

The conversation does not learn that a task was canceled while it waited, so older ones are dropped.
"""


@dataclass(frozen=True, slots=True)
class Conversation:
    """The state of one turn's conversation.

    A task that waits for an answer has its own part of the state, so that two tasks of a
    conversation can wait at once while a third one goes on.
    """

    ctx: TaskContext
    framework: str
    ended: Any | None
    """What the tasks that have ended have left; None: no task has ended."""
    waiting: Any | None
    """What this task left with its question; None on its first turn."""
    others: dict[str, Any]
    """What other tasks left with their questions, by task id, the oldest first."""
    refused: int
    """The bytes that the state would have with an answer that had no room; 0: none so far."""

    @classmethod
    async def load(cls, ctx: TaskContext, framework: str, *, growth: float = 1) -> Self:
        """Return the conversation of a turn.

        `growth` is how many bytes of state a byte of the message becomes, at the least.

        Raises:
            FinalError: the state was not stored by this framework's adapter.
            StateTooLargeError: what is kept has no room for the message, or an earlier answer had
                none. What a task has kept with its question makes room for the answer.
        """
        state = await ctx.load_context() or {"framework": framework, "ended": None, "waiting": {}}
        if not isinstance(state, dict) or state.get("framework") != framework:
            raise FinalError(
                f"The state of context {ctx.context_id} was not stored by an agent of {framework}:"
                " after a change of the framework, begin new conversations or delete the old ones.",
                client_text="The agent cannot read this conversation: begin a new one.",
            )
        others = dict(state["waiting"])
        waiting = others.pop(ctx.task_id, None)
        refused = state.get("refused", 0)
        conversation = cls(ctx, framework, state["ended"], waiting, others, refused)
        said = json.dumps(_said(ctx), ensure_ascii=False).encode(errors="replace")
        # What a waiting task kept may be the whole conversation, and then replaces what has ended.
        ended = max(state["ended"], waiting, key=lambda kept: len(json.dumps(kept)))
        kept = {**state, "waiting": others, "ended": ended}
        size, limit = active_turn(ctx).size_of_state(kept)
        size += int(len(said) * growth)
        if waiting is None:
            size = max(size, refused)
        if size > limit - _MARK_BYTES:
            raise StateTooLargeError(size, limit)
        return conversation

    @property
    def answer(self) -> Any:
        """Return the user's answer to a question: the message's data if it has any, or its text.

        Raises:
            PartRefusedError: it has a file.
        """
        check_answer(self.ctx, self.framework)
        return _said(self.ctx)

    async def ask(self, question: Any, waiting: Any) -> None:
        """End the turn with a question, and keep what this task needs when it is answered.

        The question is a text, or any JSON value, which is also sent as data. A dict that has its
        question as "question", "message" or "prompt" is read as that.

        Raises:
            StateTooLargeError: as `TaskContext.update_context`.
        """
        await self.wait(waiting)
        if isinstance(question, str):
            await self.ctx.request_input(question)
        else:
            named = question if isinstance(question, dict) else {}
            texts = (named.get(name) for name in _QUESTIONS)
            text = next((each for each in texts if isinstance(each, str) and each.strip()), None)
            whole = json.dumps(question, ensure_ascii=False)
            await self.ctx.request_input(text or whole, question)

    async def wait(self, waiting: Any) -> None:
        """Keep what this task needs when its question is answered. Ask the question next.

        Raises:
            StateTooLargeError: as `TaskContext.update_context`.
        """
        last = dict(list(self.others.items())[1 - MOST_WAITING :])
        await self._store(self.ended, last | {self.ctx.task_id: waiting})

    async def end(self, ended: Any) -> None:
        """Keep what the conversation's next task begins with. End this task next.

        If that is too large, the task ends with its answer all the same. The state stays as it was,
        and `load` refuses every later message before the agent runs.
        """
        try:
            await self._store(ended, self.others)
        except StateTooLargeError as error:
            extra = {"action": "conversation_full", "task_id": self.ctx.task_id}
            logger.warning("%s", error, extra={**extra, "context_id": self.ctx.context_id})
            await self._store(self.ended, self.others, refused=error.size)

    async def _store(self, ended: Any, waiting: dict[str, Any], *, refused: int = 0) -> None:
        state = {"framework": self.framework, "ended": ended, "waiting": waiting}
        refused = refused or self.refused
        await self.ctx.update_context(state | {"refused": refused} if refused else state)


def _said(ctx: TaskContext) -> Any:
    return ctx.data_parts[0] if ctx.data_parts else ctx.user_text


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
    earlier turn of the task has said.
    """

    def __init__(self, ctx: TaskContext) -> None:
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
