"""What is checked: one address, and where it is deployed the stack behind it."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar
from urllib.parse import urlsplit

import httpx
from a2a.client import A2ACardResolver, A2AClientError
from a2a.types import AgentCard

from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.errors import ConfigurationError
from tests.live.account import Account
from tests.live.findings import BrokenError, NotPossibleError
from tests.live.made import Made
from tests.live.stack import Stack
from tests.support.a2a_calls import REST, Agent, message

AGENT: Final = "Live checks of a2a-serverless"
"""The name on the card of `agent.py`."""

TIMEOUT_S: Final = 60.0
VERSION: Final = {"A2A-Version": "1.0"}

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Consent:
    """What the owner allows beyond requests and things of the program's own."""

    burst: bool = False
    """Hundreds of requests at once."""
    changes: bool = False
    """Changes of the stack's functions, which are undone at once."""


@dataclass(kw_only=True)
class Subject:
    """The address under check. Its HTTP clients are open within `async with`."""

    endpoint: str
    made: Made
    run: str
    """The run's id, which is in every name that is made."""
    credential: str = ""
    account: Account | None = None
    stack: Stack | None = None
    consent: Consent = field(default_factory=Consent)
    clock: Clock = field(default_factory=SystemClock)
    settle: Callable[[], Awaitable[None]] = lambda: asyncio.sleep(0)
    """What leads requests to the version that has just been put behind an alias: on AWS nothing."""
    slack: float = 1
    """How many times as long as on AWS everything may take."""
    requests: int = 0
    """How many were answered; those that were throttled may be counted nowhere."""
    began_ms: int = 0
    http: httpx.AsyncClient = field(init=False)
    anonymous: httpx.AsyncClient = field(init=False)
    _open: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def __aenter__(self) -> Self:
        self.began_ms = self.clock.now_ms()
        self.http = self.connect()
        self.anonymous = self._client({})
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._open.aclose()

    @property
    def base(self) -> str:
        """The address without a slash at its end."""
        return self.endpoint.rstrip("/")

    @property
    def issuer(self) -> str:
        """What the agent's signatures name as their issuer: a stack's own address."""
        return self.stack.endpoint.rstrip("/") if self.stack else self.base

    @property
    def is_here(self) -> bool:
        """Whether it is this machine, so that the agent reaches what listens on its loopback."""
        return urlsplit(self.endpoint).hostname in {"127.0.0.1", "localhost", "::1"}

    @property
    def agent(self) -> Agent:
        """The agent in 1.0 over HTTP+JSON."""
        return Agent(self.http, REST)

    def on_aws(self) -> tuple[Account, Stack]:
        """Return the account and the stack.

        Raises:
            NotPossibleError: only an address is known.
        """
        if self.account is None or self.stack is None:
            raise NotPossibleError("needs a stack on AWS, and was given an address alone")
        return self.account, self.stack

    def behind_gateway(self) -> tuple[Account, Stack]:
        """Return the account and the stack, whose own API Gateway answers.

        Raises:
            NotPossibleError: only an address is known, or another one than the stack's.
        """
        account, stack = self.on_aws()
        if self.endpoint != stack.endpoint:
            raise NotPossibleError("needs the API Gateway of AWS at the stack's own address")
        return account, stack

    def changeable(self, why: str) -> tuple[Account, Stack]:
        """Return the account and the stack, whose owner allows changes of it.

        Raises:
            NotPossibleError: only an address is known, or there is no consent; `why` it is needed.
        """
        account, stack = self.on_aws()
        if not self.consent.changes:
            raise NotPossibleError(f"needs --allow-changes: {why}")
        return account, stack

    def name(self, purpose: str) -> str:
        """Return the name of something that is made."""
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
        self, what: str, look: Callable[[], Awaitable[T | None]], *, within_s: float, every_s: float
    ) -> T:
        """Look again and again until there is something.

        Raises:
            BrokenError: there was nothing in time.
        """
        within_s *= self.slack
        deadline = self.clock.monotonic() + within_s
        while True:
            seen = await look()
            if seen is not None:
                return seen
            if self.clock.monotonic() >= deadline:
                raise BrokenError(f"{what} did not come within {within_s:g} s")
            await self.clock.sleep(every_s)

    async def begin(self, do: str, **order: Any) -> str:
        """Send an order without waiting for its end; return the task's id."""
        answer = await self.agent.call(
            "SendMessage",
            {"message": ordered(do, **order), "configuration": {"returnImmediately": True}},
        )
        if "task" not in answer.result:
            raise BrokenError(f"{do} was answered with {answer.response.status_code}")
        return str(answer.task["id"])

    async def task(self, task_id: str) -> dict[str, Any]:
        """Read a task."""
        return (await self.agent.call("GetTask", {"id": task_id})).task

    async def ended(self, task_id: str, *, within_s: float, every_s: float = 0.5) -> dict[str, Any]:
        """Wait for a task's end and return it."""

        async def look() -> dict[str, Any] | None:
            task = await self.task(task_id)
            return task if state(task) in {"COMPLETED", "CANCELED", "FAILED", "REJECTED"} else None

        return await self.until(f"the end of {task_id}", look, within_s=within_s, every_s=every_s)

    async def working(self, task_id: str) -> None:
        """Wait until the agent works on a task."""

        async def look() -> bool | None:
            return state(await self.task(task_id)) == "WORKING" or None

        await self.until("the agent's start", look, within_s=60, every_s=0.1)

    def connect(self) -> httpx.AsyncClient:
        """Return a new client that shows the credential; it is closed with the subject."""
        if not self.credential:
            return self._client({})
        is_token = self.credential.count(".") == 2  # as a JWT has three parts
        shown = {"Authorization": f"Bearer {self.credential}"}
        return self._client(shown if is_token else {"X-API-Key": self.credential})

    async def answers(self, url: str) -> bool | None:
        """Return True if a URL beside the address is answered well, else None."""
        async with httpx.AsyncClient(timeout=TIMEOUT_S * self.slack) as client:
            try:
                return (await client.get(url)).is_success or None
            except httpx.HTTPError:
                return None

    def _client(self, headers: dict[str, str]) -> httpx.AsyncClient:
        client = httpx.AsyncClient(
            base_url=self.base,
            headers=headers,
            timeout=TIMEOUT_S * self.slack,
            event_hooks={"response": [self._count]},
            limits=httpx.Limits(max_connections=200),
        )
        self._open.push_async_callback(client.aclose)
        return client

    async def _count(self, response: httpx.Response) -> None:
        if response.status_code != httpx.codes.TOO_MANY_REQUESTS:
            self.requests += 1


def ordered(do: str, *texts: str, **order: Any) -> dict[str, Any]:
    """A message that tells the live agent what to do."""
    parts = [{"text": json.dumps({"do": do, **order})}, *({"text": text} for text in texts)]
    return message(messageId=uuid.uuid4().hex, parts=parts)


def state(task: dict[str, Any]) -> str:
    """A task's state without its prefix."""
    return str(task["status"]["state"]).removeprefix("TASK_STATE_")


def artifact_text(task: dict[str, Any]) -> str:
    """The text of all artifacts."""
    return "".join(p.get("text", "") for a in task.get("artifacts", ()) for p in a["parts"])


def status_text(task: dict[str, Any]) -> str:
    """The text of the status message."""
    return "".join(p.get("text", "") for p in task["status"].get("message", {}).get("parts", ()))
