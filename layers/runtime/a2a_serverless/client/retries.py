"""What is tried again, after which wait, and for how long."""

from __future__ import annotations

import asyncio
import random
import ssl
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import httpx
from a2a.client.errors import A2AClientError, A2AClientTimeoutError
from a2a.utils.errors import InternalError

from a2a_serverless.clock import Clock, SystemClock, retry_after_s

_FIRST_WAIT_S = 0.2
STEADY_S = 5.0
"""Seconds after which an open stream counts as progress, even without an event."""

_INTERNAL_ERRORS = 3
"""Tries without progress that may end in the server's internal error, before the call raises it."""

_SHOWN = 200
"""Characters of a task's id in an error: a server may give it any length."""

_PASSING = frozenset({408, 425, 429, 502, 503, 504})
_NOT_ACCEPTED = frozenset({429, 503})
"""Those of `_PASSING` that say that the server has not worked on the request."""


class GaveUpError(A2AClientError):
    """The call was given up; the task may go on at the server.

    The message says how to go on by means of the attributes. `__cause__` is the last error.

    >>> try:
    ...     async for event in client.send_message(request):
    ...         print(event)
    ... except GaveUpError as error:
    ...     remember(error.task_id, error.last_event_id, error.idempotency_key)

    Attributes:
        reason: why.
        task_id: the task; empty if no answer to the message has come.
        last_event_id: the id of the last event that the caller has; None if events have no ids.
        idempotency_key: the key of the message; empty for a subscription.
    """

    def __init__(
        self, reason: str, *, task_id: str, last_event_id: str | None, idempotency_key: str
    ) -> None:
        named = task_id if len(task_id) <= _SHOWN else f"{task_id[:_SHOWN]}..."
        if not task_id:
            way = (
                "The message may have been accepted: send the same message with the header "
                f"Idempotency-Key: {idempotency_key}, and it counts once."
            )
        elif last_event_id is None:
            way = f"Call get_task for task {named} to see how it stands."
        else:
            way = (
                f"Subscribe to task {named} with the header Last-Event-ID: {last_event_id} "
                "to continue; the Task that comes first replaces what you have."
            )
        super().__init__(f"{reason} {way}")
        self.reason = reason
        self.task_id = task_id
        self.last_event_id = last_event_id
        self.idempotency_key = idempotency_key


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """How long a call goes on.

    >>> client = await create_resuming_client(url, retries=Retries(give_up_after_s=60))

    Args:
        give_up_after_s: seconds without progress after which a call is given up. Progress is an
            event that the caller has not seen, or a stream that was open for `STEADY_S`.
        longest_wait_s: seconds between two tries, at most; waits double from `_FIRST_WAIT_S` on. A
            server's Retry-After may ask for more.
        time_limit_s: seconds after which a call is given up in any case; None for no limit.
        repeat_sends: whether a message is sent again when its answer was lost. Servers that honour
            the header `Idempotency-Key` count it once; others might work on it twice. With False
            such a call is given up. A message that was refused as one too many or as unavailable,
            or for which there was no connection, is sent again in either case.
        clock: measures the waits.
        draw: gives numbers from 0 to 1, by which waits are spread.
    """

    give_up_after_s: float = 300.0
    longest_wait_s: float = 20.0
    time_limit_s: float | None = None
    repeat_sends: bool = True
    clock: Clock = field(default_factory=SystemClock)
    draw: Callable[[], float] = random.random


class ExhaustedError(Exception):
    """There is no time left for another try; the text says which limit was met."""


