"""The event loop that an agent shares with the runtime, and the one that goes on beside it.

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
import time
from collections.abc import (
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Generator,
    Iterator,
    Mapping,
)
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from contextvars import Context, ContextVar, copy_context
from types import TracebackType
from typing import Any, Final, NamedTuple, ParamSpec, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from a2a_serverless.clock import STOP_GRACE_S, Clock, call_in, end_tasks
from a2a_serverless.errors import UnavailableError
from a2a_serverless.worker.failures import (
    AgentFailedError,
    WrongMethodError,
    log_exceptions,
    own_frame,
    place,
    place_of_function,
)
from a2a_serverless.worker.steps import TurnLeft

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
_LEAVING: Final = (TurnLeft, GeneratorExit)
"""Exceptions of tasks that asyncio does not report."""
_STOPPED: Final = "Event loop stopped before Future completed."
"""The text of asyncio's RuntimeError after `loop.stop()`."""

ENDING_ROUNDS: Final = 10
"""How many times tasks are ended that earlier tasks have started while they ended."""

LOOK_S: Final = 0.25
BLOCKED_S: Final = 1.0
REPORT_AFTER_S: Final = 10.0
"""Seconds between two questions to the agents' loop; without an answer until the loop counts as
blocked; and until a blockage that has not ended is reported."""

Duty = Callable[[asyncio.Event], Coroutine[Any, Any, None]]
"""Runs in the keeper's loop until the event is set, and returns soon after."""

OnBlocked = Callable[[float, str], None]
"""Takes the seconds for which the loop was blocked, and the place in the code as FILE:LINE."""


def in_agent() -> bool:
    """Return True in an agent's call, and in the tasks that it has started there."""
    return _in_agent.get() is not None


def task_number() -> int:
    """Return the number of the calling task among those that the agent has started; 0: none."""
    started = _in_agent.get()
    return 0 if started is None else started.number_of(asyncio.current_task())


@contextmanager
def runtimes_own() -> Iterator[None]:
    """Name no task in the log that the block starts for an agent: the agent has not left it."""
    before = _is_runtimes.set(True)
    try:
        yield
    finally:
        _is_runtimes.reset(before)


# -- an agent's own tasks --------------------------------------------------------------------


class StartedTasks:
    """The asyncio tasks that an agent has started on one attempt, and those that they have started.

    A task that was created with a context of its own (`create_task(…, context=Context())`) is not
    among them: it belongs to the process. `on_exit` is called when one of them wants to end the
    process, whether the agent looks at its end or not.
    """

    def __init__(self, on_exit: Callable[[AgentFailedError], object] = lambda _: None) -> None:
        self._tasks: WeakKeyDictionary[asyncio.Task[Any], int] = WeakKeyDictionary()
        """Their numbers, in the order in which they were started."""
        self._count = 0
        self._runtimes: WeakSet[asyncio.Task[Any]] = WeakSet()
        self.on_exit = on_exit

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
    """Decorate the class of an agent's `ctx`: calls of its `async` methods are noted.

    They raise TurnLeft once the turn has left its process.
    """
    for name, method in tuple(vars(kind).items()):
        if inspect.iscoroutinefunction(method) and not name.startswith("_"):
            setattr(kind, name, noted("ctx")(_unless_left(method)))
    return kind


def _unless_left(
    method: Callable[P, Coroutine[Any, Any, T]],
) -> Callable[P, Coroutine[Any, Any, T]]:
    @functools.wraps(method)
    async def call(*args: P.args, **options: P.kwargs) -> T:
        owner: Any = args[0]
        try:
            await owner._queue.unless_left()  # noqa: SLF001 - as of `noted`
        except TurnLeft:
            for given in filter(inspect.iscoroutine, args):  # Python would warn of it
                given.close()
            raise
        return await method(*args, **options)

    return call


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
    """Make an exit in a task that an agent creates on `loop` a failure of that task. Idempotent.

    asyncio reports exceptions that nobody has awaited; TurnLeft is none of these.
    """
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


# -- the loop beside it ---------------------------------------------------------------------


