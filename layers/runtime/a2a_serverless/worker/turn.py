"""The input of a turn, and the translation of its agent's events to entries of the log."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from a2a.auth.user import User
from a2a.helpers import get_data_parts, get_text_parts
from a2a.server.agent_execution import RequestContext
from a2a.server.context import ServerCallContext
from a2a.types import (
    Artifact,
    Message,
    Part,
    Role,
    SendMessageRequest,
    Task,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from google.protobuf.json_format import MessageToDict
from google.protobuf.struct_pb2 import Struct

from a2a_serverless.errors import InvalidAgentEventError
from a2a_serverless.storage.blobs import Inline
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.blobs import raw_bytes
from a2a_serverless.tasks.entries import (
    ArtifactWritten,
    Caller,
    Entry,
    MessageAppended,
    MetadataMerged,
    Replied,
    StatusChanged,
    contents_of,
    copied,
)
from a2a_serverless.tasks.fold import Event, Fold, Log, Record, bound, extend, joined
from a2a_serverless.tasks.head import KNOWN, state_name
from a2a_serverless.tasks.rules import merge_metadata
from a2a_serverless.worker.files import AGENTS, FileInfo, files_of


class TurnView:
    """The task as one attempt sees it: as its turn began, with the attempt's own entries.

    If the turn has records, it is the task as the last of them has left it.

    `given` is the Task that the agent got with its request, None on a first turn. A Task that the
    agent emits is a snapshot. If it has the given status, it is either the given Task, sent back at
    the start, or the same question, asked again: the turn goes on, and its end decides (`kept`).

    A message without parts does not count as one; its metadata joins the metadata of its event. For
    equal keys the event's own value wins; in a Task the status message comes next, then the newest
    message of the history.
    """

    def __init__(self, fold: Fold, given: Task | None) -> None:
        self._fold = fold
        self._given = given
        self._has_emitted = False
        self._sent_back: tuple[StatusChanged, ...] = ()
        self.state: TaskState | None = None
        """The last state that this attempt has emitted."""

    def entries_of(self, event: Event | object) -> tuple[Entry, ...]:
        """Return the entries to log for an event; the agent may change the event afterwards.

        Raises:
            InvalidAgentEventError: no A2A task can hold it; the message names the fault.
        """
        match event:
            case Message():
                entries = tuple(self._of_message(event))
            case Task():
                entries = tuple(self._of_task(event))
            case TaskStatusUpdateEvent():
                entries = (self._of_status(event),)
            case TaskArtifactUpdateEvent():
                entries = (self._of_artifact(event),)
            case _:
                msg = f"The agent emitted a {type(event).__name__}, which is no A2A event."
                raise InvalidAgentEventError(msg)
        self._has_emitted = True
        if any(isinstance(entry, StatusChanged) for entry in entries):
            self._sent_back = ()
        self.add(entries)
        return entries

    def has_artifact(self, artifact_id: str) -> bool:
        """Return True if the task has an artifact of this id."""
        return artifact_id in self._fold.artifacts

    @property
    def completes_empty(self) -> bool:
        """Return True if the task is completed, and has neither a message nor an artifact."""
        parts = [*self._fold.status.message.parts]
        parts += [part for each in self._fold.artifacts.values() for part in each.parts]
        is_empty = not any(part.WhichOneof("content") != "text" or part.text for part in parts)
        return self.state == TaskState.TASK_STATE_COMPLETED and is_empty

    def raw_bytes_before(self, event: object) -> int:
        """Return the raw bytes that the artifact has to which an event appends; 0 for any other."""
        if not isinstance(event, TaskArtifactUpdateEvent) or not event.append:
            return 0
        known = self._fold.artifacts.get(event.artifact.artifact_id)
        return 0 if known is None else raw_bytes(*known.parts)

    def kept(self) -> tuple[Entry, ...]:
        """Return the pause to log for an agent that returns after sending the given status back.

        Empty if it has not sent the given status back, or has emitted another status since.
        """
        entries = self._sent_back
        self.add(entries)
        return entries

    def replied(self, message: Message) -> tuple[Entry, ...]:
        """Return the entries to log for a Message that ends the turn, also after task events."""
        entries = _reply(message)
        self.add(entries)
        return entries

    def add(self, entries: tuple[Entry, ...]) -> None:
        """Take entries into the view."""
        self._fold.add(Record(version=self._fold.version + 1, entries=entries))
        for entry in entries:
            if isinstance(entry, StatusChanged):
                self.state = entry.status.state

    def repeat(self, event: Event) -> None:
        """Take note of an event that the log keeps from an earlier attempt."""
        self._has_emitted = True
        if isinstance(event, TaskStatusUpdateEvent):
            self._sent_back, self.state = (), event.status.state

    def _of_message(self, message: Message) -> Iterator[Entry]:
        """Yield the entries of a Message that is the turn's only event."""
        if self._has_emitted:
            msg = "The agent emitted a Message after task events; it has to use a status message."
            raise InvalidAgentEventError(msg)
        if message.task_id:
            self._check_task_id(message.task_id, "Message")
        if not message.parts:
            raise InvalidAgentEventError("The agent emitted a message without parts.")
        _check_parts(message.parts, "A message")
        yield from _reply(self._completed(message))

    def _of_task(self, task: Task) -> Iterator[Entry]:
        """Yield entries for what is new in a Task; agents send the Task they got, or their own."""
        self._check_task_id(task.id, "Task")
        for message in task.history:
            if message.parts and not self._has_message(message):
                _check_parts(message.parts, "A message")
                yield MessageAppended(self._completed(message))
        for artifact in task.artifacts:
            known = self._fold.artifacts.get(artifact.artifact_id)
            if known is None or joined(known) != joined(artifact):
                yield ArtifactWritten(_checked(artifact))
        metadata = self._news_of(_joined(task, *task.history, task.status.message))
        if metadata.fields:
            yield MetadataMerged(metadata)
        if task.HasField("status"):
            yield from self._of_snapshot(task.status)

    def _of_snapshot(self, status: TaskStatus) -> Iterator[Entry]:
        if self._given is not None and _says_the_same(status, self._given.status):
            self._sent_back = (self._status(status),)
        elif self._is_news(status):
            yield self._status(status)

    def _of_status(self, event: TaskStatusUpdateEvent) -> Entry:
        self._check_task_id(event.task_id, "TaskStatusUpdateEvent")
        metadata = _joined(event, event.status.message)
        return self._status(event.status, metadata if metadata.fields else None)

    def _of_artifact(self, event: TaskArtifactUpdateEvent) -> Entry:
        """Return the entry of a chunk; the first chunk of a new artifact never appends.

        So the artifact also starts over after a restart, as this view does.
        """
        self._check_task_id(event.task_id, "TaskArtifactUpdateEvent")
        is_known = event.artifact.artifact_id in self._fold.artifacts
        return ArtifactWritten(
            _checked(event.artifact),
            append=event.append and is_known,
            last_chunk=event.last_chunk,
            metadata=_copy(event.metadata) if event.HasField("metadata") else None,
        )

    def _status(self, status: TaskStatus, metadata: Struct | None = None) -> StatusChanged:
        if status.state not in KNOWN:
            raise InvalidAgentEventError("The agent emitted a status without a state.")
        copy = TaskStatus(state=status.state)
        if status.message.parts:
            _check_parts(status.message.parts, "A message")
            copy.message.CopyFrom(self._completed(status.message))
        return StatusChanged(copy, metadata, archive=True)

    def _check_task_id(self, task_id: str, kind: str) -> None:
        if task_id != self._fold.task_id:
            msg = f"The agent emitted a {kind} for another task than its own."
            raise InvalidAgentEventError(msg)

    def _has_message(self, message: Message) -> bool:
        known = [*self._fold.history, self._fold.status.message]
        if self._given is not None:
            known.append(self._given.status.message)
        if message.message_id:
            return any(message.message_id == other.message_id for other in known)
        return any(message.parts == other.parts for other in known)

    def _is_news(self, status: TaskStatus) -> bool:
        """Return True if a Task's status says more than the task's own."""
        if status.state == TaskState.TASK_STATE_UNSPECIFIED:
            return False
        if status.state == TaskState.TASK_STATE_SUBMITTED and not status.message.parts:
            return False
        return not _says_the_same(status, self._fold.status)

    def _news_of(self, metadata: Struct) -> Struct:
        """Return the fields that the task's metadata lacks or has with another value."""
        known, news = self._fold.metadata.fields, Struct()
        for key, value in metadata.fields.items():
            if key not in known or known[key] != value:
                news.fields[key].CopyFrom(value)
        return news

    def _completed(self, message: Message) -> Message:
        """Return a copy that names its task and context, with an id and a role."""
        copy = bound(message, self._fold.task_id, self._fold.context_id)
        copy.message_id = copy.message_id or str(uuid.uuid4())
        if copy.role == Role.ROLE_UNSPECIFIED:
            copy.role = Role.ROLE_AGENT
        return copy


