"""The failures of an agent: those that are final, and exits, which a worker survives.

asyncio lets SystemExit and KeyboardInterrupt out of the event loop, from whichever task or callback
raises them. So an agent that calls `sys.exit()` in a child task would end every turn of the
process.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterator, Mapping
from contextlib import contextmanager
from contextvars import Context, ContextVar
from types import MappingProxyType, TracebackType
from typing import Any, TypeVar

from a2a.utils import errors

from a2a_serverless.errors import A2AServerlessError

T = TypeVar("T")

logger = logging.getLogger(__name__)

_in_agent: ContextVar[bool] = ContextVar("in_agent", default=False)

REFUSALS = (
    errors.ContentTypeNotSupportedError,
    errors.ExtendedAgentCardNotConfiguredError,
    errors.ExtensionSupportRequiredError,
    errors.InvalidParamsError,
    errors.InvalidRequestError,
    errors.MethodNotFoundError,
    errors.PushNotificationNotSupportedError,
    errors.UnsupportedOperationError,
    errors.VersionNotSupportedError,
)
"""The SDK's errors that refuse the request itself: they would refuse the next attempt's, too.

The others report a fault that may pass, mostly of another agent that this one calls.
"""


class FinalError(Exception):
    """Raised by an agent: trying again cannot help, so the task fails at once.

    An exception class of your own does the same with the attribute `final = True`. In an exception
    group one of them is enough.
    """

    final = True


class AgentFailedError(A2AServerlessError):
    """The agent raised; the cause is its exception."""


class StaleStateError(A2AServerlessError):
    """The conversation's state is not the one that the turn has loaded: start over with it.

    Not a ConcurrencyError: the attempt still owns the turn, and has to settle it.
    """


class DeadlineError(A2AServerlessError):
    """The time of the invocation runs out."""


def is_final(error: BaseException | None) -> bool:
    """Return True if the exception says that no further attempt can succeed.

    In a group, such as a TaskGroup raises, one such exception is enough: it would come again.
    """
    if isinstance(error, BaseExceptionGroup) and any(map(is_final, error.exceptions)):
        return True
    return isinstance(error, REFUSALS) or bool(getattr(error, "final", False))


async def contained(call: Awaitable[None]) -> None:
    """Await a call of the agent, in a task of its own; an exit in it ends the attempt alone.

    The tasks that the agent creates are contained too, in a loop that survives exits.

    Raises:
        AgentFailedError: the agent, or one of its libraries, wanted to end the process.
    """
    _in_agent.set(True)
    with _exits_as_failures():
        await call


def survive_exits(loop: asyncio.AbstractEventLoop) -> None:
    """Turn exits in tasks that an agent creates on `loop` into its failures; idempotent."""
    before = loop.get_task_factory()
    if isinstance(before, _Factory):
        return
    loop.set_task_factory(_Factory(before))


def run_to_end(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, T]) -> T:
    """Run `work` on `loop` to its end; an exit that a callback of the agent raises is logged.

    Raises:
        SystemExit, KeyboardInterrupt: `work` itself has raised it.
    """
    main = loop.create_task(work)
    while True:
        try:
            return loop.run_until_complete(main)
        except (SystemExit, KeyboardInterrupt) as error:
            if main.done():
                raise
            extra = {"action": "exit_in_callback"}
            logger.error("A callback of the agent raised %r", error, extra=extra)  # noqa: TRY400 - its traceback is the loop's


@contextmanager
def going_on(
    log: logging.Logger,
    level: int,
    text: str,
    *,
    action: str,
    fields: Mapping[str, object] = MappingProxyType({}),
) -> Iterator[None]:
    """Log an exception of the block and go on behind it, where a loop or a process must survive.

    `fields` are added to the line as they are when the exception comes.
    """
    try:
        yield
    except Exception:
        extra = {"action": action, **fields}
        # The line names the place of the block, not this one.
        log.log(level, text, extra=extra, exc_info=True, stacklevel=3)


class _Factory:
    """A task factory; `before` is the one that the loop had, None without one."""

    def __init__(self, before: Callable[..., asyncio.Future[Any]] | None) -> None:
        self._before = before

    def __call__(
        self,
        loop: asyncio.AbstractEventLoop,
        coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        **options: Any,
    ) -> asyncio.Future[Any]:
        context: Context | None = options.get("context")
        is_agents = _in_agent.get() if context is None else context.get(_in_agent, False)
        made = _Contained(coro) if is_agents and isinstance(coro, Coroutine) else coro
        if self._before is not None:
            return self._before(loop, made, **options)
        return asyncio.Task(made, loop=loop, **options)


class _Contained(Coroutine[Any, Any, Any]):
    """A coroutine whose exits become failures of the agent.

    It delegates step by step: a coroutine around it would never start it where the task is
    cancelled before its first step.
    """

    def __init__(self, coro: Coroutine[Any, Any, Any]) -> None:
        self._coro = coro
        self.__name__ = getattr(coro, "__name__", type(coro).__name__)
        self.__qualname__ = getattr(coro, "__qualname__", self.__name__)

    def send(self, value: Any) -> Any:
        with _exits_as_failures():
            return self._coro.send(value)

    def throw(
        self,
        typ: type[BaseException] | BaseException,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
    ) -> Any:
        del tb  # it is the error's own
        error = typ if isinstance(typ, BaseException) else val
        with _exits_as_failures():
            return self._coro.throw(error if isinstance(error, BaseException) else typ)

    def close(self) -> None:
        self._coro.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield from self._coro.__await__())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coro, name)  # cr_frame and the like, for debuggers


@contextmanager
def _exits_as_failures() -> Iterator[None]:
    try:
        yield
    except SystemExit as error:
        raise AgentFailedError("The agent called sys.exit().") from error
    except KeyboardInterrupt as error:
        raise AgentFailedError("The agent raised KeyboardInterrupt.") from error
