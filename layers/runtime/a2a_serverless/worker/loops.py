"""What a worker needs beside asyncio: waiting for several things, and what an agent does to a loop.

An agent starts tasks of its own, forgets to await calls, and may exit.

asyncio lets SystemExit and KeyboardInterrupt out of the event loop, from whichever task or callback
raises them. So an agent that calls `sys.exit()` in a child task would end every turn of the
process.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import os
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from types import TracebackType
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar
from weakref import WeakSet

from a2a_serverless.clock import Clock
from a2a_serverless.worker.failures import (
    AgentFailedError,
    WrongMethodError,
    place,
    place_of_function,
)

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)

_in_agent: ContextVar[StartedTasks | None] = ContextVar("in_agent", default=None)

_ARGUMENTS: Final = ("", "ctx", "context, event_queue")
"""Of a method of the agent, by their number: a Worker's, an AgentExecutor's."""
FEW_CALLS: Final = 64
"""Calls of one attempt up to which those that were awaited are not sorted out."""
_RUNTIME: Final = __name__.partition(".")[0]
_STOPPED: Final = "Event loop stopped before Future completed."
"""The text of asyncio's RuntimeError after `loop.stop()`."""

RECANCEL_S = 1.0
"""Seconds that a cancelled task has before it is cancelled again."""
STOP_GRACE_S = 5.0
"""Seconds that a cancelled task has to end; after that it is left behind."""
ENDING_ROUNDS = 10
"""How many times tasks are ended that earlier tasks have started while they ended."""


def in_agent() -> bool:
    """Return True in an agent's call, and in the tasks that it has started there."""
    return _in_agent.get() is not None


