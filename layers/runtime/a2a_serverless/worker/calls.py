"""Calls of other agents: as the agent's code makes them, and as the records of its turn have them.

A call has three records of one key and number: the message before it is sent, the task that it has
opened, and what that has come to. So a message is sent again under the same id with the same
content after a kill, and a cancel finds what was sent though the code does not run.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AsyncExitStack,
    aclosing,
    contextmanager,
    suppress,
)
from copy import copy
from dataclasses import field, replace
from functools import partial
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from a2a.helpers import get_text_parts
from a2a.types import (
    AgentCard,
    Artifact,
    Message,
    Part,
    Role,
    SendMessageRequest,
    Task,
    TaskState,
)
from google.protobuf.json_format import ParseDict, SerializeToJsonError

from a2a_serverless.addresses import Receiver
from a2a_serverless.errors import A2AServerlessError
from a2a_serverless.observability import spans
from a2a_serverless.tasks.blobs import linked_blob
from a2a_serverless.tasks.entries import StepId, copied, data_of, json_of
from a2a_serverless.tasks.head import INTERRUPTED, TERMINAL, is_terminal, plain_state, state_name
from a2a_serverless.tasks.identity import digest
from a2a_serverless.tasks.waits import CALL, CALL_OPEN, CALL_SENT
from a2a_serverless.values import dataclass
from a2a_serverless.worker.failures import FinalError, WrongCallError, data_part, text_part
from a2a_serverless.worker.files import FileInfo, PreviousArtifact, artifacts_of, files_of
from a2a_serverless.worker.questions import WaitTimeoutError
from a2a_serverless.worker.steps import (
    MAX_NAME,
    ONCE,
    PARK_S,
    ActiveStep,
    Codec,
    Retry,
    current_step,
    key_of,
)
from a2a_serverless.worker.turn import ActiveTurn

if TYPE_CHECKING:
    import httpx

    from a2a_serverless.worker.remotes import RemoteClient

logger = logging.getLogger(__name__)

_MESSAGE: Final = f"{CALL}.message"
_TEXT: Final = f"{CALL}.text"
_REST: Final = f"{CALL}.rest"
DAY_S: Final = 86_400.0
DEPTH: Final = "a2a-serverless/call-depth"
"""In the metadata of a message: how many agents have called one another up to it."""
MAX_DEPTH: Final = 8
_LOOKS: Final = 5
_EVERY_S: Final = 2.0
"""So many looks are made, so many seconds apart, before the turn may leave its process."""
_LONGEST_S: Final = 600.0
"""The longest wait from one look to the next."""
_TOLD_S: Final = 3600.0
"""That wait where the other agent was asked to notify this one: the delay if that gets lost."""
_MOST_INTERNAL: Final = 3
"""Internal errors of another agent, in one process, after which it counts as failed."""
MOST_FILES: Final = 8_000_000
"""The most bytes of files in a message to another agent."""
_NEXT_READ_S: Final = 0.2
"""From one reading of a task whose text is passed on to the next one, at least."""
_SILENCES: Final = 6
"""So many times `_IN_STEP_S` without an event a stream is listened to."""
_IN_STEP_S: Final = 10.0
"""The longest wait from one look to the next in a call that holds its process."""
_MOST_NAME: Final = 100
_ENDED: Final = frozenset(map(state_name, TERMINAL))
_JSON: Final = Codec("json")

OnText: TypeAlias = Callable[[str], Awaitable[None] | None]
"""Gets a piece of another agent's text."""
Outcome: TypeAlias = dict[str, Any]
"""The JSON of a record: what was to be sent, what was opened, or what that has come to."""


class NoAnswerError(Exception):
    """Another agent has not answered, and may do so later."""

    def __init__(self, text: str, *, is_internal: bool = False, after_s: float = 0) -> None:
        super().__init__(text)
        self.is_internal = is_internal
        self.after_s = after_s
        """The seconds until the next look; 0: those of `_Looks`."""


class CallRefusedError(Exception):
    """Another agent cannot be called so; its text is a sentence without its end."""