class Keeper:
    """Runs the duties of a process's turns in one thread, as long as there are any.

    So the delivery and the lease of a turn are renewed, and the turn is claimed, even if its agent
    blocks the event loop. Between two invocations of a Lambda no thread is left; a process that
    goes on between its turns keeps the thread. One keeper belongs to one event loop, that of the
    agents.

    >>> async def run(keeper: Keeper, renew: Duty) -> None:
    ...     async with keeper.over(renew):
    ...         time.sleep(600)  # the renewals go on
    """

    def __init__(self) -> None:
        self._side: _Side | None = None

    @property
    def lag_s(self) -> float:
        """Return how many seconds late the agents' loop last answered; 0 while no turn runs."""
        return 0.0 if self._side is None else self._side.lag.seconds

    async def stay(self) -> None:
        """Keep the thread, with or without duties, until cancelled."""
        async with self.over():
            await asyncio.get_running_loop().create_future()

    @asynccontextmanager
    async def over(self, *duties: Duty, on_blocked: OnBlocked | None = None) -> AsyncIterator[None]:
        """Run duties while the block runs; they have ended when the block is left.

        `on_blocked` is called for each blockage of the loop that runs the block: in the keeper's
        thread, or when the block is left after one that the keeper has not reported yet.

        Raises:
            UnavailableError: no thread could be started.
        """
        if self._side is None or self._side.has_left:
            self._side = _Side()
        side = self._side
        side.users += 1
        listener = side.listen(on_blocked) if on_blocked else None
        try:
            running = [side.start(duty) for duty in duties]
            try:
                yield
            finally:
                await _ended(running)
        finally:
            side.users -= 1
            if listener is not None:
                side.forget(listener)
            if not side.users:
                if self._side is side:
                    self._side = None
                await side.end()