class Patience:
    """The waits of one call."""

    def __init__(self, retries: Retries) -> None:
        self._retries = retries
        self._clock = retries.clock
        self._begun = self.now()
        self.progress()

    def progress(self) -> None:
        """Begin anew: the next failure counts as the first one."""
        self._newest = self.now()
        self._tries = 0
        self._internal = 0

    def now(self) -> float:
        """Return seconds on the call's clock."""
        return self._clock.monotonic()

    def _left_s(self) -> float | None:
        if self._retries.time_limit_s is None:
            return None
        return self._begun + self._retries.time_limit_s - self.now()

    async def before_next_try(
        self, failure: Exception | None, *, is_unanswered: bool = False
    ) -> None:
        """Wait as long as the number of tries and `failure` demand; None stands for a stream's end.

        `is_unanswered`: the next try would send a message again.

        Raises:
            ExhaustedError: the call is to be given up.
            Exception: `failure` itself, if trying again cannot help.
        """
        if is_unanswered and not self._retries.repeat_sends:
            _check_not_accepted(failure)
        if failure is not None and not is_passing(failure):
            self._internal += 1
            if not is_internal(failure) or self._internal > _INTERNAL_ERRORS:
                raise failure
        silence_s = self.now() - self._newest
        wait_s = min(self._retries.longest_wait_s, _FIRST_WAIT_S * 2**self._tries)
        wait_s *= 0.5 + 0.5 * self._retries.draw()
        self._tries = min(self._tries + 1, 30)
        asked_s = retry_after_s(_header(failure, "retry-after"), self._clock.now_ms())
        left_s = self._retries.give_up_after_s - silence_s
        if left_s <= 0 or asked_s > left_s:
            raise ExhaustedError(f"Nothing new for {silence_s:.0f} s, {_last(failure)}.")
        await self.sleep(min(asked_s + wait_s, left_s))

    async def sleep(self, seconds: float) -> None:
        """Wait, but not beyond the time limit.

        Raises:
            ExhaustedError: the limit is reached.
        """
        left_s = self._left_s()
        if left_s is not None:
            seconds = min(seconds, max(0.0, left_s))
        await self._clock.sleep(seconds)
        self._check()

    @asynccontextmanager
    async def limit(self) -> AsyncIterator[None]:
        """End the block at the time limit.

        Raises:
            ExhaustedError: the limit was reached.
        """
        self._check()
        try:
            async with asyncio.timeout(self._left_s()) as limit:
                yield
        except TimeoutError:
            if not limit.expired():
                raise
            raise self._over() from None

    def _check(self) -> None:
        left_s = self._left_s()
        if left_s is not None and left_s <= 0:
            raise self._over()

    def _over(self) -> ExhaustedError:
        return ExhaustedError(f"No end within {self._retries.time_limit_s:g} s.")


def _last(failure: Exception | None) -> str:
    if failure is None:
        return "and the last stream ended early"
    return f"and the last try failed ({type(failure).__name__}: {failure})"


def is_passing(error: BaseException) -> bool:
    """Return True if the same request may succeed later: no connection, no answer, overload."""
    chain = list(causes(error))
    if any(isinstance(e, ssl.SSLCertVerificationError | httpx.UnsupportedProtocol) for e in chain):
        return False
    return status_of(error) in _PASSING or any(
        isinstance(e, A2AClientTimeoutError | httpx.TransportError) for e in chain
    )


def is_internal(error: BaseException) -> bool:
    """Return True if the server says that it has failed, and not that the request is wrong."""
    return isinstance(error, InternalError) or status_of(error) == httpx.codes.INTERNAL_SERVER_ERROR


def _check_not_accepted(failure: Exception | None) -> None:
    """Raise if a message must not be sent again because the server may have accepted it."""
    unsent = httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout
    if failure is None:
        raise ExhaustedError("The answer to the message was lost.")
    if status_of(failure) in _NOT_ACCEPTED or any(isinstance(e, unsent) for e in causes(failure)):
        return
    if is_passing(failure):
        raise ExhaustedError("The answer to the message was lost.")
    if is_internal(failure):
        raise failure


def status_of(error: BaseException) -> int | None:
    """Return HTTP's status of the answer from which an error was made; None: there is none."""
    response = _response(error)
    return None if response is None else response.status_code


def _header(error: BaseException | None, name: str) -> str:
    response = None if error is None else _response(error)
    return "" if response is None else str(response.headers.get(name, ""))


def _response(error: BaseException) -> httpx.Response | None:
    """Return the HTTP response from which the SDK has made `error`."""
    found = (e.response for e in causes(error) if isinstance(e, httpx.HTTPStatusError))
    return next(found, None)


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and those that have led to it, the first of them last."""
    cause: BaseException | None = error
    seen: set[int] = set()  # a chain may be a circle
    while cause is not None and id(cause) not in seen:
        seen.add(id(cause))
        yield cause
        cause = cause.__cause__
