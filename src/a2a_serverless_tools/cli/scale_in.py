"""Workers on ECS: protected from scale-in while turns run, and told when they are to go.

ECS ends no protected task when it scales in or deploys. So a worker that always has a turn would
stay for ever: it asks ECS whether it is one of those that are to go, and then takes no more turns.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, asynccontextmanager
from datetime import datetime
from functools import partial
from typing import Any, Final, NamedTuple

import httpx

from a2a_serverless import aws
from a2a_serverless.clock import Clock, first_of
from a2a_serverless.worker.adapter import WorkerAdapter
from a2a_serverless.worker.failures import log_exceptions

logger = logging.getLogger(__name__)

RENEW_AFTER: Final = 0.1
"""The share of the protection's time after which it is renewed: a new turn finds the rest."""
MOST_MINUTES: Final = 2880
"""The longest protection that ECS grants."""
IDLE_S: Final = 5.0
"""Seconds without a turn after which the protection ends."""
AGAIN_S: Final = 60.0
"""Seconds until ECS is asked again: after a refusal, and whether this worker is to go."""
LEAST_S: Final = 1.0
"""Seconds from one renewal to the next at least."""
ANSWER_S: Final = 5.0
"""Seconds within which ECS has to answer; a turn that begins waits for it."""
_ERRORS: Final = (OSError, httpx.HTTPError, ValueError, *aws.ERRORS)

Json = Mapping[str, Any]
Call = Callable[[str, Json | None], Awaitable[Any]]
"""Sends a JSON document to a URL by PUT, or None by GET; returns that of the answer."""


class _Service(NamedTuple):
    """What ECS says of the service whose task this worker is."""

    described: Json
    tasks: Sequence[str]
    """The ARNs of the newest deployment's tasks that run or start."""


Look = Callable[[], Awaitable[tuple[str, _Service] | None]]
"""Returns the ARN of this task, and its service; None where there is none."""


def _why_to_go(arn: str, service: _Service) -> str:
    """Return why the task `arn` is to take no more turns, as a clause; empty if it may go on.

    An old one goes when all workers of the newest deployment run: before, there may be no other.
    Where a service has too many, each of them finds the same ones, by the order of their names.
    """
    newest, tasks = _newest_of(service.described), service.tasks
    wanted = service.described["desiredCount"]
    if newest is None or len(tasks) < max(1, wanted):
        return ""
    if arn not in tasks:
        return "a newer deployment has replaced it" if newest["runningCount"] >= wanted else ""
    is_surplus = arn in sorted(tasks)[: len(tasks) - wanted]
    return f"its service needs {wanted} of {len(tasks)} workers" if is_surplus else ""


def _newest_of(described: Json) -> Json | None:
    """Return the deployment that a service is to have in the end."""
    return next((d for d in described["deployments"] if d["status"] == "PRIMARY"), None)


def _granted_s(answer: Any, *, now_ms: int, asked_s: float) -> float:
    """Return the seconds for which an answer grants the protection that was asked for.

    `asked_s` and the seconds are 0 for the end of a protection.

    Raises:
        ValueError: ECS has refused; the text is its reason.
    """
    given = answer.get("protection") if isinstance(answer, dict) else None
    if isinstance(given, dict) and bool(given.get("ProtectionEnabled")) is (asked_s > 0):
        if not asked_s:
            return 0.0
        try:
            ends = datetime.fromisoformat(str(given.get("ExpirationDate")))
        except ValueError:
            return asked_s
        return min(asked_s, max(LEAST_S, ends.timestamp() - now_ms / 1000))
    refused = answer if isinstance(answer, dict) else {}
    reasons = (("failure", "Reason"), ("error", "Code"))
    found = (refused[kind].get(key) for kind, key in reasons if isinstance(refused.get(kind), dict))
    raise ValueError(next(found, None) or "it gives no reason")


