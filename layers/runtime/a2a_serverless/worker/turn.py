"""The input of a turn: the user's message, and the task as it was when the turn began."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from a2a.auth.user import User
from a2a.helpers import get_data_parts, get_text_parts
from a2a.server.agent_execution import RequestContext
from a2a.server.context import ServerCallContext
from a2a.types import Message, Part, Role, SendMessageRequest, Task
from google.protobuf.json_format import MessageToDict

from a2a_serverless.tasks.entries import Caller, TurnOpened
from a2a_serverless.tasks.fold import Fold, Log, extend
from a2a_serverless.worker.translation import TurnView


@dataclass(frozen=True, slots=True, kw_only=True)
class FileInfo:
    """A file of the user's message: `content` or `url`."""

    content: bytes | None
    url: str | None
    filename: str
    media_type: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryMessage:
    """An earlier message of the task; `text` joins its text parts by newlines."""

    role: Literal["user", "agent"]
    text: str
    parts: tuple[Part, ...]
    message_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviousArtifact:
    """An artifact of an earlier turn."""

    artifact_id: str
    name: str
    parts: tuple[Part, ...]


class UserTurn:
    """The user's message of one turn, and the task as it was before it."""

    def __init__(self, request: RequestContext) -> None:
        self._request = request
        self._message = request.message or Message()
        self._task = request.current_task

    @property
    def task_id(self) -> str:
        return self._request.task_id or ""

    @property
    def context_id(self) -> str:
        return self._request.context_id or ""

    @property
    def message_id(self) -> str:
        """Return the id of the user's message, as the client chose it."""
        return self._message.message_id

    @property
    def user_text(self) -> str:
        """Return the text parts of the user's message, joined by newlines."""
        return self._request.get_user_input()

    @property
    def parts(self) -> tuple[Part, ...]:
        """Return the parts of the user's message."""
        return tuple(self._message.parts)

    @property
    def files(self) -> list[FileInfo]:
        """Return the files of the user's message, by content or by URL."""
        return files_of(self._message.parts)

    @property
    def data_parts(self) -> list[Any]:
        """Return the JSON values of the user's message."""
        return get_data_parts(self._message.parts)

    @property
    def metadata(self) -> dict[str, Any]:
        """Return the metadata of the user's message."""
        return MessageToDict(self._message.metadata)

    @property
    def reference_task_ids(self) -> tuple[str, ...]:
        """Return the tasks that the user's message refers to."""
        return tuple(self._message.reference_task_ids)

    @property
    def message_extensions(self) -> tuple[str, ...]:
        """Return the URIs of the extensions that the user's message uses."""
        return tuple(self._message.extensions)

    @property
    def requested_extensions(self) -> frozenset[str]:
        """Return the URIs of the extensions that the request has asked for."""
        return frozenset(self._request.requested_extensions)

    @property
    def user(self) -> str:
        """Return the sender of the message; empty on an endpoint without authentication.

        With API keys it is the key's name. With OIDC it is a digest of the token's issuer and
        subject: the same for all requests of one user, but it does not reveal who the user is.
        """
        return self._request.call_context.user.user_name

    @property
    def tenant(self) -> str:
        """Return the tenant that the request was addressed to; empty without one."""
        return self._request.tenant

    @property
    def history(self) -> list[HistoryMessage]:
        """Return the messages before the user's, oldest first; empty on a task's first turn."""
        if self._task is None:
            return []
        messages = list(self._task.history)
        if self._task.status.HasField("message"):
            messages.append(self._task.status.message)
        return [history_message(message) for message in messages]

    @property
    def previous_artifacts(self) -> list[PreviousArtifact]:
        """Return the artifacts of earlier turns; empty on the first turn of a task."""
        artifacts = self._task.artifacts if self._task is not None else ()
        return [
            PreviousArtifact(artifact_id=a.artifact_id, name=a.name, parts=tuple(a.parts))
            for a in artifacts
        ]

    def accepts(self, media_type: str) -> bool:
        """Return True if the client takes output of this type; it takes any if it named none.

        >>> if ctx.accepts("application/json"):
        ...     await ctx.complete_json({"answer": 42})
        """
        modes = self._request.configuration and self._request.configuration.accepted_output_modes
        return not modes or media_type in modes


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A turn of a task, ready for an attempt, or for a cancel on which no attempt works."""

    context: RequestContext
    """For `execute()`, or for a cancel's `cancel()`."""
    view: TurnView
    log: Log
    state: Mapping[str, str]
    """For the headers of the call contexts."""

    def cancel_context(self) -> RequestContext:
        """Return the context of `cancel()`: the Task when the attempt began, and no message."""
        return _cancel_context(self.log, self.state)


