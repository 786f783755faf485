"""Writing an agent in one method: `Worker.handle(ctx)`."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import os
import uuid
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal, ParamSpec, TypeVar

from a2a.helpers import get_text_parts
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.types import (
    AgentCard,
    Artifact,
    Message,
    Part,
    Role,
    TaskArtifactUpdateEvent,
    TaskState,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from google.protobuf.struct_pb2 import Struct

from a2a_serverless.sources import Source
from a2a_serverless.tasks.entries import StepId, data_of, json_of
from a2a_serverless.tasks.identity import without_half
from a2a_serverless.tasks.progress import Progress
from a2a_serverless.tasks.questions import ASK, ID_FIELD, id_on_parts
from a2a_serverless.tasks.usage import Usage
from a2a_serverless.tasks.waits import CALL, CALLBACK, POLL, SLEEP, Signal
from a2a_serverless.values import dataclass
from a2a_serverless.worker.calls import (
    DAY_S,
    DEPTH,
    AgentCall,
    OnText,
    Remote,
    Reply,
    Said,
    depth_of,
    parts_of,
)
from a2a_serverless.worker.failures import (
    data_part,
    expect,
    expect_text,
    is_plain_function,
    is_seconds,
    own_text,
    refuse_work,
    refused_data,
    sendable,
    text_part,
)
from a2a_serverless.worker.files import FileInfo, PreviousArtifact, artifacts_of, files_of
from a2a_serverless.worker.loops import called, notes_calls
from a2a_serverless.worker.questions import Answer, Question, type_of
from a2a_serverless.worker.steps import (
    MAX_NAME,
    ONCE,
    PARK_S,
    ActiveStep,
    Codec,
    Retry,
    current_step,
    key_of,
    seconds_of,
    seconds_until,
)
from a2a_serverless.worker.turn import ActiveTurn, timed_out
from a2a_serverless.worker.waits import Looks, Posted, refuse_place, seconds_in

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)

FINAL_ANSWER = "final-answer"

_turn: ContextVar[tuple[RequestContext, ActiveTurn] | None] = ContextVar("turn", default=None)


def current_context() -> TaskContext:
    """Return a context of the turn that runs, for code that was not given one.

    >>> ctx = current_context()
    >>> await ctx.send_status("Searching")

    Raises:
        RuntimeError: no turn runs here.
    """
    found = _turn.get()
    if found is None:
        raise RuntimeError(
            "No turn runs here: call it in the agent, or in what the agent calls and awaits."
        )
    return TaskContext(*found)


def enter_turn(request: RequestContext, turn: ActiveTurn) -> None:
    """Make a turn the one that runs in the calling task, and in the tasks that it starts."""
    _turn.set((request, turn))
    turn.main = asyncio.current_task()


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryMessage:
    """An earlier message of the task; `text` joins its text parts by newlines.

    >>> asked = [message.text for message in ctx.history if message.role == "user"]
    """

    role: Literal["user", "agent"]
    text: str
    parts: tuple[Part, ...]
    message_id: str

    @property
    def files(self) -> list[FileInfo]:
        """Return the files of the message."""
        return files_of(self.parts)


class UserTurn:
    """The user's message of one turn, and the task as it was before it."""

    def __init__(self, request: RequestContext) -> None:
        self._request = request
        self._message = request.message or Message()

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
        """Return the files of the user's messages of the task, by content or by URL.

        Those of this message come first, then those of the message before, and so on. So the turn
        of an answer still has the file that its question is about.
        """
        before = [message.files for message in reversed(self.history) if message.role == "user"]
        return [*files_of(self._message.parts), *chain.from_iterable(before)]

    @property
    def data_parts(self) -> list[Any]:
        """Return the JSON values of the user's message."""
        return data_of(self._message.parts)

    @property
    def metadata(self) -> dict[str, Any]:
        """Return the metadata of the user's message."""
        return dict(json_of(self._message.metadata))

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
        task = self._request.current_task
        if task is None:
            return []
        messages = list(task.history)
        if task.status.HasField("message"):
            messages.append(task.status.message)
        return [history_message(message) for message in messages]

    @property
    def previous_artifacts(self) -> list[PreviousArtifact]:
        """Return the artifacts of earlier turns; empty on the first turn of a task."""
        task = self._request.current_task
        return artifacts_of(task) if task is not None else []

    def accepts(self, media_type: str) -> bool:
        """Return True if the client takes output of this type; it takes any if it named none.

        >>> if ctx.accepts("application/json"):
        ...     await ctx.complete_json({"answer": 42})
        """
        modes = self._request.configuration and self._request.configuration.accepted_output_modes
        return not modes or media_type in modes


def history_message(message: Message) -> HistoryMessage:
    """Return a message of a task's history in the form for agents."""
    return HistoryMessage(
        role="user" if message.role == Role.ROLE_USER else "agent",
        text="\n".join(get_text_parts(message.parts)),
        parts=tuple(message.parts),
        message_id=message.message_id,
    )