class _Protection:
    """Protects this worker's ECS task from before its first turn begins until none has run a while.

    Each turn begins with a protection that lasts longer than it may run, so that a renewal that ECS
    refuses takes nothing from turns that run. Refusals are logged once, and hold up no turn.

    Args:
        url: of the ECS agent, from `ECS_AGENT_URI`.
        limit_s: the longest that a turn may run.
        look: asks ECS for this task and its service.
        let_go: called once this worker is to take no more turns.
        call: asks the ECS agent.
    """

    def __init__(
        self,
        url: str,
        *,
        limit_s: float,
        clock: Clock,
        look: Look,
        let_go: Callable[[], Awaitable[None]],
        call: Call,
    ) -> None:
        self._url = f"{url}/task-protection/v1/state"
        self._minutes = min(MOST_MINUTES, math.ceil(limit_s / (1 - RENEW_AFTER) / 60) + 1)
        self._clock = clock
        self._call, self._look, self._let_go = call, look, let_go
        self._asking = asyncio.Lock()
        self._changed = asyncio.Event()
        self._turns = 0
        self._may_be_on = self._is_refused = self._is_leaving = self._is_blind = False
        self._idle_at = self._look_at = -math.inf
        self._renew_at = self._again_at = -math.inf
        """When a protection has to be renewed; when ECS may be asked after it has refused."""

    @asynccontextmanager
    async def over(self) -> AsyncIterator[None]:
        """Keep the task protected while the block, one turn, runs."""
        self._turns += 1
        try:
            await self._ask()
            self._changed.set()
            yield
        finally:
            self._turns -= 1
            self._idle_at = self._clock.monotonic()
            self._changed.set()

    async def keep(self) -> None:
        """Renew the protection, end it, and look whether this worker is to go; never return."""
        while True:
            self._changed.clear()
            await self._ask()
            with _log_exceptions():
                await self._leave()
            await first_of(self._clock.sleep(self._pause_s()), self._changed.wait())

    async def _ask(self) -> None:
        """Ask the ECS agent for what is due now; an error is logged."""
        with _log_exceptions():
            async with self._asking:
                if not self._may_ask_at() <= self._clock.monotonic():
                    return
                if not self._turns:
                    if await self._granted({"ProtectionEnabled": False}) is not None:
                        self._may_be_on, self._renew_at = False, -math.inf
                    return
                self._may_be_on = True  # also if the answer is lost
                asked = {"ProtectionEnabled": True, "ExpiresInMinutes": self._minutes}
                seconds = await self._granted(asked)
                if seconds is not None:
                    wait_s = max(LEAST_S, RENEW_AFTER * seconds)
                    self._renew_at = self._clock.monotonic() + wait_s

    def _may_ask_at(self) -> float:
        """Return when the next request to the ECS agent is due; infinite without need of one."""
        if self._turns:
            return max(self._renew_at, self._again_at)
        return max(self._idle_at + IDLE_S, self._again_at) if self._may_be_on else math.inf

    def _pause_s(self) -> float:
        ends = [self._may_ask_at(), self._clock.monotonic() + AGAIN_S]
        if self._may_be_on and not self._is_leaving:
            ends.append(self._look_at)
        return max(0.0, min(ends) - self._clock.monotonic())

    async def _granted(self, asked: Json) -> float | None:
        """Ask the ECS agent; return the seconds that it grants, None if it refuses."""
        self._again_at = self._clock.monotonic() + AGAIN_S
        try:
            answer = await self._within(self._call(self._url, asked))
            seconds = _granted_s(
                answer,
                now_ms=self._clock.now_ms(),
                asked_s=60.0 * asked.get("ExpiresInMinutes", 0),
            )
        except _ERRORS as error:
            self._refused(_reason(error), is_on=bool(asked["ProtectionEnabled"]))
            return None
        self._is_refused, self._again_at = False, -math.inf
        return seconds

    def _refused(self, reason: str, *, is_on: bool) -> None:
        if self._is_refused:
            return
        self._is_refused = True
        text = (
            "ECS does not protect turns that begin here now: %s. One that it ends goes on elsewhere"
        )
        if not is_on:
            text = "ECS still protects this worker, which has no turn: %s. It is asked again"
        logger.warning(text, reason, extra={"action": "protection_refused"})

    async def _leave(self) -> None:
        """Take no more turns if ECS has another worker in this one's place, or needs fewer."""
        now = self._clock.monotonic()
        if self._is_leaving or not self._may_be_on or now < self._look_at:
            return
        self._look_at = now + AGAIN_S
        try:
            found = await self._within(self._look())
        except _ERRORS as error:
            if not self._is_blind:
                self._is_blind = True
                text = "ECS does not say whether this worker is to go: %s. It stays while it works"
                logger.warning(text, _reason(error), extra={"action": "service_not_read"})
            return
        self._is_blind = False
        if found is None or not (why := _why_to_go(*found)):
            return
        self._is_leaving = True
        text = "This worker takes no more turns, and ends after those that it has: %s"
        logger.info(text, why, extra={"action": "replaced"})
        await self._let_go()

    async def _within(self, asking: Awaitable[Any]) -> Any:
        """Return the answer; raise TimeoutError without one within `ANSWER_S`."""
        asked = asyncio.ensure_future(asking)
        try:
            await first_of(self._clock.sleep(ANSWER_S), tasks=[asked])
            if not asked.done():
                msg = f"no answer within {ANSWER_S:.0f} s"
                raise TimeoutError(msg)
            return asked.result()
        finally:
            asked.cancel()