def _reply(message: Message) -> tuple[Entry, ...]:
    status = TaskStatus(state=TaskState.TASK_STATE_COMPLETED, message=message)
    return Replied(message), StatusChanged(status, archive=True)


def _says_the_same(status: TaskStatus, other: TaskStatus) -> bool:
    """Return True if two statuses have the same state and the same message parts."""
    return status.state == other.state and status.message.parts == other.message.parts


def _checked(artifact: Artifact) -> Artifact:
    if not artifact.artifact_id:
        raise InvalidAgentEventError("The agent emitted an artifact without artifactId.")
    _check_parts(artifact.parts, f"Artifact {artifact.artifact_id!r}")
    copy = Artifact()
    copy.CopyFrom(artifact)
    return copy


def _check_parts(parts: Iterable[Part], where: str) -> None:
    if any(part.WhichOneof("content") is None for part in parts):
        raise InvalidAgentEventError(f"{where} of the agent has a part without content.")


def _joined(event: Task | TaskStatusUpdateEvent, *messages: Message) -> Struct:
    """Return the metadata of `messages` without parts and of an event; later ones win, then it."""
    joined = Struct()
    for message in messages:
        if not message.parts:
            merge_metadata(joined, message.metadata)
    merge_metadata(joined, event.metadata)
    return joined