@notes_calls
class TaskContext(UserTurn):
    """One turn of a task: the user's message, the task before it, and the ways to answer.

    A turn is ended exactly once, by `complete`, `complete_json`, `respond`, `reply_directly`,
    `fail`, `reject`, `request_input` or `request_auth`; a second ending raises RuntimeError.
    `send_status`, `progress`, `usage` and `emit_*` after the end only log a warning. Each event is
    stored within `A2A_FLUSH_MS`; when the method of an ending returns, the ending and all events
    before it are.
    """

    def __init__(self, request: RequestContext, turn: EventQueue) -> None:
        super().__init__(request)
        if not isinstance(turn, ActiveTurn):
            raise TypeError("A Worker runs in the WorkerAdapter of this package only.")
        self._turn = turn
        self._calls = turn.calls
        self._has_ended = False
        self._told: tuple[int, str | None] | None = None

    @property
    def is_cancelled(self) -> bool:
        """Return True if the client has asked to cancel; the next `await` raises CancelledError."""
        return self._turn.is_cancelled

    @property
    def turn_ended(self) -> bool:
        """Return True if an ending was called on this turn."""
        return self._has_ended or self._turn.has_ended

    # -- endings -------------------------------------------------------------------------------

    async def complete(self, text: str | None = None, artifact_id: str = FINAL_ANSWER) -> None:
        """Complete the task, with `text` as an artifact.

        >>> await ctx.complete("The invoice is paid.")
        """
        parts = [] if text is None else [text_part(text)]
        await self._complete_with(parts, artifact_id)

    async def complete_json(self, data: Any, artifact_id: str = FINAL_ANSWER) -> None:
        """Complete the task, with `data`, any JSON value, as an artifact.

        >>> await ctx.complete_json({"total": 12.5, "currency": "EUR"})

        Raises:
            InvalidArgumentError: `data` is no JSON value.
        """
        part = data_part(data)
        await self._complete_with([part], artifact_id)

    async def respond(self, text: str | None = None) -> None:
        """Complete the task, with `text` as its status message and no artifact.

        Some clients do not show it, or show it alone: an answer is best in `complete`.

        >>> await ctx.respond("Nothing to do.")
        """
        await self._end_in(TaskState.TASK_STATE_COMPLETED, text)

    async def reply_directly(self, text: str) -> None:
        """Complete the task and answer the client with a Message instead of the Task.

        >>> await ctx.reply_directly("Hello!")
        """
        message = self._said(TaskState.TASK_STATE_COMPLETED, None, text_part(text)).status.message
        await self._end()
        await self._turn.emit(message, ends_turn=True)

    async def fail(self, reason: str) -> None:
        """End the task as failed; the client reads `reason`.

        >>> await ctx.fail("The file is not a PDF.")
        """
        await self._end_in(TaskState.TASK_STATE_FAILED, reason)

    async def reject(self, reason: str | None = None) -> None:
        """End the task as rejected; the client reads `reason`.

        >>> await ctx.reject("Only invoices are accepted.")
        """
        await self._end_in(TaskState.TASK_STATE_REJECTED, reason or "Task rejected.")

    async def request_input(self, question: str, data: Any = None) -> None:
        """End the turn and wait for the user; the answer is the next turn's message.

        `data`, any JSON value, goes out beside the question, for programs that answer it.

        >>> await ctx.request_input("For which year?")
        >>> await ctx.request_input("Pay it?", {"amount": 12.5, "currency": "EUR"})

        Raises:
            InvalidArgumentError: `data` is no JSON value.
        """
        parts = [text_part(question)]
        if data is not None:
            parts.append(data_part(data))
        status = self._said(TaskState.TASK_STATE_INPUT_REQUIRED, None, *parts)
        await self._end()
        await self._turn.emit(status)

    async def request_auth(
        self,
        details: str | None = None,
        schemes: Sequence[str] = (),
        credentials_hint: str | None = None,
        auth_url: str | None = None,
    ) -> None:
        """End the turn and wait until the user has authenticated (A2A 1.0.1, section 7.6).

        `details` is for a person; the others go out as one data part.

        >>> await ctx.request_auth("Please sign in.", auth_url="https://example.com/login")
        """
        hints = {
            "schemes": list(schemes),
            "credentialsHint": credentials_hint,
            "authUrl": auth_url,
        }
        hints = {name: value for name, value in hints.items() if value}
        parts = [text_part(details)] if details else []
        if hints:
            parts.append(data_part(hints))
        parts = parts or [Part(text="Authentication required.")]
        status = self._said(TaskState.TASK_STATE_AUTH_REQUIRED, None, *parts)
        await self._end()
        # For an executor this state alone does not end the turn: it may stay and wait.
        await self._turn.emit(status, ends_turn=True)

    # -- progress ------------------------------------------------------------------------------

    async def send_status(
        self, message: str | None = None, metadata: dict[str, Any] | None = None
    ) -> None:
        """Tell subscribers that the task is worked on, and how far it is.

        `metadata`, JSON values by name, is for programs.

        >>> await ctx.send_status("Page 3 of 10")
        >>> await ctx.send_status("Searching", {"tool": {"name": "search"}})
        """
        if self._is_open("send_status"):
            status = self._said(TaskState.TASK_STATE_WORKING, message)
            if metadata:
                status.metadata.CopyFrom(_struct(metadata))
            await self._turn.emit(status)

    async def progress(self, done: float, total: float, text: str | None = None) -> None:
        """Tell subscribers that `done` of `total` is done: command line and console show a bar.

        It is sent as a status with `{"progress": {"done": 3, "total": 10}}` as its metadata, and
        `text` as its message. A call that changes neither the whole percents nor the text sends
        nothing, so that it may stand in a loop.

        >>> await ctx.progress(3, 10, "Reading page 3")

        Raises:
            ValueError: `total` is not above 0.
        """
        progress = Progress.of(done, total)
        told = (progress.percent, text)
        if not self._is_open("progress") or told == self._told:
            await asyncio.sleep(0)  # a loop of these calls hears a cancel, too
            return
        self._told = told
        status = self._said(TaskState.TASK_STATE_WORKING, text)
        status.metadata.CopyFrom(progress.metadata())
        await self._turn.emit(status)

    async def emit_text_artifact(
        self,
        text: str,
        artifact_id: str = "answer",
        *,
        append: bool = False,
        last_chunk: bool = False,
    ) -> None:
        """Add an artifact of text; with `append`, add the next chunk to one.

        Streams show the chunks; the task has one text once the artifact has ended.

        >>> await ctx.emit_text_artifact("Once upon", "story")
        >>> await ctx.emit_text_artifact(" a time.", "story", append=True, last_chunk=True)
        """
        await self.emit_artifact(
            artifact_id=artifact_id, text=expect_text(text), append=append, last_chunk=last_chunk
        )

    async def emit_data_artifact(
        self,
        data: Any,
        artifact_id: str = "answer",
        media_type: str = "application/json",
        *,
        append: bool = False,
        last_chunk: bool = False,
    ) -> None:
        """Add an artifact of `data`, any JSON value; with `append`, add the next chunk to one.

        >>> await ctx.emit_data_artifact({"rows": 12}, "statistics")
        """
        await self.emit_artifact(
            artifact_id=artifact_id,
            data=data,
            media_type=media_type,
            append=append,
            last_chunk=last_chunk,
        )

    async def emit_artifact(  # noqa: PLR0913 - the fields of an artifact
        self,
        artifact_id: str,
        *,
        text: str | None = None,
        data: Any = None,
        file_bytes: bytes | None = None,
        file_url: str | None = None,
        media_type: str = "",
        filename: str = "",
        name: str = "",
        description: str = "",
        append: bool = False,
        last_chunk: bool = False,
        metadata: dict[str, Any] | None = None,
        extensions: Sequence[str] = (),
    ) -> None:
        """Add an artifact with a part for each content given; with `append`, add its next chunk.

        Without `append` the new artifact replaces one with the same id.

        >>> url = "https://example.com/report.pdf"
        >>> await ctx.emit_artifact("report", file_url=url, media_type="application/pdf")

        Raises:
            ValueError: there is no content, or (InvalidArgumentError) `data` is no JSON value.
        """
        artifact_id, given = own_text(artifact_id), text
        if text is not None:
            text = self._joined(
                artifact_id, expect_text(text), append=append, last_chunk=last_chunk
            )
        parts = _parts(text, data, file_bytes, file_url)
        if append and given and not text and len(parts) == 1:
            await asyncio.sleep(0)  # half a character: it comes with the next chunk
            return
        for part in parts:
            part.media_type, part.filename = own_text(media_type), own_text(filename)
        artifact = Artifact(
            artifact_id=artifact_id,
            name=own_text(name),
            description=own_text(description),
            parts=parts,
            metadata=_struct(metadata) if metadata else None,
            extensions=extensions,
        )
        if self._is_open("emit_artifact"):
            await self._publish_artifact(artifact, append=append, last_chunk=last_chunk)

    async def emit_file(
        self,
        source: Source,
        artifact_id: str = "file",
        *,
        media_type: str = "",
        filename: str = "",
        name: str = "",
        append: bool = False,
        last_chunk: bool = False,
    ) -> None:
        """Add an artifact with a file of any size, from a path or an open binary file.

        With `append` the file becomes the artifact's next part. The whole file is never in memory.
        Clients get a small file in the answer itself, and a large one as a link that is made anew
        for each answer. `filename` is that of a path unless it is given.

        >>> from io import BytesIO
        >>> file = BytesIO(b"%PDF-1.7 ...")
        >>> await ctx.emit_file(file, media_type="application/pdf", filename="report.pdf")

        Raises:
            WrongCallError: it is no file that can be read.
            OSError: the path cannot be opened.
        """
        if not self._is_open("emit_file"):
            return
        named = filename or (Path(source).name if isinstance(source, str | os.PathLike) else "")
        put = self._turn.files.put(source, own_text(media_type), own_text(named))
        part = await self._turn.at_home(put)
        artifact = Artifact(artifact_id=own_text(artifact_id), name=own_text(name), parts=[part])
        await self._publish_artifact(artifact, append=append, last_chunk=last_chunk)

    # -- files ---------------------------------------------------------------------------------

    async def read_file(self, file: FileInfo) -> bytes:
        """Return the content of one of `ctx.files`, or of `files` of a message or artifact before.

        >>> contents = [await ctx.read_file(file) for file in ctx.files]

        Raises:
            WrongCallError: it has a client's own URL, which the agent may fetch itself; or it is
                not stored any more.
        """
        return b"".join([chunk async for chunk in self._turn.file_chunks(file)])

    async def save_file(self, file: FileInfo, path: str | os.PathLike[str]) -> None:
        """Write the content of a file to a path; the whole file is never in memory.

        >>> for file in ctx.files:
        ...     await ctx.save_file(file, "/tmp/" + file.filename)

        Raises:
            WrongCallError: as `read_file`.
            OSError: the path cannot be written.
        """
        with await asyncio.to_thread(Path(path).open, "wb") as target:
            async for chunk in self._turn.file_chunks(file):
                await asyncio.to_thread(target.write, chunk)

    async def link_to(self, file: FileInfo) -> str:
        """Return a new link to a file that has a URL of this service; it lives for minutes.

        >>> links = [await ctx.link_to(file) for file in ctx.files if file.url]

        Raises:
            WrongCallError: as `read_file`.
        """
        return await self._turn.at_home(self._turn.files.link(file))

    # -- long work -----------------------------------------------------------------------------

    async def sleep(self, seconds: float, *, key: str = "") -> None:
        """Wait; a cancel ends the wait with CancelledError, also in a thread's own event loop.

        From a minute on no process waits, except in a step. The call raises TurnParked, and the
        turn goes on after that time, up to a minute late. Its code runs again from the beginning,
        and what it has recorded by `step` does not run again. A cancel, or the deletion of the
        task, counts at once. A shorter sleep is recorded with what is recorded next, and not
        repeated.

        Asyncio tasks that sleep for a minute or more beside one another need a `key` each, as in
        `step`; the task of the agent itself needs none.

        In a test of the agent there is no wait: the test's clock moves to the end of the sleep.

        >>> await ctx.sleep(0.5)

        Raises:
            TurnParked: the turn goes on in another process.
            WrongCallError: `seconds` is no number from 0 on, or the task expires before.
        """
        seconds, step_id = seconds_of(seconds), None
        if current_step() is None and not self.is_cancelled:
            if seconds >= PARK_S:
                refuse_place("ctx.sleep")
            journal, in_main = self._turn.journal, self._turn.is_main_task
            step_id = journal.sleep_id(key, in_main=in_main, seconds=seconds)
        await self._sleep(step_id, seconds)

    async def sleep_until(self, when: datetime) -> None:
        """Wait until a time with a time zone, as `sleep` does.

        >>> from datetime import UTC, datetime
        >>> await ctx.sleep_until(datetime.now(UTC))

        Raises:
            TurnParked: the turn goes on in another process.
            WrongCallError: `when` is no such time, or the task expires before.
        """
        seconds = seconds_until(when, self._turn.lease.clock.now_ms())
        is_plain = current_step() is not None or self.is_cancelled
        if seconds >= PARK_S and not is_plain:
            refuse_place("ctx.sleep_until")
        # The time is all that tells it from other sleeps: two until the same time are one.
        await self._sleep(None if is_plain else StepId(SLEEP, when.isoformat(), 1), seconds)

    async def _sleep(self, step_id: StepId | None, seconds: float) -> None:
        """Sleep in this process; or, known by an identity, as far as the records of the turn go."""
        if step_id is None or (seconds < PARK_S and self.turn_ended):
            await self._turn.wait_here(seconds)
        elif self._is_open("sleep"):
            await self._turn.sleep(step_id, seconds)

    async def step(
        self,
        name: str,
        func: Callable[..., Any],
        *args: Any,
        key: str = "",
        type: Any = None,  # noqa: A002 - as pydantic names it
        retry: Retry = ONCE,
        **kwargs: Any,
    ) -> Any:
        """Call a function once in this turn, and record what it returns.

        When the turn goes on in another attempt, its code runs again from the beginning, and the
        step returns what it has recorded. It is one of its name and `key` by the order of the
        calls; only one asyncio task may use the same ones. A step that is under way when its
        process dies runs again: `ctx.step_id` is the same then. A blocking function runs in a
        thread. A step inside a step is a plain call.

        The result is a JSON value or bytes, or anything that pydantic can write and read as `type`.
        It has at most 50 MB, or 1 MB in a table without a store for large content. It is given back
        as it is read from its record. What the step emits is kept with the record; while several
        steps run at once, their artifacts go out with it.

        `retry` tries the step again after an exception. Otherwise the exception becomes a
        StepError, in this attempt and in later ones if the agent goes on after catching it.

        >>> from a2a_serverless.worker import Retry
        >>> words = await ctx.step("split", str.split, "to be or not")
        >>> total = await ctx.step("count", len, words, retry=Retry(tries=3))

        Raises:
            StepError: the function has raised; the cause is its exception.
            TurnParked: the turn goes on in another process.
            WrongCallError: the name, the order or the result cannot be recorded; the message has
                the right call.
        """
        takes = "ctx.step takes a name that does not begin with 'ctx.', as the runtime's own do"
        expect(name, lambda it: not str(it).startswith("ctx."), takes, "`'search'`")
        way = "`await ctx.step('search', search, 'Lisbon')`, not `search('Lisbon')` in its place"
        expect(func, callable, "ctx.step takes a name, a function and its arguments", way)
        takes = "ctx.step takes as `retry` a Retry(tries=…)"
        expect(retry, Retry, takes, "`retry=Retry(tries=3)`")
        work = partial(self._stepped, func, *args, **kwargs)
        is_plain = current_step() is not None or self.is_cancelled
        if is_plain or not self._is_open("step"):
            return await work()
        step_id = self._turn.journal.id_of(name, key)
        return await self._turn.step(step_id, work, Codec.of(type), retry)

    async def ask(
        self,
        question: str,
        *,
        data: Any = None,
        schema: Any = None,
        timeout_s: float | None = None,
        auth: str | None = None,
        id: str = "",  # noqa: A002 - as the protocol's draft names it
    ) -> Answer:
        """Ask the client, and go on with the answer: also days later, in another process.

        The task is input-required meanwhile, and no process waits. The call raises TurnParked. The
        client's next message is the answer: with it the code runs again from the beginning, and
        what it has recorded by `step` does not run again. `ctx.user_text` and the other names of
        the message stay those of the first one.

        Several questions may be asked at once, as by `ctx.gather`, if each has an `id`. The parts
        of the task's status have it in their metadata as `questionId`. A message answers those that
        its parts name in the same way, or all of them; what is left open is asked again.

        An answer that does not fit `schema`, a type that pydantic reads, is asked for again, three
        times in all. `data`, any JSON value, goes out beside the question, for programs. With
        `auth`, the address at which the user signs in, the task is auth-required instead.

        >>> answer = await ctx.ask("Which account?", data={"accounts": ["a", "b"]})
        >>> people = await ctx.ask("For how many people?", schema=int, timeout_s=86_400)

        Raises:
            TurnParked: the client is asked.
            WaitTimeoutError: there is no answer within `timeout_s`.
            WrongAnswerError: no answer has fitted. If the agent does not catch it, the task fails.
            WrongCallError: it is called in a step or in a thread, or the task expires before the
                end of `timeout_s`; the message has the right call.
        """
        self._refuse_ask(timeout_s, id)
        kind, about = None, dict[str, Any]()
        if schema is not None:
            kind, shape = type_of(schema)
            about["schema"] = shape
        if self.turn_ended:
            raise RuntimeError("The turn has ended already: ask before its end.")
        step_id = self._turn.journal.id_of(ASK, id)
        named = {ID_FIELD: id_on_parts(step_id)}
        parts, state = [text_part(question)], TaskState.TASK_STATE_INPUT_REQUIRED
        if data is not None:
            parts.append(data_part(data))
        if auth is not None:
            state = TaskState.TASK_STATE_AUTH_REQUIRED
            parts.append(data_part({"authUrl": own_text(auth)}))
        for part in parts:
            part.metadata.CopyFrom(_struct(named))
        parts[0].metadata.CopyFrom(_struct(named | about))
        asked = Question(id=step_id, status=self._said(state, None, *parts), type=kind)
        return await self._turn.ask(asked, timeout_s)

    async def poll(
        self,
        name: str,
        look: Callable[..., Any],
        *args: Any,
        every_s: float = 60,
        cap_s: float | None = None,
        timeout_s: float = DAY_S,
        key: str = "",
        type: Any = None,  # noqa: A002 - as of `step`
    ) -> Any:
        """Call a function until it returns something other than None; record that, as a step's.

        It is called every `every_s` seconds; with `cap_s` the waits grow by half each, up to that.
        From a minute on no process waits: the call raises TurnParked, and the code runs again. A
        shorter wait writes nothing. A fault that passes, such as a service that does not answer,
        counts as None. The name, `key` and `type` are as those of a step.

        >>> rows = await ctx.poll("export", lambda: [1, 2], every_s=60, timeout_s=3600)

        Raises:
            StepError: the function has raised; the cause is its exception.
            TurnParked: the turn goes on in another process.
            WaitTimeoutError: it has returned None for `timeout_s`. If the agent does not catch it,
                the task fails with a sentence.
            WrongCallError: it is called in a step, its result cannot be recorded, or the task
                expires before the end of `timeout_s`.
        """
        refuse_place("ctx.poll")
        way = "`await ctx.poll('export', exports.url_of, job, every_s=60)`"
        expect(name, str, "ctx.poll takes a text as its name", way)
        expect(look, callable, "ctx.poll takes a name, a function and its arguments", way)
        cap_s = every_s if cap_s is None else cap_s
        seconds_in("ctx.poll", every_s=every_s, cap_s=cap_s, timeout_s=timeout_s)
        if self.is_cancelled:
            raise asyncio.CancelledError
        if self.turn_ended:
            raise RuntimeError("The turn has ended already: wait before its end.")
        step_id = self._turn.journal.id_of(f"{POLL}{name}", key)
        work, looks = partial(self._stepped, look, *args), Looks(base_s=every_s, cap_s=cap_s)
        return await self._turn.poll(step_id, work, Codec.of(type), looks, timeout_s)

    async def callback(self, name: str, *, key: str = "") -> Callback:
        """Return an address of this service; the first POST to it ends the wait for it.

        Send the address where something is to be confirmed. It cannot be guessed, and is the same
        however often the code runs. A GET shows a page with a button that posts, as mail scanners
        follow links. Name and `key` are as those of a step.

        >>> callback = await ctx.callback("paid")
        >>> await ctx.send_status(f"Confirm at {callback.url}")
        >>> posted = await callback.wait(timeout_s=3600)

        Raises:
            WrongCallError: it is called in a step or a thread, or the service's address is not
                known.
        """
        refuse_place("ctx.callback", is_home=self._turn.is_home)
        expect(name, str, "ctx.callback takes a text as its name", "`await ctx.callback('paid')`")
        step_id = self._turn.journal.id_of(f"{CALLBACK}{name}", key)
        return Callback(self._turn, step_id, await self._turn.callback_url(step_id))

    def _refuse_ask(self, timeout_s: float | None, question_id: str) -> None:
        """Raise WrongCallError if a question cannot be asked here, or so."""
        refuse_place("ctx.ask", is_home=self._turn.is_home)
        way = "`await ctx.ask('Which account?', id='account', timeout_s=3600)`"
        takes = f"ctx.ask takes as `id` a text without '#', of at most {MAX_NAME} characters"
        expect(
            question_id,
            lambda it: isinstance(it, str) and len(it) <= MAX_NAME and "#" not in it,
            takes,
            way,
        )
        takes = "ctx.ask takes as `timeout_s` seconds, a number from 0 on, or None"
        expect(timeout_s, lambda it: it is None or is_seconds(it), takes, way)

    async def call_agent(  # noqa: PLR0913 - what is said, and how it is waited for
        self,
        agent: str | AgentCard | Remote,
        message: str,
        *,
        data: Any = None,
        files: Sequence[FileInfo] = (),
        metadata: Mapping[str, Any] | None = None,
        context_id: str = "",
        key: str = "",
        timeout_s: float = DAY_S,
        on_text: OnText | None = None,
    ) -> Reply:
        """Send a message to another agent, and return what its task comes to.

        That is its result, its question, its failure, or why it could not be called: look at
        `reply.state`. After ten seconds no process waits, and the call raises TurnParked. When the
        turn goes on, its code runs again from the beginning, and the message is not sent again. The
        call is one of its agent and `key`, as a step is of its name. In a step it waits in its
        process instead.

        A cancel of this task cancels the other one, also while no process has this task; so does
        the end of `timeout_s`.

        >>> reply = await ctx.call_agent("books", "a book on tea", data={"most": 20})
        >>> await ctx.complete(reply.text)

        Args:
            agent: its name in `Worker.agents`; or a URL, a card or a Remote.
            message: the text.
            data: a JSON value that goes with it.
            files: such as `ctx.files`, at most 8 MB together.
            metadata: of the message, JSON values by name.
            context_id: the conversation with the agent; by default a new one.
            key: tells calls of one agent in several asyncio tasks apart.
            timeout_s: seconds until the other task has to end or ask.
            on_text: a function that gets the text of its artifacts piece by piece, as it comes, and
                may emit it. The call stays in its process while it comes.

        Raises:
            TurnParked: the turn goes on in another process.
            WaitTimeoutError: there was neither an end nor a question in time.
            WrongCallError: an argument is wrong, or the call is in a thread or a poll's function;
                the message says how it is right.
            FinalError: too many agents have called one another.
        """
        self._refuse_call(timeout_s, on_text)
        depth = depth_of(self.metadata)
        said = Said(
            parts=parts_of(message, data),
            files=files,
            metadata={**json_of(_struct(dict(metadata or {}))), DEPTH: depth + 1},
            context_id=context_id,
        )
        return await AgentCall(self._turn, agent, key, on_text).reply(said, timeout_s)

    def _refuse_call(self, timeout_s: float, on_text: OnText | None) -> None:
        """Raise WrongCallError if another agent cannot be called here, or so."""
        if self.turn_ended:
            raise RuntimeError("The turn has ended already: call the agent before its end.")
        refuse_place(CALL, is_home=self._turn.is_home)
        takes = "ctx.call_agent takes as `timeout_s` seconds, a number from 0 on"
        way = "`await ctx.call_agent('books', 'a book on tea', timeout_s=3600)`"
        expect(timeout_s, is_seconds, takes, way)
        takes, way = "ctx.call_agent takes as `on_text` a function", "`on_text=show`"
        expect(on_text, lambda it: it is None or callable(it), takes, way)

    def usage(
        self,
        model: str,
        *,
        input_tokens: int = 0,
        output_tokens: int = 0,
        cached_tokens: int = 0,
        calls: int = 1,
    ) -> None:
        """Count what a call of a model has used; adapters of frameworks do it by themselves.

        `cached_tokens` are those of the input that the provider has read from its cache. The counts
        are stored with the next commit. Call it in the step that calls the model: what a recorded
        step has used counts once, however often the turn's code runs again.

        >>> ctx.usage("gpt-5", input_tokens=1200, output_tokens=300, cached_tokens=1000)

        Raises:
            WrongCallError: a count is negative, larger than a billion, or no whole number.
            BudgetError: a budget was used up before this call; the turn fails with a sentence.
        """
        counts = Usage(model, calls, input_tokens, output_tokens, cached_tokens)
        if self._is_open("usage"):  # after the end no commit follows that could store it
            self._turn.outbox.meter.count(counts)

    def check_budget(self) -> None:
        """Return if the next call of a model may be made; adapters of frameworks ask by themselves.

        >>> ctx.check_budget()

        Raises:
            BudgetError: a budget is used up; the turn fails with a sentence.
        """
        self._turn.outbox.meter.check()

    @property
    def step_id(self) -> str:
        """Return the id of the step that runs, the same each time that it runs.

        Services take such an id to do a thing once: an idempotency key.

        Raises:
            RuntimeError: the code is outside of steps.
        """
        running = current_step()
        if running is None:
            raise RuntimeError(
                "ctx.step_id is the id of a step: read it in a function of ctx.step."
            )
        return key_of(*self._turn.key, running.id)

    async def _stepped(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        step = current_step()
        try:
            if inspect.iscoroutinefunction(func):
                made = await func(*args, **kwargs)
            else:
                made = await self.run_sync(func, *args, **kwargs)
                made = await made if inspect.isawaitable(made) else made
            await self._send_halves([step])  # what the step says is kept with its record
        finally:  # of a try that has failed nothing is kept
            for key in [each for each in self._turn.halves if step and each[0] is step]:
                del self._turn.halves[key]
        return made

    async def gather(self, *work: Awaitable[T]) -> list[T]:
        """Do several things at once; return their results in order.

        When one of them raises, or the client cancels, the others are cancelled and waited for, so
        that nothing runs on after the turn.

        >>> first, second = await ctx.gather(ctx.load_context(), ctx.load_context())

        Raises:
            WrongCallError: one of them cannot be awaited.
        """
        refuse_work(work)
        running: list[asyncio.Future[T]] = []
        try:
            for one in work:
                running.append(asyncio.ensure_future(one))  # noqa: PERF401 - what was begun is ended
            waiting = set(running)
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    task.result()  # an error or a cancel of one ends all
            return [task.result() for task in running]
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def run_sync(self, func: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run a blocking function in a thread, and return what it returns.

        If it were called directly, it would hold up the event loop, and with it a cancel and the
        turns that share the worker. A cancel waits for the function's end, as long as a cancel may
        take, and leaves the thread behind after that; a long function should look at
        `ctx.is_cancelled`.

        >>> total = await ctx.run_sync(sum, [1, 2, 3])

        Raises:
            WrongCallError: `func` is an async function, or none.
        """
        expect(
            func,
            is_plain_function,
            "ctx.run_sync takes a blocking function and its arguments",
            "`await ctx.run_sync(func, 1)`, not `func(1)` in its place; an async one is awaited"
            " as it is, `await func(1)`",
        )
        context = contextvars.copy_context()
        running = asyncio.get_running_loop().run_in_executor(
            None, lambda: context.run(func, *args, **kwargs)
        )
        with self._turn.busy():
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                try:
                    await asyncio.wait([running])
                finally:
                    _leave(running)
                raise

    # -- the conversation's state --------------------------------------------------------------

    async def load_context(self) -> Any | None:
        """Return the state that the tasks of this context share, a JSON value; None if none is set.

        >>> state = await ctx.load_context() or {"visits": 0}
        """
        return await self._turn.load_state()

    async def update_context(
        self, value: Any, *, merge: Callable[[Any, Any], Any] | None = None
    ) -> None:
        """Store the state with this turn's ending, in the same commit.

        Until then only `load_context` of this attempt shows it. An attempt without an ending of
        its own (it raises, dies, is canceled, or returns) leaves the state as it was.

        When another task has changed the state since this turn loaded it, the ending is refused
        and the turn starts over, so that no update is lost. If the turn has not loaded the state,
        the same holds from this call on: the value replaces the state that is stored now, and none
        that is stored later. A turn that has recorded steps does not start over: its task fails.

        With `merge` neither happens: `merge(stored, value)` returns the state to store, from the
        one that another task has stored (None if it is gone) and this turn's own.

        >>> state = await ctx.load_context() or {"visits": 0}
        >>> await ctx.update_context({"visits": state["visits"] + 1})
        >>> await ctx.update_context(["tea"], merge=lambda stored, own: [*(stored or []), *own])

        Raises:
            InvalidArgumentError: `value` is no JSON value.
            WrongCallError: `merge` is an async function, or none.
            StateTooLargeError: `value` is larger than what can be kept. If the agent does not
                catch the error, the task fails at once, with a sentence for the client.
        """
        if merge is not None:
            expect(
                merge,
                is_plain_function,
                "ctx.update_context takes as `merge` a function of two states that is not async",
                "`merge=lambda stored, own: {**(stored or {}), **own}`",
            )
        if self._is_open("update_context"):
            await self._turn.store_state(value, merge)

    # ------------------------------------------------------------------------------------------

    async def _end(self) -> None:
        """Note the ending. Call it after making the event: if that raises, the turn goes on."""
        if self._has_ended or self._turn.has_ended:
            raise RuntimeError("The turn has ended already: end it exactly once.")
        self._has_ended = True
        if self._turn.halves:
            await self._send_halves([step for step, _ in self._turn.halves])

    def _joined(self, artifact_id: str, text: str, *, append: bool, last_chunk: bool) -> str:
        """Return the text of a chunk with the half of a character before it.

        Models stream halves of surrogate pairs. One at the end is kept for the next chunk.
        """
        key = current_step(), artifact_id
        before = self._turn.halves.pop(key, "")
        text = before + text if append else text
        whole, half = without_half(text)
        if last_chunk or not half:
            return text
        self._turn.halves[key] = half
        return whole

    async def _send_halves(self, steps: Sequence[ActiveStep | None]) -> None:
        """Send the halves of characters for which no next chunk comes, of what the steps said."""
        for key in [each for each in self._turn.halves if each[0] in steps]:
            parts = [text_part(self._turn.halves.pop(key))]
            artifact = Artifact(artifact_id=key[1], parts=parts)
            await self._publish_artifact(artifact, append=True, last_chunk=False)

    def _is_open(self, method: str) -> bool:
        if self.turn_ended:
            extra = {"action": "call_after_end", "task_id": self.task_id, "method": method}
            place = self._calls.last_place
            logger.warning("Call after the end of the turn: ctx.%s, %s", method, place, extra=extra)
        return not self.turn_ended

    async def _complete_with(self, parts: list[Part], artifact_id: str) -> None:
        artifact = Artifact(artifact_id=own_text(artifact_id), parts=parts)
        await self._end()
        if parts:
            await self._publish_artifact(artifact, append=False, last_chunk=True)
        await self._turn.emit(self._said(TaskState.TASK_STATE_COMPLETED))

    async def _end_in(self, state: TaskState, text: str | None) -> None:
        status = self._said(state, text)
        await self._end()
        await self._turn.emit(status)

    def _said(
        self, state: TaskState, text: str | None = None, *parts: Part
    ) -> TaskStatusUpdateEvent:
        """Return a status whose message has a text and these parts; it has none without both."""
        if text is not None:
            parts = (Part(text=own_text(text)), *parts)
        task_id, context_id = self._request.task_id, self._request.context_id
        message = None
        if parts:
            message = Message(
                message_id=str(uuid.uuid4()),
                role=Role.ROLE_AGENT,
                task_id=task_id,
                context_id=context_id,
                parts=parts,
            )
        status = TaskStatus(state=state, message=message)
        return TaskStatusUpdateEvent(task_id=task_id, context_id=context_id, status=status)

    async def _publish_artifact(
        self, artifact: Artifact, *, append: bool, last_chunk: bool
    ) -> None:
        await self._turn.emit(
            TaskArtifactUpdateEvent(
                task_id=self.task_id,
                context_id=self.context_id,
                artifact=artifact,
                append=append,
                last_chunk=last_chunk,
            )
        )


class Callback:
    """An address whose first POST ends a wait of the agent's code.

    >>> callback = await ctx.callback("paid")
    >>> posted = await callback.wait(timeout_s=3600)
    """

    def __init__(self, turn: ActiveTurn, step_id: StepId, url: str) -> None:
        self._turn = turn
        self._step_id = step_id
        self.url = url
        """It ends the wait for anyone who has it, once."""

    async def wait(self, *, timeout_s: float = DAY_S, schema: Any = None) -> Posted:
        """Return what was posted; no process waits meanwhile, and the call raises TurnParked.

        `schema`: the type of `data`, as of `ctx.ask`.

        >>> posted = await callback.wait(timeout_s=3600)

        Raises:
            TurnParked: the turn goes on with the POST.
            WaitTimeoutError: nothing was posted within `timeout_s`. If the agent does not catch it,
                the task fails with a sentence.
            WrongAnswerError: what was posted does not fit `schema`.
            WrongCallError: it is called in a step or a thread, or the task expires before.
        """
        refuse_place("callback.wait", is_home=self._turn.is_home)
        seconds_in("callback.wait", timeout_s=timeout_s)
        kind = None if schema is None else type_of(schema, "callback.wait")[0]  # before it waits
        found = await self._turn.signal(self._step_id, timeout_s)
        if found is None:
            raise timed_out(self._step_id)
        return Posted.of(Signal.of(found), kind)


def active_turn(ctx: TaskContext) -> ActiveTurn:
    """Return the turn itself, for what in this package goes deeper than an agent does."""
    return ctx._turn  # noqa: SLF001 - of this module, and not part of an agent's `ctx`


class Worker(ABC):
    """An agent: implement `handle`. One instance serves all turns, several at a time."""

    agents: Mapping[str, Remote] = MappingProxyType({})
    """The other agents that `ctx.call_agent` calls by name. A cancel finds their credentials here
    while no code of the turn runs."""

    keeps_conversation: ClassVar[bool] = False
    """True: the agent keeps a state of its conversations, whose turns run one after the other, in
    the order in which their messages were accepted. It needs A2A_CONVERSATIONS=serial."""

    @abstractmethod
    async def handle(self, ctx: TaskContext) -> None:
        """Work on one turn and end it, by exactly one ending of `ctx`.

        A cancel by the client raises CancelledError at the next `await`. TurnParked comes out of a
        call of `ctx` when the turn falls asleep or is handed over: let it pass. An exception is
        retried, from the start of the turn, unless it is a `FinalError`.

        >>> async def handle(self, ctx: TaskContext) -> None:
        ...     await ctx.complete(f"You said: {ctx.user_text}")
        """

    async def cancel(self, ctx: TaskContext) -> None:  # noqa: B027 - most have nothing to do
        """Release what a cancelled task holds elsewhere, such as a job that it has started.

        Called after `handle` was cancelled, or while the turn is in no process, as when it sleeps.
        It may end the task by an ending of `ctx`. Otherwise the task is canceled, and the
        conversation's state stays as it was before the turn.

        >>> async def cancel(self, ctx: TaskContext) -> None:
        ...     await self.jobs.delete(ctx.task_id)
        """


class WorkerExecutor(AgentExecutor):
    """A `Worker` behind the official SDK's interface."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.handler = worker.handle
        self.keeps_conversation = worker.keeps_conversation

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        ctx = TaskContext(context, event_queue)
        if self._worker.agents:
            self._name_agents(active_turn(ctx))
        await called(self._worker.handle, ctx)

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        ctx = TaskContext(context, event_queue)
        self._name_agents(active_turn(ctx))
        await called(self._worker.cancel, ctx)

    def _name_agents(self, turn: ActiveTurn) -> None:
        turn.agents = {**self._worker.agents, **turn.agents}  # those of a test come first


def _leave(running: asyncio.Future[T]) -> None:
    """Log a thread that runs on; retrieve its exception, which asyncio would report as lost."""
    running.add_done_callback(lambda done: done.cancelled() or done.exception())
    if not running.done():
        text = "A function of ctx.run_sync runs on in its thread after the turn was canceled"
        logger.warning(text, extra={"action": "thread_left_behind"})


def _parts(
    text: str | None, data: Any, file_bytes: bytes | None, file_url: str | None
) -> list[Part]:
    parts = []
    if text is not None:
        parts.append(text_part(text))
    if data is not None:
        parts.append(data_part(data))
    if file_bytes is not None:
        way = "`file_bytes=path.read_bytes()`, `text.encode()` or `bytes(…)`"
        expect(file_bytes, bytes, "ctx.emit_artifact takes bytes as file_bytes", way)
        parts.append(Part(raw=file_bytes))
    if file_url is not None:
        parts.append(Part(url=own_text(file_url)))
    if not parts:
        raise ValueError("An artifact needs text, data, file_bytes or file_url.")
    return parts


def _struct(fields: dict[str, Any]) -> Struct:
    struct = Struct()
    try:
        sendable(struct.update, fields)
    except (TypeError, ValueError, OverflowError) as error:
        raise refused_data(fields, error, "a JSON value as metadata") from error
    return struct
