"""A deployed stack under check, what a check is, and what it makes or changes meanwhile."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, TypeVar
from urllib.parse import urlsplit

import httpx
from a2a.client import A2ACardResolver, A2AClientError
from a2a.types import AgentCard

from a2a_serverless import aws
from a2a_serverless.errors import ConfigurationError
from tests.live.account import Account, Stack, is_gone
from tests.support.a2a_calls import REST, Agent, message

if TYPE_CHECKING:
    from tests.live.ground import Ground

AGENT: Final = "Live checks of a2a-serverless"
"""The name on the card of `agent.py`."""
TIMEOUT_S: Final = 60.0
VERSION: Final = {"A2A-Version": "1.0"}
ENDS: Final = frozenset({"COMPLETED", "CANCELED", "FAILED", "REJECTED"})

T = TypeVar("T")

Figures: TypeAlias = Mapping[str, object] | None
"""Measured values by their names, if any; seconds and bytes say so in the name."""


@dataclass(frozen=True)
class Check:
    """One check. `run` returns what it has measured, if anything.

    `run` raises BrokenError where the subject is broken, NotPossibleError where it cannot tell.
    """

    name: str
    proves: str
    run: Callable[[Subject], Awaitable[Figures]]


class BrokenError(Exception):
    """The subject does not do what the check proves; the text is one sentence."""


class NotPossibleError(Exception):
    """Nothing can be found out here; the text is the reason."""


def require(holds: object, says: str) -> None:
    """Go on if it holds.

    Raises:
        BrokenError: it does not.
    """
    if not holds:
        raise BrokenError(says)


@dataclass
class Made:
    """What is to be undone, oldest first: kind and name, and what undoes it.

    `ledger` gets a line for each thing before it is made, so that its name outlives this process.
    """

    ledger: Path
    things: list[tuple[str, Callable[[], Awaitable[Any]]]] = field(default_factory=list)

    def note(self, kind: str, name: str, undo: Callable[[], Awaitable[Any]]) -> None:
        """Note what is about to be made or changed."""
        self.things.append((f"{kind} {name}", undo))
        with self.ledger.open("a", encoding="utf-8") as file:
            file.write(f"{kind} {name}\n")

    async def undo(self) -> list[str]:
        """Undo all, newest first; return what remains, each with the reason.

        What does not exist counts as undone: its making may have failed.
        """
        remains: list[str] = []
        while self.things:
            thing, undo = self.things.pop()
            try:
                await undo()
            except Exception as error:  # noqa: BLE001 - what remains has to be named
                # The text of an error of AWS or a library may quote a request, and with it a key.
                is_ours = isinstance(error, BrokenError | ConfigurationError)
                if not is_gone(error):
                    remains.append(f"{thing}: {error if is_ours else aws.error_code(error)}")
        return remains


@dataclass(kw_only=True)
class Subject:
    """The stack and its address. Its HTTP clients are open within `async with`."""

    endpoint: str
    made: Made
    run: str
    """The run's id, which is in every name that is made."""
    credential: str
    ground: Ground
    http: httpx.AsyncClient = field(init=False)
    anonymous: httpx.AsyncClient = field(init=False)
    _open: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def __aenter__(self) -> Self:
        self.http, self.anonymous = self.connect(), self._client({})
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    @property
    def base(self) -> str:
        """The address without a slash at its end."""
        return self.endpoint.rstrip("/")

    @property
    def slack(self) -> float:
        """How many times as long as on AWS everything may take."""
        return self.ground.slack

    @property
    def is_here(self) -> bool:
        """Whether it is this machine, so that the agent reaches what listens on its loopback."""
        return urlsplit(self.endpoint).hostname == "127.0.0.1"

    @property
    def agent(self) -> Agent:
        """The agent in 1.0 over HTTP+JSON."""
        return Agent(self.http, REST)

    def on_aws(self) -> tuple[Account, Stack]:
        return self.ground.account, self.ground.stack

    def behind_gateway(self) -> tuple[Account, Stack]:
        """Return the account and the stack, whose own API Gateway answers.

        Raises:
            NotPossibleError: the address is another than the stack's.
        """
        account, stack = self.on_aws()
        if self.endpoint != stack.endpoint:
            raise NotPossibleError("needs the stack's own address, behind its API Gateway")
        return account, stack

    def changeable(self) -> tuple[Account, Stack]:
        """Return the account and the stack, whose owner allows changes.

        Raises:
            NotPossibleError: there is no consent.
        """
        if not self.ground.changes:
            raise NotPossibleError("needs --allow-changes: it changes the stack, and back")
        return self.on_aws()

    def name(self, purpose: str) -> str:
        return f"a2a-live-{self.run}-{purpose}"

    async def card(self) -> AgentCard:
        """Read the card.

        Raises:
            ConfigurationError: there is none, or it is not that of the live agent.
        """
        try:
            card = await A2ACardResolver(self.anonymous, self.base).get_agent_card()
        except (A2AClientError, httpx.HTTPError) as error:
            msg = f"There is no agent card at {self.base}: {type(error).__name__}."
            raise ConfigurationError(msg) from error
        if card.name != AGENT:
            msg = (
                f"{self.base} runs the agent {card.name!r}: deploy tests/live/agent.py with its "
                "card in a stack of its own, as the page `live` says."
            )
            raise ConfigurationError(msg)
        return card

    async def until(
        self,
        what: str,
        look: Callable[[], Awaitable[T | None]],
        *,
        within_s: float,
        every_s: float = 0.5,
    ) -> T:
        """Look again and again until there is something that is true.

        Raises:
            BrokenError: there was nothing in time.
        """
        within_s *= self.slack
        deadline = time.monotonic() + within_s
        while not (seen := await look()):
            if time.monotonic() >= deadline:
                raise BrokenError(f"{what} did not come within {within_s:g} s")
            await asyncio.sleep(every_s)
        return seen

    async def sent(self, said: dict[str, Any], **configuration: Any) -> dict[str, Any]:
        """Send a message without waiting for its turn's end; return the task."""
        configuration = {"returnImmediately": True, **configuration}
        params = {"message": said, "configuration": configuration}
        answer = await self.agent.call("SendMessage", params)
        if answer.response.is_server_error:  # who has just ended a process may ask again
            answer.response.raise_for_status()
        says = f"a message was answered {answer.response.status_code} {answer.message}"
        require("task" in answer.result, says)
        return answer.task

    async def begin(self, do: str, **order: Any) -> str:
        """Send an order without waiting for its end; return the task's id."""
        return str((await self.sent(ordered(do, **order)))["id"])

    async def task(self, task_id: str) -> dict[str, Any]:
        return (await self.agent.call("GetTask", {"id": task_id})).task

    async def reached(self, task_id: str, *states: str, within_s: float = 60) -> dict[str, Any]:
        """Wait until a task has one of these states; return it."""

        async def look() -> dict[str, Any] | None:
            task = await self.task(task_id)
            return task if state(task) in states else None

        return await self.until(f"{'/'.join(states)} of {task_id}", look, within_s=within_s)

    async def ended(self, task_id: str, *, within_s: float = 60) -> dict[str, Any]:
        """Wait for a task's end and return it."""
        return await self.reached(task_id, *sorted(ENDS), within_s=within_s)

    async def completed(self, task_id: str, *, within_s: float = 60) -> dict[str, Any]:
        """Wait for a task's end, require that it is completed, and return it."""
        task = await self.ended(task_id, within_s=within_s)
        require(state(task) == "COMPLETED", f"{task_id} ended as {state(task)}")
        return task

    def connect(self) -> httpx.AsyncClient:
        """Return a new client that shows the credential; it is closed with the subject."""
        is_token = self.credential.count(".") == 2  # as a JWT has three parts
        shown = {"Authorization": f"Bearer {self.credential}"}
        return self._client(shown if is_token else {"X-API-Key": self.credential})

    async def answers(self, url: str) -> bool:
        """Return True if a URL beside the address is answered well."""
        async with httpx.AsyncClient(timeout=TIMEOUT_S * self.slack) as client:
            try:
                return (await client.get(url)).is_success
            except httpx.HTTPError:
                return False

    def _client(self, headers: dict[str, str]) -> httpx.AsyncClient:
        seconds, most = TIMEOUT_S * self.slack, httpx.Limits(max_connections=200)
        its: Any = {"base_url": self.base, "headers": headers}
        client = httpx.AsyncClient(timeout=seconds, limits=most, **its)
        self._open.push_async_callback(client.aclose)
        return client


def ordered(do: str, *texts: str, **order: Any) -> dict[str, Any]:
    """A message that tells the live agent what to do."""
    parts = [{"text": json.dumps({"do": do, **order})}, *({"text": text} for text in texts)]
    return message(messageId=uuid.uuid4().hex, parts=parts)


def answer_to(task: dict[str, Any], do: str, **order: Any) -> dict[str, Any]:
    """A message that goes on with a task."""
    return {**ordered(do, **order), "taskId": task["id"], "contextId": task["contextId"]}


def state(task: dict[str, Any]) -> str:
    return str(task["status"]["state"]).removeprefix("TASK_STATE_")


def artifact_text(task: dict[str, Any]) -> str:
    return "".join(p.get("text", "") for a in task.get("artifacts", ()) for p in a["parts"])


def status_text(task: dict[str, Any]) -> str:
    return "".join(p.get("text", "") for p in task["status"].get("message", {}).get("parts", ()))


def steps_of(text: str) -> list[int]:
    return [int(line.split()[0]) for line in text.splitlines()]
