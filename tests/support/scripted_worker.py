"""A worker in a test's hands: it commits to storage what the user's message says.

It knows nothing of the real worker, so that tests of the HTTP side stand on the contracts alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from a2a.types import Artifact, Message, Part, Role, SendMessageRequest, TaskState, TaskStatus

from a2a_serverless.errors import ConcurrencyError, TaskTerminalStateError
from a2a_serverless.queues.fifo import Handle
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.tasks.entries import ArtifactWritten, Caller, Entry, Replied, StatusChanged
from a2a_serverless.tasks.head import ASLEEP, AttemptEnd, Head, Operation
from a2a_serverless.tasks.identity import Scope, new_token
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.wiring import Backends
from a2a_serverless_tools.contract import CancelRegistry, Storage
from tests.support.present import present

WORKING = TaskState.TASK_STATE_WORKING
COMPLETED = TaskState.TASK_STATE_COMPLETED
CANCEL_POLL_S = 0.02


@dataclass
class Turn:
    """One attempt on a turn."""

    storage: DurableStorage
    operation: Operation
    request: SendMessageRequest
    caller: Caller
    head: Head
    canceled: Callable[[], Awaitable[None]]
    token: str = field(default_factory=new_token)

    @property
    def text(self) -> str:
        return self.request.message.parts[0].text

    async def commit(self, *entries: Entry, **options: Any) -> None:
        """Commit under this attempt's token; the first commit claims the turn."""
        while True:
            claims = self.head.turn.token != self.token
            commit = Commit(entries=entries, token=self.token, claims=claims, **options)
            try:
                self.head = await self.storage.commit(self.head, commit)
            except ConcurrencyError:
                self.head = present(await self.storage.head(self.head.task_id))
            else:
                return

    async def status(self, state: TaskState, text: str = "") -> None:
        await self.commit(StatusChanged(TaskStatus(state=state, message=self.said(text))))

    async def chunk(self, text: str, *, append: bool = True, last: bool = False) -> None:
        artifact = Artifact(artifact_id="answer", parts=[Part(text=text)])
        await self.commit(ArtifactWritten(artifact, append=append, last_chunk=last))

    def said(self, text: str) -> Message | None:
        if not text:
            return None
        return Message(
            message_id=f"agent-{new_token()}",
            role=Role.ROLE_AGENT,
            parts=[Part(text=text)],
            task_id=self.head.task_id,
            context_id=self.head.context_id,
        )


Script = Callable[["Turn", "ScriptedWorker"], Awaitable[None]]


class ScriptedWorker:
    """Runs operations as their messages say.

    The message "wait" sets `waiting` when it works and goes on when `gate` is set.
    """

    def __init__(self, backends: Backends, script: Script | None = None) -> None:
        self.backends = backends
        self.script = script or follow
        self.gate = asyncio.Event()
        self.waiting = asyncio.Event()
        self.started: list[Turn] = []
        self._running: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[ScriptedWorker]:
        receiving = asyncio.create_task(self._receive())
        try:
            yield self
        finally:
            await self.backends.operations.shutdown()
            for task in (receiving, *self._running):
                task.cancel()
            await asyncio.gather(receiving, *self._running, return_exceptions=True)

    async def _receive(self) -> None:
        async for handle in self.backends.operations.deliveries():
            task = asyncio.create_task(self._run(handle))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

    async def _run(self, handle: Handle[Operation]) -> None:
        params = handle.message.params
        scope = Scope(params.scope)
        storage = self.backends.storage.for_scope(scope)
        log = await storage.read(params.task_id)
        if log is None or log.head.is_terminal:
            await handle.ack()
            return
        if handle.message.operation == "cancel":
            with suppress(TaskTerminalStateError):
                await Storage(storage).update_task(params.task_id, TaskState.TASK_STATE_CANCELED)
            await handle.ack()
            return
        if log.head.is_over(params.turn):
            await handle.ack()
            return
        watch = CancelRegistry(storage, poll_s=CANCEL_POLL_S).on_cancel(params.task_id)
        request, caller = log.fold().opening(params.turn)
        turn = Turn(storage, handle.message, request, caller, log.head, watch.wait)
        self.started.append(turn)
        try:
            await self.script(turn, self)
        except TaskTerminalStateError:
            pass
        finally:
            await watch.release()
        await handle.ack()


async def follow(turn: Turn, worker: ScriptedWorker) -> None:
    """What the first word of the message asks for; else two chunks and the end."""
    match turn.text.split()[0]:
        case "ask":
            await turn.status(TaskState.TASK_STATE_INPUT_REQUIRED, "Which one?")
        case "auth":
            await turn.status(TaskState.TASK_STATE_AUTH_REQUIRED, "Log in, please.")
            await worker.gate.wait()
            await turn.status(COMPLETED, "Thank you.")
        case "login" | "nap" as word:
            state, message = TaskState.TASK_STATE_AUTH_REQUIRED, turn.said("Log in.")
            status = TaskStatus(state=state, message=message)
            nap = AttemptEnd(token=turn.token, reason=ASLEEP, until=turn.head.expires_at)
            options = {"parks": nap} if word == "nap" else {"ends_turn": True}
            await turn.commit(StatusChanged(status), **options)
        case "fail":
            await turn.status(TaskState.TASK_STATE_FAILED, "It did not work.")
        case "reply":
            message = present(turn.said("Hello."))
            completed = StatusChanged(TaskStatus(state=COMPLETED, message=message))
            await turn.commit(Replied(message), completed)
        case "wait":
            await turn.status(WORKING, "Waiting.")
            worker.waiting.set()
            await worker.gate.wait()
            await answer(turn)
        case "obey":
            await turn.status(WORKING)
            await turn.canceled()
            await turn.status(TaskState.TASK_STATE_CANCELED, "Stopped.")
        case "ignore":
            await turn.status(WORKING)
            await worker.gate.wait()
        case _:
            await turn.status(WORKING)
            await answer(turn)


async def answer(turn: Turn) -> None:
    await turn.chunk("Once upon ")
    await turn.chunk("a time.", last=True)
    await turn.status(COMPLETED, "Done.")
