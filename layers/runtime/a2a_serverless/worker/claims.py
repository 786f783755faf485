"""Owning a turn: the claim, the check on every newer HEAD, and the lease."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from a2a_serverless import faults
from a2a_serverless.clock import Clock
from a2a_serverless.errors import (
    ConcurrencyError,
    FencedError,
    TaskNotFoundError,
    TaskTerminalStateError,
    TurnFinishedError,
    UnavailableError,
)
from a2a_serverless.observability import metrics
from a2a_serverless.storage.durable import DurableStorage
from a2a_serverless.storage.log import Log
from a2a_serverless.tasks.attempts import (
    Refused,
    RetryPolicy,
    lease_end,
    on_lost_claim,
    on_refusal,
)
from a2a_serverless.tasks.head import AttemptEnd, Head
from a2a_serverless.tasks.operations import OperationParams
from a2a_serverless.tasks.rules import Commit
from a2a_serverless.worker.loops import first_of
from a2a_serverless.worker.telemetry import process_name

T = TypeVar("T")

logger = logging.getLogger(__name__)

MAX_REBASES: Final = 16
"""Tries of a write by the turn's owner, each on the newer HEAD that another writer has made."""
CLAIM_AFTER_S: Final = 1.0
"""Seconds for which an agent may emit nothing before the keeper claims its turn."""
AGAIN_S: Final = 5.0
"""Seconds until a claim or renewal that AWS has not answered is tried again."""


@dataclass(slots=True, kw_only=True)
class Ownership:
    """A writer's claim to a turn.

    `claimed` says that HEAD has the token. Without a token the writer is outside of any attempt:
    it only needs a task that has not ended.
    """

    params: OperationParams
    token: str | None = None
    claimed: bool = False

    @property
    def must_claim(self) -> bool:
        """Return True when the next commit of an attempt has to claim the turn."""
        return self.token is not None and not self.claimed

    def check(self, head: Head | None) -> Head:
        """Return HEAD, if the turn is still this writer's, or unclaimed.

        Raises:
            TurnFinishedError: the task is gone or has ended, or the turn is over.
            FencedError: another attempt owns the turn.
        """
        head = _rebased(head, on_refusal(head, self.params, token=self.token))
        # The claim stands, even if its answer was lost, or the keeper made it.
        if self.token is not None and head.token == self.token:
            self.claimed = True
        return head

    def ended(self, reason: str, *, at: int) -> AttemptEnd:
        """Return the end of this attempt, with a correlation id for its line of the log.

        `at` is the time of the end, in milliseconds since the epoch.
        """
        reference = secrets.token_hex(8)
        return AttemptEnd(token=self.token or "", reason=reason, correlation_id=reference, at=at)

    async def commit(self, log: DurableStorage, head: Head, commit: Commit) -> Head:
        """Make a commit under the claim, or one that claims; return the new HEAD.

        Raises:
            ConcurrencyError: HEAD was another one; call `check` with the newer one.
            TurnFinishedError: the task is gone or has ended.
            InvalidArgumentError, UnavailableError: as `DurableStorage.commit`.
        """
        if commit.claims:
            commit = replace(commit, worker=process_name())
        try:
            committed = await log.commit(head, commit)
        except (TaskNotFoundError, TaskTerminalStateError) as error:
            raise TurnFinishedError from error
        self.claimed = True
        if commit.claims:
            faults.point("after-claim")
        return committed


async def claim(
    log: DurableStorage, read: Log, own: Ownership, retry: RetryPolicy, *, is_alone: bool = True
) -> Head:
    """Make `own` the owner of its turn, even if another attempt owns it; return the new HEAD.

    `read` is the task's log from its beginning. `is_alone` False: the process has other turns.

    Raises:
        TurnFinishedError: the turn is over.
        FencedError: others have used up the turn's attempts meanwhile, or the turn has to run alone
            in its process and would not.
        UnavailableError: too many races were lost.
    """
    for _ in range(MAX_REBASES):
        head = read.head
        restores = read.restores() if head.token is not None else 0
        try:
            claiming = Commit(token=own.token, claims=True, restores=restores)
            return await own.commit(log, head, claiming)
        except ConcurrencyError:
            newer = await log.read(head.task_id)
        if newer is None:
            raise TurnFinishedError(_OVER)
        read, head = newer, newer.head
        _rebased(head, on_lost_claim(head, own.params, retry, is_alone=is_alone))
        if head.token == own.token:  # by a claim whose answer was lost
            own.claimed = True
            return head
    raise UnavailableError(_LOST)