def turn_of(log: Log, state: Mapping[str, str]) -> Turn:
    """Return the current turn of a log that was read from its beginning.

    Entries of earlier attempts are left out: the turn is shown as it began. `state` becomes the
    headers of the call context.
    """
    head = log.head
    fold = extend(Fold(head.task_id, head.context_id), log.records[: head.turn - 1])
    given = _given(log, fold) if head.turn > 1 else None
    extend(fold, log.records[head.turn - 1 : head.turn_base])
    request, caller = fold.opening(head.turn)
    context = _request_context(fold, caller, request=request, given=given, state=state)
    return Turn(context=context, view=TurnView(fold, given), log=log, state=state)


def canceled_turn_of(log: Log, state: Mapping[str, str]) -> Turn:
    """Return the current turn of a log for `cancel()` alone: with all that the log has."""
    context = _cancel_context(log, state)
    view = TurnView(log.fold(), context.current_task)
    return Turn(context=context, view=view, log=log, state=state)


def _cancel_context(log: Log, state: Mapping[str, str]) -> RequestContext:
    now = log.fold()
    _, caller = now.opening(log.head.turn)
    return _request_context(now, caller, request=None, given=now.task(), state=state)


def caller_of(log: Log) -> Caller:
    """Return the sender of the current turn's message; `log` was read from its beginning."""
    opening = log.records[log.head.turn - 1]
    return next(entry.caller for entry in opening.entries if isinstance(entry, TurnOpened))


class CallerUser(User):
    """The sender of the turn's message, as the API has authenticated it."""

    def __init__(self, name: str) -> None:
        self._name = name

    @property
    def is_authenticated(self) -> bool:
        return bool(self._name)

    @property
    def user_name(self) -> str:
        return self._name


def _given(log: Log, before: Fold) -> Task:
    """Return the Task for a follow-up, without the follow-up's message, as the SDK's server does.

    So the Task's status is still the question that the message answers. `before` is the task before
    the message was accepted. If the message had to wait for another turn, the Task also shows what
    was written until the end of that turn.
    """
    head = log.head
    if head.turn == head.turn_base:
        return before.task()
    opening = replace(log.records[head.turn - 1], entries=())
    behind = log.records[head.turn : head.turn_base]
    without = (*log.records[: head.turn - 1], opening, *behind)
    return extend(Fold(head.task_id, head.context_id), without).task()


def _request_context(
    fold: Fold,
    caller: Caller,
    *,
    request: SendMessageRequest | None,
    given: Task | None,
    state: Mapping[str, str] | None = None,
) -> RequestContext:
    """Return the context of `execute()`, or of `cancel()`, which has no request.

    `given` is the Task as it was before the message: None on a first turn, as on the SDK's own
    server, where the agent's first event creates the task. `state` has the request's headers that
    the API sent along; executors look for them in the call context's `state["headers"]`.
    """
    own_request = None
    if request is not None:
        own_request = SendMessageRequest()
        own_request.CopyFrom(request)
    return RequestContext(
        ServerCallContext(
            state={"headers": dict(state or {})},
            user=CallerUser(caller.user),
            tenant=caller.tenant,
            requested_extensions=set(caller.extensions),
        ),
        request=own_request,
        task_id=fold.task_id,
        context_id=fold.context_id,
        task=given,
    )


def files_of(parts: Iterable[Part]) -> list[FileInfo]:
    """Return the files among parts."""
    kinds = ((part, part.WhichOneof("content")) for part in parts)
    return [
        FileInfo(
            content=part.raw if kind == "raw" else None,
            url=part.url if kind == "url" else None,
            filename=part.filename,
            media_type=part.media_type,
        )
        for part, kind in kinds
        if kind in {"raw", "url"}
    ]


def history_message(message: Message) -> HistoryMessage:
    """Return a message of a task's history in the form for agents."""
    return HistoryMessage(
        role="user" if message.role == Role.ROLE_USER else "agent",
        text="\n".join(get_text_parts(message.parts)),
        parts=tuple(message.parts),
        message_id=message.message_id,
    )
