"""The event loop that an agent shares with the runtime, and what an agent may do to it.

An agent starts tasks of its own, forgets to await calls, exits, and blocks its loop.

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
from collections.abc import (
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterator,
    Mapping,
)
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import Context, ContextVar, copy_context
from dataclasses import field
from types import TracebackType
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from a2a_serverless.clock import STOP_GRACE_S, Clock, end_tasks
from a2a_serverless.values import dataclass
from a2a_serverless.worker.failures import (
    AgentFailedError,
    WrongMethodError,
    place,
    place_of_function,
)
from a2a_serverless.worker.steps import TurnParked

P = ParamSpec("P")
T = TypeVar("T")

logger = logging.getLogger(__name__)

_in_agent: ContextVar[StartedTasks | None] = ContextVar("in_agent", default=None)
_is_runtimes: ContextVar[bool] = ContextVar("is_runtimes", default=False)

_ARGUMENTS: Final = ("", "ctx", "context, event_queue")
"""Of a method of the agent, by their number: a Worker's, an AgentExecutor's."""
FEW_CALLS: Final = 64
"""Calls of one attempt up to which those that were awaited are not sorted out."""
_RUNTIME: Final = __name__.partition(".")[0]
_LEAVING: Final = (TurnParked, GeneratorExit)
"""Exceptions of tasks that asyncio does not report."""
_STOPPED: Final = "Event loop stopped before Future completed."
"""The text of asyncio's RuntimeError after `loop.stop()`."""

ENDING_ROUNDS: Final = 10
"""How many times tasks are ended that earlier tasks have started while they ended."""


def in_agent() -> bool:
    """Return True in an agent's call, and in the tasks that it has started there."""
    return _in_agent.get() is not None


def task_number() -> int:
    """Return the number of the calling task among those that the agent has started; 0: none."""
    started = _in_agent.get()
    return 0 if started is None else started.number_of(asyncio.current_task())


def has_tasks() -> bool:
    """Return True if tasks run that the agent has started."""
    started = _in_agent.get()
    return started is not None and started.has_own


@contextmanager
def runtimes_own() -> Iterator[None]:
    """Name no task in the log that the block starts for an agent: the agent has not left it."""
    before = _is_runtimes.set(True)
    try:
        yield
    finally:
        _is_runtimes.reset(before)


# -- an agent's own tasks --------------------------------------------------------------------


@dataclass(eq=False)
class StartedTasks:
    """The asyncio tasks that an agent has started on one attempt, and those that they have started.

    A task that was created with a context of its own (`create_task(…, context=Context())`) is not
    among them: it belongs to the process. `on_exit` is called when one of them wants to end the
    process, whether the agent looks at its end or not.
    """

    on_exit: Callable[[AgentFailedError], object] = lambda _: None
    _tasks: WeakKeyDictionary[asyncio.Task[Any], int] = field(
        default_factory=WeakKeyDictionary, init=False
    )
    """Their numbers, in the order in which they were started."""
    _count: int = field(default=0, init=False)
    _runtimes: WeakSet[asyncio.Task[Any]] = field(default_factory=WeakSet, init=False)

    def add(self, task: asyncio.Future[Any]) -> None:
        if isinstance(task, asyncio.Task):
            self._count += 1
            self._tasks[task] = self._count
            if _is_runtimes.get():
                self._runtimes.add(task)

    async def end(self, *, clock: Clock, fields: Mapping[str, object]) -> None:
        """End the tasks that an agent has left running after its call; name them in the log, once.

        So nothing of a turn runs on into the next invocation, for another caller. Tasks that are
        being cancelled already are waited for, and not named, nor are those of `runtimes_own`.
        `fields` are added to the log lines.
        """
        left = [task for task in self.running() if task not in self._runtimes]
        names = sorted({_name_of(task) for task in left if not task.cancelling()})
        if names:
            text = "Tasks that the agent had left running were ended with its turn: %s"
            extra = {"action": "background_tasks_ended", **fields}
            logger.warning(text, ", ".join(names), extra=extra)
        deadline = clock.monotonic() + STOP_GRACE_S
        for _ in range(ENDING_ROUNDS):  # the end of a task may start another one
            running = self.running()
            if not running:
                return
            grace_s = max(0.0, deadline - clock.monotonic())
            if await end_tasks(*running, clock=clock, grace_s=grace_s):
                break
        extra = {"action": "agent_left_behind", **fields}
        logger.error("A task that the agent has started does not stop", extra=extra)

    def running(self) -> list[asyncio.Task[Any]]:
        """Return those that have not ended."""
        return [task for task in self._tasks if not task.done()]

    @property
    def has_own(self) -> bool:
        """Return True if one has not ended that is none of `runtimes_own`."""
        return any(task not in self._runtimes for task in self.running())

    def number_of(self, task: asyncio.Task[Any] | None) -> int:
        """Return the number of a task, from 1 on; 0 for another one, such as the agent's own."""
        return 0 if task is None else self._tasks.get(task, 0)


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


