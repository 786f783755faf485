"""Agents that others call: a clerk behind a server of its own thread, which outlives callers."""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, Self, TypeVar

import httpx
import uvicorn
from a2a.client import ClientConfig, ClientFactory
from a2a.helpers import get_text_parts, new_task_from_user_message
from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue
from a2a.server.tasks import TaskUpdater
from a2a.types import AgentCard, ListTasksRequest, Message, Part, Role, Task, TaskState
from google.protobuf.json_format import MessageToJson
from starlette.types import ASGIApp

from a2a_serverless.worker import Remote
from a2a_serverless_tools.local.sockets import bind

T = TypeVar("T")
S = TaskState


class Clerk(AgentExecutor):
    """Does what the first word of a message says, and remembers the messages and its tasks."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []
        """The tasks and the texts of their messages."""
        self.messages: list[Message] = []
        self.canceled: list[str] = []
        self.go_on = asyncio.Event()

    @property
    def tasks(self) -> Counter[str]:
        return Counter(task for task, _ in self.said)

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        task_id, context_id = context.task_id or "", context.context_id or ""
        text = context.get_user_input()
        message = context.message or Message()
        self.said.append((task_id, text))
        self.messages.append(message)
        if text == "message":
            parts = [Part(text="only this")]
            said = Message(message_id="m", role=Role.ROLE_AGENT, parts=parts)
            await event_queue.enqueue_event(said)
            return
        task = TaskUpdater(event_queue, task_id, context_id)
        if context.current_task is None:
            await event_queue.enqueue_event(new_task_from_user_message(message))
        await task.start_work()
        await self._work(task, text)

    async def _work(self, task: TaskUpdater, text: str) -> None:
        def said(words: str) -> Message:
            return task.new_agent_message([Part(text=words)])

        match text.split(maxsplit=1):
            case ["ask", *_]:
                await task.requires_input(said("hard or soft?"))
            case ["fail", *_]:
                await task.failed(said("no paper"))
            case ["reject", *_]:
                await task.reject(said("not here"))
            case ["wait", *_]:
                await self.go_on.wait()
                await task.add_artifact([Part(text="waited")], artifact_id="book")
                await task.complete()
            case ["large", *_]:
                await task.add_artifact([Part(raw=bytes(20_000_000))], artifact_id="book")
                await task.complete()
            case _:
                await task.add_artifact([Part(text=f"did {text}")], artifact_id="book")
                await task.complete()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        task_id = context.task_id or ""
        self.canceled.append(task_id)
        await TaskUpdater(event_queue, task_id, context.context_id or "").cancel()


@asynccontextmanager
async def served(app: Any) -> AsyncIterator[str]:
    listening = bind(0)
    config = uvicorn.Config(app, lifespan="off", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving
        listening.close()


Fails = Callable[[httpx.Request, str], httpx.Response | None]
Side = Callable[[AgentExecutor], AbstractAsyncContextManager[ASGIApp]]


class Peer(httpx.AsyncBaseTransport):
    """A server with an agent, in a thread of its own; it is the transport to itself, too.

    Args:
        side: the server.
        card: what it shows as its card; with `url` at its origin.
    """

    url = "http://test"

    def __init__(self, side: Side, card: AgentCard, executor: AgentExecutor | None = None) -> None:
        self.card = card
        self.requests: list[httpx.Request] = []
        self.fails: Fails | None = None
        """Gives an answer in the place of the server's, "before" or "after" that has worked."""
        self._side, self._executor = side, executor
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self.clerk: Any = self._executor or Clerk()
        self._server = self._side(self.clerk)
        self._app = self.run(self._server.__aenter__())
        return self

    def __exit__(self, *_: object) -> None:
        self.run(self._server.__aexit__(None, None, None))
        self.run(_end_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(20)

    def remote(self, **options: Any) -> Remote:
        """The peer for an agent that calls it."""
        return Remote(self.url, transport=self, **options)

    @contextmanager
    def listening(self) -> Iterator[str]:
        """Serve the agent at a port too; its streams come from there event by event."""
        own = served(self._app)
        url = self.run(own.__aenter__())
        try:
            yield url
        finally:
            self.run(own.__aexit__(None, None, None))

    @property
    def states(self) -> list[str]:
        """The states of its tasks, such as `CANCELED`."""
        names = (TaskState.Name(task.status.state) for task in self.run(self._tasks()))
        return [name.removeprefix("TASK_STATE_") for name in names]

    async def _tasks(self) -> list[Task]:
        async with httpx.AsyncClient(transport=self) as http:
            config = ClientConfig(httpx_client=http, streaming=False)
            client = ClientFactory(config).create(self.card)
            return [*(await client.list_tasks(ListTasksRequest())).tasks]

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Answer a request, in the server's thread."""
        self.requests.append(request)
        content = await request.aread()
        answered = asyncio.run_coroutine_threadsafe(self._answered(request, content), self._loop)
        status, headers, body = await asyncio.wrap_future(answered)
        return httpx.Response(status, headers=headers, content=body)

    async def _answered(
        self, request: httpx.Request, content: bytes
    ) -> tuple[int, list[tuple[bytes, bytes]], bytes]:
        if self.fails is not None and (given := self.fails(request, "before")) is not None:
            return given.status_code, given.headers.raw, given.content
        if request.url.path == "/.well-known/agent-card.json":
            return 200, [(b"content-type", b"application/json")], MessageToJson(self.card).encode()
        own = httpx.Request(request.method, request.url, headers=request.headers, content=content)
        answer = await httpx.ASGITransport(self._app).handle_async_request(own)
        body = b"".join([piece async for piece in _pieces(answer)])
        if self.fails is not None and (given := self.fails(request, "after")) is not None:
            return given.status_code, given.headers.raw, given.content
        return answer.status_code, answer.headers.raw, body


async def _end_all() -> None:
    """End what a server has left in its loop: collected later, it would log errors elsewhere."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    for task in left:
        task.cancel()
    await asyncio.gather(*left, return_exceptions=True)


async def _pieces(answer: httpx.Response) -> AsyncIterator[bytes]:
    assert isinstance(answer.stream, httpx.AsyncByteStream)
    async for piece in answer.stream:
        yield piece


def texts(message: Message) -> str:
    return "\n".join(get_text_parts(message.parts))
