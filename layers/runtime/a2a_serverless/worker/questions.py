"""Questions to the client in the middle of an agent's code, and what the client answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any, Final

from a2a.helpers import get_text_parts
from a2a.types import Part, TaskStatusUpdateEvent
from pydantic import PydanticUserError, TypeAdapter, ValidationError

from a2a_serverless.tasks.entries import StepId, TurnOpened, copied, data_of
from a2a_serverless.tasks.questions import id_on_parts, own_parts
from a2a_serverless.values import dataclass
from a2a_serverless.worker.failures import FinalError, WrongCallError, sayable
from a2a_serverless.worker.files import FileInfo, files_of

TAKEN: Final = "taken"
"""The form of the record of an answer that was found to fit: it counts, whatever fits later."""
MOST_WRONG: Final = 3
"""Answers that do not fit after which a question is not asked again."""
_MOST_REASON: Final = 300
"""The most characters of the reason why an answer does not fit."""


class WaitTimeoutError(FinalError, TimeoutError):
    """What was waited for has not come in time; it stays so when the code runs again.

    If the agent does not catch it, the task fails with its sentence.

    >>> try:
    ...     answer = await ctx.ask("Shall I book it?", timeout_s=3600)
    ... except WaitTimeoutError:
    ...     await ctx.complete("There was no answer: nothing was booked.")
    """


class WrongAnswerError(FinalError):
    """No answer of the client has fitted the question's `schema`.

    If the agent does not catch it, the task fails with its sentence.

    >>> try:
    ...     people = (await ctx.ask("For how many people?", schema=int)).data
    ... except WrongAnswerError:
    ...     people = 1
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer of the client to a question of the agent's code.

    >>> answer = await ctx.ask("Which account?")
    >>> await ctx.complete(f"Paid from {answer.text}.")
    """

    text: str
    """Its text parts, joined by newlines."""
    data: Any
    """What is of the question's `schema`; without one the JSON value of its first data part. None:
    it has none."""
    files: list[FileInfo]
    """Its files, by content or by URL."""
    parts: tuple[Part, ...] = field(repr=False)
    message_id: str
    user: str
    """The sender, as `ctx.user` is that of the message with which the code has begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question as the code has asked it.

    Args:
        id: of its record.
        status: asks it; the first part of its message is the question's text.
        type: what an answer has to be; None: anything.
    """

    id: StepId
    status: TaskStatusUpdateEvent
    type: TypeAdapter[Any] | None = None

    @property
    def name(self) -> str:
        """Return its id as the client sees it."""
        return id_on_parts(self.id)

    def again(self, why: str) -> Question:
        """Return the question as it is asked after an answer that does not fit."""
        status = copied(self.status)
        first = status.status.message.parts[0]
        first.text = f"This answer does not fit: {why}. {first.text}"
        return Question(id=self.id, status=status, type=self.type)

    def answer(self, opening: TurnOpened) -> Answer | str:
        """Return what a message answers; or why that does not fit, in the client's words."""
        message = opening.request.message
        parts = own_parts(message.parts, self.id)
        text, data = "\n".join(get_text_parts(parts)), data_of(parts)
        try:
            value = _typed(self.type, text, data) if self.type else data[0] if data else None
        except ValidationError as error:
            return misfit_of(error)
        return Answer(
            text=text,
            data=value,
            files=files_of(parts),
            parts=tuple(parts),
            message_id=message.message_id,
            user=opening.caller.user,
        )


def _typed(kind: TypeAdapter[Any], text: str, data: list[Any]) -> Any:
    """Return the first data part as a type; without one the text, or its JSON.

    Raises:
        ValidationError: it is not of the type.
    """
    if data:
        return kind.validate_python(data[0])
    try:
        return kind.validate_python(text)
    except ValidationError:
        try:
            return kind.validate_json(text)
        except ValidationError:
            if text.lstrip().startswith(("{", "[")):
                raise
        raise  # a text that is no JSON does not fit as a text


def misfit_of(error: ValidationError) -> str:
    """Return the first thing that does not fit, and where it is."""
    first = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join(str(each) for each in first["loc"])
    return sayable(f"{where}: {first['msg']}" if where else first["msg"], _MOST_REASON)


def type_of(schema: Any, call: str = "ctx.ask") -> tuple[TypeAdapter[Any], Mapping[str, Any]]:
    """Return the type of answers, and its JSON Schema, which the client gets.

    Raises:
        WrongCallError: it is none that pydantic reads.
    """
    takes = f"{call} takes as `schema` a type that pydantic reads, such as a BaseModel or `int`"
    if isinstance(schema, Mapping):
        way = "write a BaseModel, or take WithJsonSchema of pydantic"
        raise WrongCallError(f"{takes}, and got a dict: {way}.")
    try:
        kind: TypeAdapter[Any] = TypeAdapter(schema)
        return kind, kind.json_schema()
    except PydanticUserError as error:
        reason = str(error).partition("\n")[0]
        raise WrongCallError(f"{takes}, and got {schema!r}: {reason}") from error