@dataclass(eq=False)
class AgentCalls:
    """The calls of one attempt's agent that were made and not awaited yet, with their lines."""

    _thread: int = field(default_factory=threading.get_ident)
    _made: dict[Coroutine[Any, Any, Any], AgentCall] = field(default_factory=dict)
    _most: int = FEW_CALLS
    _last: AgentCall | None = None

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
    """Decorate the class of an agent's `ctx`: calls of its `async` methods are noted.

    They raise TurnParked once the turn has left its process.
    """
    for name, method in tuple(vars(kind).items()):
        if inspect.iscoroutinefunction(method) and not name.startswith("_"):
            setattr(kind, name, _noted_unless_parked(f"ctx.{name}(…)", method))
    return kind


def _noted_unless_parked(
    name: str, method: Callable[P, Coroutine[Any, Any, T]]
) -> Callable[P, Coroutine[Any, Any, T]]:
    @functools.wraps(method)
    def call(*args: P.args, **options: P.kwargs) -> Coroutine[Any, Any, T]:
        owner: Any = args[0]
        if owner._turn.parking is None:  # noqa: SLF001 - as of `noted`
            made = method(*args, **options)
        else:
            made = _unless_parked(owner._turn, functools.partial(method, *args, **options), args)  # noqa: SLF001
        owner._calls.note(name, made)  # noqa: SLF001
        return made

    return _marked(call)


async def _unless_parked(
    turn: Any, call: Callable[[], Coroutine[Any, Any, T]], args: tuple[object, ...]
) -> T:
    try:
        await turn.unless_parked()
    except TurnParked:
        for given in filter(inspect.iscoroutine, args):  # Python would warn of it
            given.close()
        raise
    return await call()


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


# -- exits -----------------------------------------------------------------------------------


async def contained(call: Awaitable[None], started: StartedTasks | None = None) -> None:
    """Await a call of the agent; if the agent exits the process, end only its attempt.

    To be run in a task of its own. Tasks that the agent creates are contained as well if
    `prepare_loop` was called on the loop; they are added to `started`.

    Raises:
        AgentFailedError: the agent, or one of its libraries, wanted to end the process.
    """
    _in_agent.set(started or StartedTasks())
    with _exits_as_failures():
        await call


def prepare_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Make an exit in a task that an agent creates on `loop` a failure of that task. Idempotent.

    In the calling thread Python's warning about a coroutine that was never awaited names the line
    of its call.

    Exceptions that nobody has awaited are reported as before, but not those with which a task
    leaves: `_LEAVING`.
    """
    if not sys.get_coroutine_origin_tracking_depth():
        sys.set_coroutine_origin_tracking_depth(1)
    before = loop.get_task_factory()
    if isinstance(before, _Factory):
        return
    loop.set_task_factory(_Factory(before))
    report = loop.get_exception_handler() or asyncio.BaseEventLoop.default_exception_handler

    def reported(loop: Any, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseExceptionGroup):  # as from a generator with a TaskGroup
            error = error.exceptions[0] if error.split(_LEAVING)[1] is None else error
        if not isinstance(error, _LEAVING):
            report(loop, context)

    loop.set_exception_handler(reported)


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
        if started is not None and isinstance(coro, Coroutine):
            coro = _Contained(coro, started)
        if self._before is None:
            task: asyncio.Future[Any] = asyncio.Task(coro, loop=loop, **options)
        else:
            task = self._before(loop, coro, **options)
        if started is not None:
            started.add(task)
        return task


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