def _log_exceptions() -> AbstractContextManager[None]:
    """Log an exception and go on: whatever ECS answers, turns run."""
    return log_exceptions(logger, logging.WARNING, "ECS not asked", action="protection_failed")


def _reason(error: Exception) -> str:
    """Return what an operator needs of an error: AWS's code, or its text."""
    code = aws.error_code(error)
    return str(error) or code if code == type(error).__name__ else code


# -- what runs on ECS ------------------------------------------------------------------------


async def serving(adapter: WorkerAdapter, concurrency: int, kept: _Protection | None) -> None:
    """Run `WorkerAdapter.serve`, protected by `kept` where this is a task of ECS."""
    if kept is None:
        await adapter.serve(concurrency=concurrency)
        return
    keeping = asyncio.create_task(kept.keep())
    try:
        await adapter.serve(concurrency=concurrency, over=kept.over)
    finally:
        keeping.cancel()
        await asyncio.wait([keeping])


def protection(
    environment: Mapping[str, str],
    *,
    limit_s: float,
    clock: Clock,
    let_go: Callable[[], Awaitable[None]],
) -> _Protection | None:
    """Return the protection of this process's ECS task; None outside of ECS."""
    url, metadata = environment.get("ECS_AGENT_URI"), environment.get(_METADATA)
    if not url:
        return None
    threads = ThreadPoolExecutor(2, "ecs")  # not the agents' threads, which may all be busy

    async def call(url: str, document: Json | None) -> Any:
        inside = partial(_exchange, url, document)
        return await asyncio.get_running_loop().run_in_executor(threads, inside)

    look = partial(_look, call, metadata)
    return _Protection(url, limit_s=limit_s, clock=clock, look=look, let_go=let_go, call=call)


_METADATA: Final = "ECS_CONTAINER_METADATA_URI_V4"


async def _look(call: Call, metadata: str | None) -> tuple[str, _Service] | None:
    """Ask ECS for this task and its service; None for a task of no service."""
    if not metadata:
        return None
    own = await call(f"{metadata}/task", None)
    if not isinstance(own, dict) or not own.get("ServiceName"):
        return None
    cluster, ecs = own["Cluster"], await aws.call(aws.client, service="ecs")
    found = await aws.call(ecs.describe_services, cluster=cluster, services=[own["ServiceName"]])
    (described,) = found["services"] or [{"deployments": []}]
    if (newest := _newest_of(described)) is None:
        return None
    pages = ecs.get_paginator("list_tasks").paginate(cluster=cluster, startedBy=newest["id"])
    listed = await aws.call(pages.build_full_result)
    return own["TaskARN"], _Service(described, listed.get("taskArns", []))


def _exchange(url: str, document: Json | None) -> Any:
    """Send a document and return the answer's, whatever its status; through no proxy.

    Raises:
        httpx.HTTPError, ValueError: no answer, or none in JSON.
    """
    method = "GET" if document is None else "PUT"
    return httpx.request(method, url, json=document, timeout=ANSWER_S, trust_env=False).json()