@dataclass(frozen=True, slots=True)
class Remote:
    """Another agent, with what it takes to call it; `Worker.agents` has them by name.

    Credentials are used for the calls, and neither logged nor stored. They are sent to the host of
    the URL alone, whatever addresses its card names.

    >>> class Shop(Worker):
    ...     agents = {"books": Remote("https://books.example", headers={"X-API-Key": key})}

    Args:
        agent: its URL, below which its card is, or the card itself.
        auth: as for httpx: an `httpx.Auth`, or a user and a password.
        headers: for each request.
        transport: as for httpx, such as one with a client's certificate.
    """

    agent: str | AgentCard
    auth: httpx.Auth | tuple[str, str] | None = field(default=None, kw_only=True, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, kw_only=True, repr=False)
    transport: httpx.AsyncBaseTransport | None = field(default=None, kw_only=True, repr=False)

    @property
    def url(self) -> str:
        """Return its URL, or the first one that its card names; empty if that names none."""
        if isinstance(self.agent, str):
            return self.agent
        return next((each.url for each in self.agent.supported_interfaces), "")

    def connected(
        self, name: str, headers: Mapping[str, str]
    ) -> AbstractAsyncContextManager[RemoteClient]:
        """Return the client of the agent for a block; its sentences have the name.

        >>> async with remote.connected("books", {}) as client:
        ...     task = await client.look(task_id)
        """
        from a2a_serverless.worker.remotes import connected  # noqa: PLC0415 - it takes long

        return connected(self, name, headers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What another agent has answered: its result, its question, or why there is none.

    >>> reply = await ctx.call_agent("books", "a book on tea")
    >>> if reply.state == "input_required":
    ...     reply = await reply.answer("the cheapest one")
    """

    agent: str
    """Its name in `Worker.agents`, or its URL."""
    state: str
    """`completed`, `failed`, `canceled`, `rejected`, `input_required` or `auth_required`. It is
    `failed` as well if the agent could not be called; then `task_id` may be empty."""
    text: str
    """The text of its artifacts, one below the other; without one that of its last message. The
    parts of an artifact follow one another as they are: servers keep each chunk as a part."""
    question: str
    """What it asks, if the state is `input_required` or `auth_required`; else empty."""
    data: Any
    """The JSON value of the first data part of its artifacts, or else of its message; or None."""
    files: list[FileInfo]
    artifacts: list[PreviousArtifact] = field(repr=False)
    task_id: str
    context_id: str
    _answer: Callable[..., Awaitable[Reply]] = field(repr=False, compare=False)

    async def answer(
        self,
        message: str,
        *,
        data: Any = None,
        files: Sequence[FileInfo] = (),
        timeout_s: float = DAY_S,
    ) -> Reply:
        """Answer its question, and wait as `ctx.call_agent` does; return what it comes to then.

        >>> reply = await reply.answer("the cheapest one")

        Raises:
            TurnParked, WaitTimeoutError, WrongCallError: as `ctx.call_agent`.
        """
        if self.state not in ("input_required", "auth_required"):
            raise WrongCallError(
                f"reply.answer: the task of the agent {self.agent} is {self.state}, and asks"
                " nothing: look at `reply.state` first."
            )
        return await self._answer(parts_of(message, data), files, timeout_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Looks(Retry):
    """The waits from one look to the next: the first ones in the process, the others asleep."""

    tries: int = 1_000_000

    def wait_s(self, tried: int, error: BaseException) -> float | None:
        """Return the seconds until the next look; None after what is no want of an answer."""
        if not isinstance(error, NoAnswerError):
            return None
        if error.after_s:
            return error.after_s
        longer_s = PARK_S * 2.0 ** min(tried - _LOOKS - 1, 32)
        return _EVERY_S if tried <= _LOOKS else min(_LONGEST_S, longer_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What the agent's code says to another agent."""

    parts: Sequence[Part] = ()
    files: Sequence[FileInfo] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    task_id: str = ""
    """The task that it goes on with; empty: it opens one."""
    context_id: str = ""
    """The conversation with the agent; empty: one of its own."""
    answers: str = ""
    """What `_status_of` has returned of the question that it answers."""

    async def request(self, turn: ActiveTurn, message_id: str) -> SendMessageRequest:
        """Return the message for the wire; files of this service go into it.

        Raises:
            WrongCallError: a text or a value is none, or the files are too large.
        """
        parts, size = [*self.parts], 0
        for file in self.files:
            part = Part(filename=file.filename, media_type=file.media_type)
            if file.content is None and linked_blob(file.url or "") is None:
                part.url = file.url or ""  # a client's own, which the other agent may fetch
            else:
                async for piece in turn.file_chunks(file):
                    part.raw += piece
                    if (size := size + len(piece)) > MOST_FILES:
                        raise WrongCallError(
                            f"ctx.call_agent sends files of at most {MOST_FILES:,} bytes in a"
                            " message, and these have more: give the other agent a URL in the text"
                            " or in `data`."
                        )
            parts.append(part)
        message = Message(
            message_id=message_id,
            role=Role.ROLE_USER,
            parts=parts,
            task_id=self.task_id,
            context_id=self.context_id or message_id,
        )
        message.metadata.update(self.metadata)
        return SendMessageRequest(message=message)


def _text_of(artifacts: Iterable[Artifact]) -> str:
    """Return the texts of artifacts, one below the other; their parts follow one another."""
    texts = ("".join(get_text_parts(each.parts)) for each in artifacts)
    return "\n".join(filter(None, texts))


def _text_in(outcome: Outcome) -> str:
    """Return the text of an outcome that is passed on: a question's and a failure's are not."""
    if "message" in outcome:
        return "\n".join(get_text_parts(ParseDict(outcome["message"], Message()).parts))
    task = ParseDict(outcome.get("task", {}), Task())
    has_ended = task.status.state == TaskState.TASK_STATE_COMPLETED
    last = "\n".join(get_text_parts(task.status.message.parts)) if has_ended else ""
    return _text_of(task.artifacts) or last


def _passed(given: str) -> Outcome:
    """Return the record of a text that was passed on, which the call's outcome has as a whole."""
    return {"length": len(given), "digest": digest("text", given)}


class AgentCall:
    """The call of an agent by the code of a turn, in one process.

    Args:
        turn: the turn.
        agent: a name in `Worker.agents`, a URL, a card, or a Remote.
        key: tells it from other calls of the agent in other asyncio tasks.
        on_text: gets the text of its artifacts while it grows.
    """

    def __init__(
        self,
        turn: ActiveTurn,
        agent: str | AgentCard | Remote,
        key: str,
        on_text: OnText | None = None,
    ) -> None:
        self._turn = turn
        self._key = key
        self._on_text = on_text
        self._known = ""
        """The text at the question that is answered: it was passed on before."""
        self.name, self._remote = _resolved(turn, agent)

    async def reply(self, said: Said, timeout_s: float) -> Reply:
        """Say something once, and return what comes of it.

        Raises:
            TurnParked: the turn has left this process.
            WaitTimeoutError: there was no end and no question in time.
            WrongCallError: it cannot be said.
        """
        self._stack = AsyncExitStack()
        self._client: RemoteClient | None = None
        self._may_be_there = False
        self._internal = self._looks = 0
        self._step_id: StepId | None = None
        """That of its record; None: it is called in a step."""
        step = current_step()
        async with self._stack:
            if step is None:
                outcome = await self._recorded(said, timeout_s)
            else:
                outcome = await self._within(step, said, timeout_s)
        return self._reply_of(outcome, said)

    async def _recorded(self, said: Said, timeout_s: float) -> Outcome:
        """Return what a call comes to; each record is stored before what follows it begins.

        The text is passed on in steps of its own: a piece of a process that dies is taken back with
        its step.
        """
        turn, wait_id = self._turn, self._turn.journal.id_of(f"{CALL} {self.name}", self._key)
        self._step_id = wait_id
        turn.journal.called[wait_id] = self._remote
        plan_id, sent_id, text_id, rest_id = _ids_beside(wait_id)
        self._may_be_there = turn.journal.found(plan_id) is not None
        message_id = key_of(*turn.key, wait_id)
        planned = partial(self._planned, said, message_id, timeout_s)
        plan = await turn.step(plan_id, planned, _JSON, ONCE)
        until = plan["until"]
        send = partial(self._send, plan)
        sent = await turn.step(sent_id, send, _JSON, _Looks(), deadline=until)
        passed, outcome = _passed(self._known), dict(sent)
        if CALL_OPEN in sent:
            task_id = sent[CALL_OPEN]
            if self._on_text is not None:
                along = partial(self._passed_along, plan, task_id)
                passed = await turn.step(text_id, along, _JSON, ONCE)
            look = partial(self._look, plan, task_id)
            looked = turn.step(wait_id, look, _JSON, _Looks(), deadline=until, delays=_stays)
            outcome = dict(await looked)
        if rest := self._rest(outcome, passed):
            await turn.step(rest_id, partial(self._pass_on, rest), _JSON, ONCE)
        return outcome

    async def _within(self, step: ActiveStep, said: Said, timeout_s: float) -> Outcome:
        """Return what a call in a step comes to: the step is its record, and it waits here.

        The step may have run before, so the message is looked for.
        """
        step.calls[self.name, self._key] += 1
        number = str(step.calls[self.name, self._key])
        own = key_of(*self._turn.key, step.id)
        message_id = digest("call", own, self.name, self._key, number)
        plan = await self._planned(said, message_id, timeout_s)
        self._may_be_there = True
        calls, waits, tried = self._turn.journal.calls, _Looks(), 0
        found: Outcome | None = None
        given = self._known
        while found is None or CALL_OPEN in found:
            tried += 1
            try:
                if found is None:
                    found, tried = await self._send(plan), 0
                    if CALL_OPEN in found:
                        calls[self.name, found[CALL_OPEN]] = self._remote
                else:
                    task_id = found[CALL_OPEN]
                    given = await self._read_along(plan, task_id, given)
                    found = await self._look(plan, task_id)
                    calls.pop((self.name, task_id), None)
            except NoAnswerError as error:
                wait_s = min(waits.wait_s(tried, error) or 0, _IN_STEP_S, self._left_s(plan))
                await self._turn.wait_here(wait_s)
        await self._pass_on(self._rest(found, _passed(given)))
        return found

    async def _passed_along(self, plan: Outcome, task_id: str) -> Outcome:
        return _passed(await self._read_along(plan, task_id, self._known))

    async def _read_along(self, plan: Outcome, task_id: str, given: str) -> str:
        """Pass on the text of a task while its events come; return all that was passed on.

        An event is a sign to read the task: the SDK's server may show a chunk in the first Task of
        a stream and stream it as well, so that chunks cannot be added to what was read. It ends
        with the task, the stream, a minute of silence, or the time of this process.
        """
        if self._on_text is None:
            return given
        changed = asyncio.Event()
        with suppress(CallRefusedError, NoAnswerError):
            client = await self._connected()
            listening = asyncio.create_task(_listen(client, task_id, changed))
            try:
                is_last = False
                while not is_last:
                    is_last = listening.done()
                    changed.clear()
                    task = await client.look(task_id)
                    text = _text_of(task.artifacts)
                    if text.startswith(given):
                        await self._pass_on(text.removeprefix(given))
                        given = text
                    is_last = is_last or self._outcome(task, plan) is not None
                    is_last = is_last or not await self._is_changed(plan, changed)
            finally:
                listening.cancel()
                await asyncio.wait([listening])
        return given

    async def _is_changed(self, plan: Outcome, changed: asyncio.Event) -> bool:
        """Return True after an event; False after a minute without one, or when it is time."""
        await asyncio.sleep(_NEXT_READ_S)
        for _ in range(_SILENCES):
            if self._left_s(plan) <= 0 or self._turn.leaves_within(_IN_STEP_S):
                return False
            with suppress(TimeoutError):
                async with asyncio.timeout(_IN_STEP_S):
                    return await changed.wait()
        return False

    def _rest(self, outcome: Outcome, passed: Outcome) -> str:
        """Return the text of an outcome behind what was passed on; empty if it is another text."""
        text, length = _text_in(outcome), passed["length"]
        is_same = self._on_text is not None and _passed(text[:length]) == passed
        return text[length:] if is_same else ""

    async def _pass_on(self, piece: str) -> None:
        given = self._on_text(piece) if piece and self._on_text is not None else None
        if isawaitable(given):
            await given

    async def _planned(self, said: Said, message_id: str, timeout_s: float) -> Outcome:
        request = await said.request(self._turn, message_id)
        until = self._turn.lease.clock.now_ms() + int(timeout_s * 1000)
        asked = {"answers": said.answers} if said.answers else {}
        return {"request": json_of(request), "until": until} | asked

    def _left_s(self, plan: Outcome) -> float:
        return float(plan["until"] - self._turn.lease.clock.now_ms()) / 1000

    async def _connected(self) -> RemoteClient:
        if self._client is None:
            connecting = self._remote.connected(self.name, spans.trace_context())
            self._client = await self._stack.enter_async_context(connecting)
        return self._client

    async def _send(self, plan: Outcome) -> Outcome:
        """Send a message; return what it comes to at once, or the task that it has opened."""
        request = ParseDict(plan["request"], SendMessageRequest())
        try:
            client = await self._connected()
            found = await client.send(request, may_be_there=self._may_be_there)
        except CallRefusedError as error:
            return self._failed(str(error), request.message.task_id, error)
        except NoAnswerError as error:
            self._may_be_there = True
            return self._unanswered(error, plan, request.message.task_id)
        if outcome := self._outcome(found, plan):
            return outcome
        return {CALL_OPEN: found.id if isinstance(found, Task) else ""}

    async def _look(self, plan: Outcome, task_id: str) -> Outcome:
        """Return what a task has come to.

        Raises:
            NoAnswerError: it is worked on, or cannot be seen now.
        """
        after_s = 0.0
        try:
            client = await self._connected()
            task = await client.look(task_id)
            outcome = self._outcome(task, plan)
            if outcome is None and await self._is_told(client, task_id):
                # Once more: it may have ended before it had the address.
                task = await client.look(task_id)
                outcome, after_s = self._outcome(task, plan), min(_TOLD_S, self._left_s(plan))
        except CallRefusedError as error:
            return self._failed(str(error), task_id, error)
        except NoAnswerError as error:
            return self._unanswered(error, plan, task_id)
        if self._left_s(plan) <= 0 and task.status.state == TaskState.TASK_STATE_CANCELED:
            # An attempt that was killed before its record has canceled it.
            return {"late": f"Its task {task_id} is canceled", "id": task_id}
        if outcome is None:
            state = plain_state(task.status.state)
            is_at_work = NoAnswerError(f"Its task {task_id} is {state}", after_s=after_s)
            outcome = self._unanswered(is_at_work, plan, task_id)
            with suppress(CallRefusedError, NoAnswerError):
                await client.cancel(task_id)
        return outcome

    async def _is_told(self, client: RemoteClient, task_id: str) -> bool:
        """Return True if the other agent notifies this wait of its task.

        It is asked for that when the turn is about to leave its process, or has left it before. A
        notification that has not ended the wait was the only one: the looks are the usual ones.
        """
        self._looks += 1
        step_id, journal = self._step_id, self._turn.journal
        if step_id is None or journal.is_signaled(step_id, 0):
            return False
        if self._looks <= _LOOKS and journal.found(step_id) is None:
            return False
        try:
            url = await self._turn.callback_url(step_id)
            Receiver.parse(url).check_public()
        except A2AServerlessError:  # the address is not known, or no other agent reaches it
            return False
        return await client.register(task_id, url)

    def _outcome(self, found: Task | Message, plan: Outcome) -> Outcome | None:
        """Return what an answer has come to; None: it is worked on."""
        shown, task_id = copied(found), ""
        if isinstance(shown, Task):
            state, task_id = shown.status.state, shown.id
            is_old = state in INTERRUPTED and _status_of(shown) == plan.get("answers")
            if is_old or not (is_terminal(state) or state in INTERRUPTED):
                return None
            shown.ClearField("history")
        try:
            return {"task" if task_id else "message": json_of(shown)}
        except SerializeToJsonError as error:
            why = f"The agent {self.name} has answered with what is no JSON: {error}"
            return self._failed(why.removesuffix("."), task_id)

    def _unanswered(self, error: NoAnswerError, plan: Outcome, task_id: str) -> Outcome:
        """Raise an error, unless it has come too often, or too late."""
        self._internal += error.is_internal
        if self._internal > _MOST_INTERNAL:
            return self._failed(str(error), task_id)
        if self._left_s(plan) > 0:
            raise error
        return {"late": f"{error}", "id": task_id}

    def _failed(self, why: str, task_id: str, error: Exception | None = None) -> Outcome:
        extra = {"action": "call_failed", "task_id": self._turn.lease.head.task_id}
        logger.warning("A call of another agent has failed: %s", why, extra=extra, exc_info=error)
        return {"failed": f"{why}.", "id": task_id}

    def _reply_of(self, outcome: Outcome, said: Said) -> Reply:
        """Return what the agent's code gets of an outcome.

        Raises:
            WaitTimeoutError: it came too late.
        """
        if "late" in outcome:
            late = f"The agent {self.name} has not answered in time"
            raise WaitTimeoutError(
                f"{late}. {outcome['late']}.", client_text=f"{late}: send the message again later."
            )
        task = Task(id=outcome.get("id", ""), context_id=said.context_id)
        state, text = "failed", outcome.get("failed", "")
        parts: Sequence[Part] = ()
        if "message" in outcome:
            state, parts = "completed", ParseDict(outcome["message"], Message()).parts
        elif "task" in outcome:
            ParseDict(outcome["task"], task)
            state, parts = plain_state(task.status.state), task.status.message.parts
        self._known = _text_of(task.artifacts)
        own = [part for artifact in task.artifacts for part in artifact.parts]
        last_text = "\n".join(get_text_parts(parts))
        asks = task.status.state in INTERRUPTED
        goes_on = Said(
            task_id=task.id,
            context_id=task.context_id,
            metadata=said.metadata,
            answers=_status_of(task),
        )
        return Reply(
            agent=self.name,
            state=state,
            text=text or self._known or last_text,
            question=last_text if asks else "",
            data=next(iter([*data_of(own), *data_of(parts)]), None),
            files=files_of([*own, *parts]),
            artifacts=artifacts_of(task),
            task_id=task.id,
            context_id=task.context_id,
            _answer=partial(self._answered, goes_on),
        )

    async def _answered(
        self, said: Said, parts: Sequence[Part], files: Sequence[FileInfo], timeout_s: float
    ) -> Reply:
        if self._step_id is not None:
            self._turn.journal.follow(self._step_id)
        # Not by its name, which may be that of another Remote by now.
        return await copy(self).reply(replace(said, parts=parts, files=files), timeout_s)


def parts_of(message: str, data: Any) -> list[Part]:
    """Return the parts of what is said to another agent.

    Raises:
        WrongCallError: they are no text and no JSON value.
    """
    parts = [text_part(message)] if message else []
    return parts if data is None else [*parts, data_part(data)]


async def cancel_calls(turn: ActiveTurn) -> None:
    """Cancel what other agents still work on for a turn, whether or not its code runs.

    A message that may have been sent is looked for, or sent again under its id, first. What cannot
    be canceled is logged. So is what is still under way when this is cancelled.
    """
    asked = {*turn.journal.calls}
    work = [_cancel_in_step(turn, *call) for call in asked]
    work += [_cancel_recorded(turn, plan_id, asked) for plan_id in turn.journal.ids(_MESSAGE)]
    await asyncio.gather(*work)


async def _cancel_in_step(turn: ActiveTurn, name: str, task_id: str) -> None:
    with _logged(turn, name):
        await _cancel(turn.journal.calls[name, task_id], name, task_id)


async def _cancel_recorded(turn: ActiveTurn, plan_id: StepId, asked: set[tuple[str, str]]) -> None:
    """Cancel the task of a recorded call, unless it has ended or is among those `asked`."""
    name = plan_id.name.removeprefix(f"{_MESSAGE} ")
    wait_id = plan_id._replace(name=f"{CALL} {name}")
    with _logged(turn, name):
        ids = (*_ids_beside(wait_id)[:2], wait_id)
        plan, sent, found = await asyncio.gather(*(_value(turn, each) for each in ids))
        if not plan:
            return
        request, outcome = ParseDict(plan["request"], SendMessageRequest()), found or sent
        task = outcome.get("task", {})
        task_id = outcome.get(CALL_OPEN) or task.get("id", "") or request.message.task_id
        has_ended = task.get("status", {}).get("state", "") in _ENDED
        if has_ended or (outcome and not task_id) or (task_id and (name, task_id) in asked):
            return
        asked.add((name, task_id))
        remote = _remote_of(turn, name, wait_id)
        await _cancel(remote, name, task_id, None if task_id else request)


async def _cancel(
    remote: Remote, name: str, task_id: str, request: SendMessageRequest | None = None
) -> None:
    """Cancel a task of another agent, or the one that a message opens."""
    async with remote.connected(name, spans.trace_context()) as client:
        if request is not None:
            found = await client.send(request, may_be_there=True)
            task_id = found.id if isinstance(found, Task) else ""
        if task_id:
            await client.cancel(task_id)


def _remote_of(turn: ActiveTurn, name: str, wait_id: StepId) -> Remote:
    """Return how the agent of a recorded call is called.

    Raises:
        CallRefusedError: the record has only the beginning of its URL, or its code, which has used
            several Remotes of that URL, has not come to this call in this process.
    """
    if (known := turn.journal.called.get(wait_id) or turn.agents.get(name)) is not None:
        return known
    others = [each for call, each in turn.journal.called.items() if call.name == wait_id.name]
    if any(each != others[0] for each in others):
        raise CallRefusedError(f"Which Remote of {name} has called it is not known any more")
    if "#" in name and not others:
        raise CallRefusedError(f"The record of {name} has only the beginning of its URL")
    return others[0] if others else Remote(name)


@contextmanager
def _logged(turn: ActiveTurn, name: str) -> Iterator[None]:
    """Log what keeps an agent from its cancel; raise it only if it is no Exception."""
    try:
        yield
    except BaseException as error:
        is_said = isinstance(error, CallRefusedError | NoAnswerError)
        why = error if is_said else f"The agent {name} was not asked ({type(error).__name__})"
        extra = {"action": "call_not_canceled", "task_id": turn.lease.head.task_id}
        logger.warning("A task of another agent was not canceled: %s", why, extra=extra)
        if not isinstance(error, Exception):
            raise


async def _value(turn: ActiveTurn, step_id: StepId) -> Outcome:
    """Return the result in a step's record; `{}` if it has none."""
    found = await turn.recorded(step_id)
    return dict(json.loads(found.value)) if found is not None and found.form == _JSON.name else {}


def _ids_beside(wait_id: StepId) -> list[StepId]:
    """Return the ids of a call's records but the last one, by the id of that.

    They are its message, its task, the text that was passed on while it came, and the rest of that.
    """
    name = wait_id.name.removeprefix(f"{CALL} ")
    return [wait_id._replace(name=f"{each} {name}") for each in (_MESSAGE, CALL_SENT, _TEXT, _REST)]


async def _listen(client: RemoteClient, task_id: str, changed: asyncio.Event) -> None:
    """Set an event with each event of a task, and at the end of its stream."""
    try:
        with suppress(CallRefusedError, NoAnswerError):
            async with aclosing(client.follow(task_id)) as events:
                async for _ in events:
                    changed.set()
    finally:
        changed.set()


def _resolved(turn: ActiveTurn, agent: Any) -> tuple[str, Remote]:
    """Return the name of an agent in records, and how it is called.

    Raises:
        WrongCallError: it is neither a name in `Worker.agents`, nor a URL, a card or a Remote.
    """
    if isinstance(agent, str) and agent in turn.agents:
        return agent, turn.agents[agent]
    remote = Remote(agent) if isinstance(agent, str | AgentCard) else agent
    if not isinstance(remote, Remote) or not remote.url.startswith(("http://", "https://")):
        known = ", ".join(map(repr, turn.agents)) or "none yet"
        raise WrongCallError(
            f"ctx.call_agent takes a name in `agents` of the Worker ({known}), a URL, a card or a"
            f" Remote, and got {str(agent)[:MAX_NAME]!r}."
        )
    import httpx  # noqa: PLC0415 - it takes long

    parsed = httpx.URL(remote.url)
    name = f"{parsed.scheme}://{parsed.netloc.decode()}{parsed.path}"
    if len(name) > _MOST_NAME:
        name = f"{name[:_MOST_NAME]}#{digest('agent', name)}"
    return name, remote


def depth_of(metadata: Mapping[str, Any]) -> int:
    """Return how many agents have called one another up to a message, by its metadata.

    Raises:
        FinalError: as many as may.
    """
    given = metadata.get(DEPTH, 0)
    depth = int(given) if isinstance(given, int | float) and not isinstance(given, bool) else 0
    if depth >= MAX_DEPTH:
        raise FinalError(
            f"ctx.call_agent: this message has come over {depth} agents that have called one"
            f" another, and at most {MAX_DEPTH} may: does one of them call itself?",
            client_text=f"More than {MAX_DEPTH} agents have called one another for this task.",
        )
    return max(0, depth)


def _stays(outcome: Outcome) -> bool:
    """Return True if each later look at the other task finds this outcome again.

    A canceled task may be one that the next attempt takes for late.
    """
    state = outcome.get("task", {}).get("status", {}).get("state", "")
    return state in _ENDED - {state_name(TaskState.TASK_STATE_CANCELED)}


def _status_of(task: Task) -> str:
    """Return a text that changes with each status of a task."""
    return hashlib.sha256(task.status.SerializeToString(deterministic=True)).hexdigest()