class _OnDuty:
    """One duty in the keeper's loop."""

    def __init__(self, duty: Duty, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._stop = asyncio.Event()
        self.done = asyncio.run_coroutine_threadsafe(duty(self._stop), loop)

    def stop(self) -> None:
        """Ask the duty to return; harmless when its loop has ended."""
        call_in(self._loop, self._stop.set)


async def _ended(running: list[_OnDuty]) -> None:
    """Stop duties and return when they have ended; log their exceptions."""
    for duty in running:
        duty.stop()
    ends = [asyncio.wrap_future(duty.done) for duty in running]
    for error in await asyncio.gather(*ends, return_exceptions=True):
        if error is not None:
            logger.error("A keeper's duty failed", extra={"action": "keeper"}, exc_info=error)


class _Side:
    """The thread, its loop, and its watch on the agents' loop, the home loop."""

    def __init__(self) -> None:
        """Start the thread; raise UnavailableError if the system has none."""
        self.users = 0
        self.has_left = False
        self._listeners: set[OnBlocked] = set()
        self._home = asyncio.get_running_loop()
        self._home_thread = threading.get_ident()
        self.lag = _Lag(self._home, self._home_thread)
        self._has_ended = self._home.create_future()
        self._duties: list[_OnDuty] = []
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._run, name="keeper", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise _no_thread() from error
        self._ready.wait()

    def start(self, duty: Duty) -> _OnDuty:
        """Begin a duty in the context of the caller, so that its log lines name the turn."""
        if self._loop is None:
            raise _no_thread()
        running = _OnDuty(duty, self._loop)
        self._duties.append(running)
        running.done.add_done_callback(lambda _: self._duties.remove(running))
        return running

    def listen(self, on_blocked: OnBlocked) -> OnBlocked:
        """Call `on_blocked` for blockages, in the caller's context; return the added listener."""
        context = copy_context()

        def listener(seconds: float, place: str) -> None:
            # A copy: the agents' thread may call it at the end of a turn while the keeper's does.
            context.copy().run(on_blocked, seconds, place)

        self._listeners.add(listener)
        return listener

    def forget(self, listener: OnBlocked) -> None:
        """Stop calling `listener`; tell it of a blockage that has ended just now."""
        self._listeners.discard(listener)
        blocked = self.lag.unreported()
        if blocked is not None:
            _tell(listener, *blocked)
        if not self._listeners:
            self.lag = _Lag(self._home, self._home_thread)  # no later turn hears of this blockage

    async def end(self) -> None:
        """Return when the thread has ended."""
        if self._loop is not None:
            call_in(self._loop, self._stop.set)
        await self._has_ended
        self._thread.join()  # immediate: the future is set by its last statement

    def _run(self) -> None:
        try:
            with asyncio.Runner() as runner:
                runner.run(self._stay())
        except Exception:
            # The thread's edge: deliveries count as lost, and the next turn gets another thread.
            logger.exception("The keeper's thread has failed", extra={"action": "keeper"})
        finally:
            self.has_left = True
            self._ready.set()  # also if no loop could be made
            call_in(self._home, self._resolve)

    def _resolve(self) -> None:
        if not self._has_ended.done():
            self._has_ended.set_result(None)

    async def _stay(self) -> None:
        """Look at the home loop until the end, or until that loop has died with its turns."""
        self._stop = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._ready.set()
        absent = 0
        while not self._stop.is_set():
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await self._stop.wait()
            # The home loop may stand still for a moment between two of its runs.
            absent = 0 if self._home.is_running() else absent + 1
            if absent > 1:
                break
            if not (self._duties or self._listeners):
                continue
            blocked = self.lag.look()
            if blocked is not None:
                for listener in tuple(self._listeners):
                    _tell(listener, *blocked)
        self.has_left = True
        for duty in tuple(self._duties):
            duty.stop()
        await asyncio.gather(
            *(asyncio.wrap_future(duty.done) for duty in tuple(self._duties)),
            return_exceptions=True,
        )


def _tell(listener: OnBlocked, seconds: float, place: str) -> None:
    # A warning that cannot be written must not end the heartbeats.
    with log_exceptions(logger, logging.ERROR, "A blockage was not reported", action="keeper"):
        listener(seconds, place)


class _Lag:
    """Notices that a loop does not answer, and which place in the code its thread is at."""

    def __init__(self, home: asyncio.AbstractEventLoop, thread_id: int) -> None:
        self._home = home
        self._thread_id = thread_id
        self._asked_at = 0.0
        self._answered_after_s = 0.0
        self._is_waiting = False
        self._place = ""
        self._is_reported = False

    @property
    def seconds(self) -> float:
        """Return the seconds that the last answer took, or that the next one has taken so far."""
        waited_s = time.monotonic() - self._asked_at if self._is_waiting else 0.0
        return max(self._answered_after_s, waited_s)

    def unreported(self) -> tuple[float, str] | None:
        """Return seconds and place of a blockage that no look has reported yet; None if none is."""
        return None if self._is_reported or not self._place else (self.seconds, self._place)

    def look(self) -> tuple[float, str] | None:
        """Return seconds and place of a blockage to report now; None if there is none."""
        lag_s = time.monotonic() - self._asked_at
        if not self._is_waiting:
            return self._ask()
        if lag_s >= BLOCKED_S and not self._place:
            self._place = _place_of(self._thread_id)
        if lag_s >= REPORT_AFTER_S and not self._is_reported:
            self._is_reported = True
            return lag_s, self._place
        return None

    def _ask(self) -> tuple[float, str] | None:
        """Ask the loop for an answer; return the blockage that has ended with the last one."""
        ended = (self._answered_after_s, self._place) if self._place else None
        was_reported, self._is_reported, self._place = self._is_reported, False, ""
        self._asked_at, self._is_waiting = time.monotonic(), True
        call_in(self._home, self._answer)  # if the loop is closed, `_Side` sees that
        return None if was_reported else ended

    def _answer(self) -> None:
        self._answered_after_s = time.monotonic() - self._asked_at
        self._is_waiting = False


def _place_of(thread_id: int) -> str:
    """Return FILE:LINE of the author's innermost frame, of the innermost one if there is none."""
    innermost = sys._current_frames().get(thread_id)  # noqa: SLF001 - the one way to it
    frame = own_frame(innermost) or innermost
    return "unknown" if frame is None else f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _no_thread() -> UnavailableError:
    return UnavailableError("No thread could be started to keep the delivery.")