def _copy(struct: Struct) -> Struct:
    copy = Struct()
    copy.CopyFrom(struct)
    return copy


def describe(state: TaskState | None) -> str:
    """Return the name of a state for a sentence to the client."""
    return "none" if state is None else state_name(state)


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryMessage:
    """An earlier message of the task; `text` joins its text parts by newlines.

    >>> asked = [message.text for message in ctx.history if message.role == "user"]
    """

    role: Literal["user", "agent"]
    text: str
    parts: tuple[Part, ...]
    message_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PreviousArtifact:
    """An artifact of an earlier turn.

    >>> files = [file for artifact in ctx.previous_artifacts for file in artifact.files]
    """

    artifact_id: str
    name: str
    parts: tuple[Part, ...]

    @property
    def files(self) -> list[FileInfo]:
        """Return the files of the artifact, as `ctx.files` those of the message."""
        return files_of(self.parts)


class UserTurn:
    """The user's message of one turn, and the task as it was before it."""

    def __init__(self, request: RequestContext) -> None:
        self._request = request
        self._message = request.message or Message()
        self._task = request.current_task

    @property
    def task_id(self) -> str:
        """Return the task's id."""
        return self._request.task_id or ""

    @property
    def context_id(self) -> str:
        """Return the id of the conversation that the task belongs to."""
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

        With API keys it is the key's name. With OIDC it is the name that the keys' secret gives to
        the token's caller, else a digest of the token's issuer and subject. The digest is the same
        for all requests of one user, and does not reveal who the user is.
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
class TurnInput:
    """A turn of a task, ready for an attempt, or for a cancel on which no attempt works."""

    context: RequestContext
    """For `execute()`, or for a cancel's `cancel()`."""
    view: TurnView
    log: Log
    state: Mapping[str, str]
    """For the headers of the call contexts."""
    kept: Sequence[Record] = ()
    """The commits of earlier attempts that the next claim does not take back."""
    inline: Inline = AGENTS
    """What the agent is shown of files in itself."""

    def cancel_context(self) -> RequestContext:
        """Return the context of `cancel()`: the Task when the attempt began, and no message."""
        return _cancel_context(self.log, self.state)

    async def shown(self, storage: DurableStorage, inline: Inline) -> TurnInput:
        """Return the turn with files and long texts, or links, in what the agent is given.

        `inline` is what clients are shown: a task with more files than an agent gets in itself
        shows them to the agent in the same way.
        """
        await _show_given(storage, self.context, inline)
        return replace(self, inline=replace(AGENTS, link_s=inline.link_s, base_url=inline.base_url))