async def first_of(
    *waits: Coroutine[Any, Any, Any], tasks: Iterable[asyncio.Future[Any]] = ()
) -> None:
    """Return when one of `waits` and `tasks` is done; end the other `waits`, not the `tasks`.

    Exceptions of a wait or a task are not raised here.
    """
    own = [asyncio.ensure_future(wait) for wait in waits]
    try:
        await asyncio.wait([*own, *tasks], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in own:
            wait.cancel()
        await asyncio.gather(*own, return_exceptions=True)


def call_in(loop: asyncio.AbstractEventLoop, callback: Callable[..., object], *args: Any) -> None:
    """Run `callback` in another thread's loop; do nothing if that loop has ended."""
    with suppress(RuntimeError):
        loop.call_soon_threadsafe(callback, *args)


def error_of(task: asyncio.Future[Any]) -> BaseException | None:
    """Return the exception of a task; None if the task still runs, or has raised none."""
    if not task.done():
        return None
    try:
        return task.exception()
    except asyncio.CancelledError as error:
        return error


async def end_tasks(
    *tasks: asyncio.Task[Any], clock: Clock, grace_s: float = STOP_GRACE_S
) -> list[asyncio.Task[Any]]:
    """Cancel tasks and wait for them; return those that run on after `grace_s`.

    A task that swallows a cancellation gets another one every second.
    """
    deadline = clock.monotonic() + grace_s
    running = [task for task in tasks if not task.done()]
    while running:
        for task in running:
            task.cancel()
        left_s = deadline - clock.monotonic()
        if left_s <= 0:
            break
        ended = asyncio.gather(*running, return_exceptions=True)
        await first_of(clock.sleep(min(RECANCEL_S, left_s)), tasks=[ended])
        running = [task for task in running if not task.done()]
    return running


async def limited(
    work: Coroutine[Any, Any, Any], *, clock: Clock, seconds: float
) -> BaseException | None:
    """Run `work` for at most `seconds`; return its exception, TimeoutError if it did not end."""
    task = asyncio.create_task(work)
    try:
        await first_of(clock.sleep(seconds), tasks=[task])
        if not task.done():
            return TimeoutError(f"No end within {seconds} s.")
        return error_of(task)
    finally:
        await end_tasks(task, clock=clock)


# -- an agent's own tasks --------------------------------------------------------------------


class StartedTasks:
    """The asyncio tasks that an agent has started on one attempt, and those that they have started.

    A task that was created with a context of its own (`create_task(…, context=Context())`) is not
    among them: it belongs to the process. `on_exit` is called when one of them wants to end the
    process, whether the agent looks at its end or not.
    """

    def __init__(self, on_exit: Callable[[AgentFailedError], object] = lambda _: None) -> None:
        self._tasks: WeakSet[asyncio.Task[Any]] = WeakSet()
        self.on_exit = on_exit

    def add(self, task: asyncio.Future[Any]) -> None:
        if isinstance(task, asyncio.Task):
            self._tasks.add(task)

    async def end(self, *, clock: Clock, fields: Mapping[str, object]) -> None:
        """End the tasks that an agent has left running after its call; name them in the log, once.

        So nothing of a turn runs on into the next invocation, for another caller. Tasks that are
        being cancelled already are waited for, and not named. `fields` are added to the log lines.
        """
        names = sorted({_name_of(task) for task in self._running() if not task.cancelling()})
        if names:
            text = "Tasks that the agent had left running were ended with its turn: %s"
            extra = {"action": "background_tasks_ended", **fields}
            logger.warning(text, ", ".join(names), extra=extra)
        deadline = clock.monotonic() + STOP_GRACE_S
        for _ in range(ENDING_ROUNDS):  # the end of a task may start another one
            running = self._running()
            if not running:
                return
            grace_s = max(0.0, deadline - clock.monotonic())
            if await end_tasks(*running, clock=clock, grace_s=grace_s):
                break
        extra = {"action": "agent_left_behind", **fields}
        logger.error("A task that the agent has started does not stop", extra=extra)

    def _running(self) -> list[asyncio.Task[Any]]:
        return [task for task in self._tasks if not task.done()]


def _name_of(task: asyncio.Task[Any]) -> str:
    """Return the name of the function that a task runs, as the agent's author knows it."""
    work = task.get_coro()
    return str(getattr(work, "__qualname__", type(work).__name__))


# -- calls -----------------------------------------------------------------------------------


async def called(method: Callable[..., Any], *args: object) -> None:
    """Call a method of the agent and await it.

    Raises:
        WrongMethodError: it has returned what cannot be awaited, or takes other arguments; the
            message has the right form.
    """
    name = getattr(method, "__qualname__", type(method).__name__)
    short = name.rpartition(".")[2]
    try:
        given = method(*args)
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise  # in the method itself
        form = f"async def {short}(self, {_ARGUMENTS[len(args)]})"
        msg = f"The agent's {name} takes other arguments: write `{form}`."
        raise WrongMethodError(msg, place=place_of_function(method)) from error
    if inspect.isawaitable(given):
        await given
        return
    rule = f"write `async def {short}(…)`"
    if inspect.isasyncgen(given):
        rule = "take its `yield` out, and emit with `await ctx.emit_text_artifact(…)`"
    msg = f"The agent's {name} cannot be awaited: {rule}."
    raise WrongMethodError(msg, place=place_of_function(method))


class AgentCall(NamedTuple):
    """A call of the agent: the method's name, and the line."""

    name: str
    file: str
    line: int

    @property
    def place(self) -> str:
        """Return the line as messages name it."""
        return place(self.file, self.line)


class AgentCalls:
    """The calls of one attempt's agent that were made and not awaited yet, with their lines."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._made: dict[Coroutine[Any, Any, Any], AgentCall] = {}
        self._most = FEW_CALLS
        self._last: AgentCall | None = None

    @property
    def last_place(self) -> str:
        """Return the line of the agent's last call."""
        return "an unknown line" if self._last is None else self._last.place

    def note(self, name: str, made: Coroutine[Any, Any, Any]) -> None:
        """Take a coroutine that the caller's caller has asked for.

        Calls from other threads are not noted: a thread may be about to await one when the turn
        ends.
        """
        if threading.get_ident() != self._thread:
            return
        if len(self._made) >= self._most:  # rarely: thousands of calls may be made at once
            for earlier in tuple(self._made):
                if _has_begun(earlier):
                    self._made.pop(earlier, None)
            self._most = max(FEW_CALLS, 2 * len(self._made))
        frame = sys._getframe(2)  # noqa: SLF001 - the one way to it
        if frame.f_globals.get("__name__", "").partition(".")[0] != _RUNTIME:
            self._last = AgentCall(name, frame.f_code.co_filename, frame.f_lineno)
            self._made[made] = self._last

    def take_forgotten(self) -> list[AgentCall]:
        """Return the calls that were not awaited, in their order, and forget them."""
        made, self._made = self._made, {}
        forgotten = [call for each, call in made.items() if not _has_begun(each)]
        for each in made:
            if not _has_begun(each):
                each.close()  # so that Python does not warn of it a second time
        return forgotten


def noted(
    kind: str,
) -> Callable[[Callable[P, Coroutine[Any, Any, T]]], Callable[P, Coroutine[Any, Any, T]]]:
    """Return a decorator that notes each call of an `async` method in its object's `_calls`.

    `kind` is the name under which the agent has the object, such as `ctx`. The method still returns
    its coroutine, which can be made a task.
    """

    def decorate(
        method: Callable[P, Coroutine[Any, Any, T]],
    ) -> Callable[P, Coroutine[Any, Any, T]]:
        name = f"{kind}.{method.__name__}(…)"

        @functools.wraps(method)
        def call(*args: P.args, **options: P.kwargs) -> Coroutine[Any, Any, T]:
            made = method(*args, **options)
            owner: Any = args[0]
            owner._calls.note(name, made)  # noqa: SLF001 - what the decorator asks for
            return made

        return _marked(call)

    return decorate


def notes_calls(kind: type[T]) -> type[T]:
    """Decorate the class of an agent's `ctx`, so that calls of its `async` methods are noted."""
    for name, method in tuple(vars(kind).items()):
        if inspect.iscoroutinefunction(method) and not name.startswith("_"):
            setattr(kind, name, noted("ctx")(method))
    return kind


def _marked(function: Callable[P, T]) -> Callable[P, T]:
    """Make `inspect.iscoroutinefunction`, which mocks use, true for a function (Python 3.12 on)."""
    mark = getattr(inspect, "markcoroutinefunction", None)
    return function if mark is None else mark(function)


def _has_begun(made: Coroutine[Any, Any, Any]) -> bool:
    return inspect.getcoroutinestate(made) != inspect.CORO_CREATED


def have_threads(loop: asyncio.AbstractEventLoop, turns: int) -> None:
    """Let each of `turns` turns on `loop` run blocking code in a thread at the same time.

    Python's own default has four threads more than there are CPUs: all other turns would wait.
    """
    threads = max(turns, os.cpu_count() or 1) + 4
    loop.set_default_executor(_Threads(threads, thread_name_prefix="asyncio"))


class _Threads(ThreadPoolExecutor):
    """Runs each call in its caller's context, so that its log lines have the fields of the turn."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return super().submit(copy_context().run, functools.partial(fn, *args, **kwargs))


def name_origins() -> None:
    """Make Python's warning about a coroutine that was never awaited name the line of its call.

    This applies to the calling thread. Idempotent.
    """
    if not sys.get_coroutine_origin_tracking_depth():
        sys.set_coroutine_origin_tracking_depth(1)


# -- exits -----------------------------------------------------------------------------------


async def contained(call: Awaitable[None], started: StartedTasks | None = None) -> None:
    """Await a call of the agent; if the agent exits the process, end only its attempt.

    To be run in a task of its own. Tasks that the agent creates are contained as well if
    `survive_exits` was called on the loop; they are added to `started`.

    Raises:
        AgentFailedError: the agent, or one of its libraries, wanted to end the process.
    """
    _in_agent.set(started or StartedTasks())
    with _exits_as_failures():
        await call


def survive_exits(loop: asyncio.AbstractEventLoop) -> None:
    """Make an exit in a task that an agent creates on `loop` a failure of that task. Idempotent."""
    before = loop.get_task_factory()
    if isinstance(before, _Factory):
        return
    loop.set_task_factory(_Factory(before))


def run_to_end(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, T],
    *,
    may_stop: Callable[[], bool] = lambda: False,
) -> T:
    """Run `work` on `loop` to its end, whatever the agent does to the loop, and log that.

    A callback of the agent may raise an exit, and any of its code may stop the loop. `may_stop`
    tells whether a stop counts.

    Raises:
        SystemExit, KeyboardInterrupt: `work` itself has raised it.
        RuntimeError: the loop was stopped, and might be.
    """
    main = loop.create_task(work)
    while True:
        try:
            return loop.run_until_complete(main)
        except RuntimeError as error:
            if str(error) != _STOPPED or main.done() or may_stop():
                raise
            logger.error("The agent has stopped the event loop", extra={"action": "loop_stopped"})  # noqa: TRY400 - says all
        except (SystemExit, KeyboardInterrupt) as error:
            if main.done():
                return main.result()  # raises what `work` itself has raised
            extra = {"action": "exit_in_callback"}
            logger.error("A callback of the agent raised %r", error, extra=extra)  # noqa: TRY400 - its traceback is the loop's


class _Factory:
    """A task factory; `before` is the one that the loop had, None if it had none."""

    def __init__(self, before: Callable[..., asyncio.Future[Any]] | None) -> None:
        self._before = before

    def __call__(
        self,
        loop: asyncio.AbstractEventLoop,
        coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        **options: Any,
    ) -> asyncio.Future[Any]:
        context: Context | None = options.get("context")
        started = _in_agent.get() if context is None else context.get(_in_agent)
        if started is None:
            return self._make(loop, coro, **options)
        made = _Contained(coro, started) if isinstance(coro, Coroutine) else coro
        task = self._make(loop, made, **options)
        started.add(task)
        return task

    def _make(
        self,
        loop: asyncio.AbstractEventLoop,
        coro: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
        **options: Any,
    ) -> asyncio.Future[Any]:
        if self._before is not None:
            return self._before(loop, coro, **options)
        return asyncio.Task(coro, loop=loop, **options)


class _Contained(Coroutine[Any, Any, Any]):
    """A coroutine whose exits become failures of the agent.

    It delegates step by step. A coroutine that awaits it would not do: if the task is cancelled
    before its first step, the inner coroutine would never start.
    """

    def __init__(self, coro: Coroutine[Any, Any, Any], started: StartedTasks) -> None:
        self._coro = coro
        self._started = started
        self.__name__ = getattr(coro, "__name__", type(coro).__name__)
        self.__qualname__ = getattr(coro, "__qualname__", self.__name__)

    def send(self, value: Any) -> Any:
        with _exits_as_failures(self._started):
            return self._coro.send(value)

    def throw(
        self,
        typ: type[BaseException] | BaseException,
        val: BaseException | object = None,
        tb: TracebackType | None = None,
    ) -> Any:
        del tb  # it is the error's own
        error = typ if isinstance(typ, BaseException) else val
        with _exits_as_failures(self._started):
            return self._coro.throw(error if isinstance(error, BaseException) else typ)

    def close(self) -> None:
        self._coro.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield from self._coro.__await__())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._coro, name)  # cr_frame and the like, for debuggers


@contextmanager
def _exits_as_failures(started: StartedTasks | None = None) -> Iterator[None]:
    try:
        yield
    except (SystemExit, KeyboardInterrupt) as error:
        has = "called sys.exit()" if isinstance(error, SystemExit) else "raised KeyboardInterrupt"
        failure = AgentFailedError(f"The agent {has}.")
        failure.__cause__ = error
        if started is not None:
            started.on_exit(failure)
        raise failure from error