async def claim_unclaimed(log: DurableStorage, head: Head, own: Ownership) -> Head:
    """Make `own` the owner of its turn, unless another attempt is; return the newest HEAD.

    Raises:
        TurnFinishedError: the turn is over.
        FencedError: another attempt owns it.
        UnavailableError: too many races were lost.
    """
    for _ in range(MAX_REBASES):
        try:
            return await own.commit(log, head, Commit(token=own.token, claims=True))
        except ConcurrencyError:
            head = own.check(await log.head(head.task_id))
            if head.token == own.token:  # by the attempt's writer, or by its keeper
                return head
    raise UnavailableError(_LOST)


_LOST: Final = f"The claim lost {MAX_REBASES} races."
_OVER: Final = "The turn is over, or its task is gone."


def _rebased(head: Head | None, met: Refused) -> Head:
    """Return HEAD for another try, or raise the error for the refusal that was `met`."""
    if head is None or met is Refused.OVER:
        raise TurnFinishedError(_OVER)
    if met is Refused.FENCED:
        raise FencedError(current_version=head.version)
    return head


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """Keeps hold of one turn while its agent runs, as a duty of the keeper.

    It claims the turn if the agent has emitted nothing for a second, or blocks its loop. Then it
    renews the lease of the claim, so that the sweeper sends no copy of a turn that is worked on.

    Args:
        log: storage of the turn's scope.
        head: HEAD as the attempt has begun on it.
        own: the attempt's claim, which its writer shares.
        clock: times claim and renewals.
        is_writing: True while the attempt's own writer has something to commit.
        on_claimed: is called with the new HEAD after a claim that was made here.
    """

    log: DurableStorage
    head: Head
    own: Ownership
    clock: Clock
    is_writing: Callable[[], bool]
    on_claimed: Callable[[Head], None]

    async def keep(self, stop: asyncio.Event) -> None:
        """Claim the turn and renew its lease until `stop`, or until it is not the attempt's."""
        try:
            if await self._claimed(stop):
                await self._renewed(stop)
        except (FencedError, TurnFinishedError):
            pass  # the attempt learns it from its watch

    async def _claimed(self, stop: asyncio.Event) -> bool:
        """Claim the turn unless the writer does; return False if stopped before it is claimed."""
        wait_s, was_writing = CLAIM_AFTER_S, False
        while not await self._stopped(stop, wait_s):
            if not self.own.must_claim:
                return True
            if self.is_writing() and not was_writing:
                was_writing = True  # its first commit claims, unless the agent blocks the loop
                continue
            head = await self._tried("claim", claim_unclaimed(self.log, self.head, self.own))
            if head is not None:
                self.on_claimed(head)
                return True
            wait_s = AGAIN_S
        return False

    async def _renewed(self, stop: asyncio.Event) -> None:
        timing = self.log.timing
        wait_s = renewed_after_s = timing.lease_s - timing.renew_before_s
        while not await self._stopped(stop, wait_s):
            is_ours = await self._tried("renewal", self.renew())
            if is_ours is False:
                return
            if is_ours:
                metrics.count("LeasesRenewed")
            wait_s = renewed_after_s if is_ours else min(AGAIN_S, renewed_after_s)

    async def _tried(self, what: str, request: Awaitable[T]) -> T | None:
        """Return the answer of a request; None if it has failed and can be tried again."""
        try:
            return await request
        except (FencedError, TurnFinishedError):
            raise
        except Exception as error:  # noqa: BLE001 - the thread's edge: tried again, and logged
            extra = {"action": f"{what}_failed", "task_id": self.head.task_id}
            logger.warning("The turn's %s has failed: %r", what, error, extra=extra)
            return None

    async def renew(self) -> bool:
        """Let the lease begin anew; return False when the turn is not the attempt's any more.

        Raises:
            UnavailableError: no answer within the retry budget.
        """
        due_at = lease_end(self.clock.now_ms(), self.log.timing)
        token = self.own.token
        return token is not None and await self.log.renew(self.head, token=token, due_at=due_at)

    async def _stopped(self, stop: asyncio.Event, seconds: float) -> bool:
        await first_of(self.clock.sleep(seconds), stop.wait())
        return stop.is_set()