def turn_of(log: Log, state: Mapping[str, str]) -> TurnInput:
    """Return the current turn of a log that was read from its beginning.

    The agent gets the turn as it began. The view has what the next claim keeps of earlier attempts,
    as `kept` does. `state` becomes the headers of the call context.
    """
    head = log.head
    fold = log.fold(head.turn - 1)
    given = _given(log, fold) if head.turn > 1 else None
    extend(fold, log.between(head.turn - 1, head.turn_base))
    request, caller = fold.opening(head.turn)
    context = _request_context(fold, caller, request=request, given=given, state=state)
    kept = log.kept()
    return TurnInput(
        context=context,
        view=TurnView(log.restarted() if kept else fold, None if given is None else copied(given)),
        log=log,
        state=state,
        kept=kept,
    )


def canceled_turn_of(log: Log, state: Mapping[str, str]) -> TurnInput:
    """Return the current turn of a log for `cancel()` alone: with all that the log has."""
    context = _cancel_context(log, state)
    given = context.current_task
    view = TurnView(log.fold(), None if given is None else copied(given))
    return TurnInput(context=context, view=view, log=log, state=state)


async def _show_given(storage: DurableStorage, context: RequestContext, inline: Inline) -> None:
    agents = replace(AGENTS, link_s=inline.link_s, base_url=inline.base_url)
    if context.message is not None:
        await storage.show(context.message, agents)
    task = context.current_task
    if task is not None:
        files = sum(raw_bytes(*content.parts) for content in contents_of(task))
        await storage.show(task, agents if files <= AGENTS.all_bytes else inline)


def _cancel_context(log: Log, state: Mapping[str, str]) -> RequestContext:
    now = log.fold()
    _, caller = now.opening(log.head.turn)
    return _request_context(now, caller, request=None, given=now.task(), state=state)


class _CallerUser(User):
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
    opening = replace(log.at(head.turn), entries=())
    behind = log.between(head.turn, head.turn_base)
    return extend(log.fold(head.turn - 1), (opening, *behind)).task()


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
            user=_CallerUser(caller.user),
            tenant=caller.tenant,
            requested_extensions=set(caller.extensions),
        ),
        request=own_request,
        task_id=fold.task_id,
        context_id=fold.context_id,
        task=given,
    )


def history_message(message: Message) -> HistoryMessage:
    """Return a message of a task's history in the form for agents."""
    return HistoryMessage(
        role="user" if message.role == Role.ROLE_USER else "agent",
        text="\n".join(get_text_parts(message.parts)),
        parts=tuple(message.parts),
        message_id=message.message_id,
    )
