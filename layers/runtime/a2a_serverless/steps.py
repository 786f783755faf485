"""Steps for any agent: what `TaskContext` has as methods, as functions for an AgentExecutor.

>>> from a2a_serverless.steps import sleep, step
>>> class Agent(AgentExecutor):
...     async def execute(self, context, event_queue):
...         plan = await step("plan", call_model, context.get_user_input())

The page `long-work` says what is kept and what runs again.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Coroutine
from datetime import datetime
from typing import Any, ParamSpec, TypeVar, overload

from a2a.types import AgentCard

from a2a_serverless.worker.calls import Remote, Reply
from a2a_serverless.worker.context import current_context
from a2a_serverless.worker.questions import Answer, WaitTimeoutError, WrongAnswerError
from a2a_serverless.worker.steps import ONCE, Retry, StepError, TurnParked

__all__ = [
    "Answer",
    "Remote",
    "Reply",
    "Retry",
    "StepError",
    "TurnParked",
    "WaitTimeoutError",
    "WrongAnswerError",
    "ask",
    "call_agent",
    "poll",
    "sleep",
    "sleep_until",
    "step",
    "step_id",
]

P = ParamSpec("P")
T = TypeVar("T")


@overload
def step(
    name: str,
    func: Callable[..., Any],
    *args: Any,
    key: str = "",
    type: Any = None,
    retry: Retry = ONCE,
    **kwargs: Any,
) -> Coroutine[Any, Any, Any]: ...


@overload
def step(name: Callable[P, Any]) -> Callable[P, Coroutine[Any, Any, Any]]: ...


@overload
def step(
    name: str = "",
    *,
    key: str | Callable[..., str] = "",
    type: Any = None,
    retry: Retry = ONCE,
) -> Callable[[Callable[P, Any]], Callable[P, Coroutine[Any, Any, Any]]]: ...


def step(name: Any = "", func: Any = None, *args: Any, **options: Any) -> Any:
    """Run a function as a step of the current turn, as `TaskContext.step` does; or decorate one.

    A decorated function is a step wherever it is called. Its name is the function's, unless `name`
    is given; `key` may be a function of the call's arguments.

    >>> found = await step("search", search, "Lisbon")
    >>> @step(retry=Retry(tries=3), key=lambda city: city)
    ... async def search(city: str) -> list[str]: ...

    Raises:
        RuntimeError: no turn runs here.
        StepError, WrongCallError: as `TaskContext.step`.
    """
    if func is not None:
        return current_context().step(name, func, *args, **options)
    if callable(name):
        return _decorated(name, "", {})
    return functools.partial(_decorated, name=name, options=options)


def _decorated(
    func: Callable[..., Any], name: str, options: dict[str, Any]
) -> Callable[..., Coroutine[Any, Any, Any]]:
    given = options.get("key", "")

    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Coroutine[Any, Any, Any]:
        key = given(*args, **kwargs) if callable(given) else given
        work = functools.partial(func, *args, **kwargs)
        return current_context().step(name or func.__name__, work, **{**options, "key": key})

    marked: Callable[..., Coroutine[Any, Any, Any]] = getattr(
        inspect, "markcoroutinefunction", lambda each: each
    )(call)
    return marked


async def sleep(seconds: float, *, key: str = "") -> None:
    """Wait, as `TaskContext.sleep` does: from a minute on, no process waits."""
    await current_context().sleep(seconds, key=key)


async def sleep_until(when: datetime) -> None:
    """Wait until a time with a time zone, as `TaskContext.sleep_until` does."""
    await current_context().sleep_until(when)


async def ask(
    question: str,
    *,
    data: Any = None,
    schema: Any = None,
    timeout_s: float | None = None,
    auth: str | None = None,
    id: str = "",  # noqa: A002 - as of `TaskContext.ask`
) -> Answer:
    """Ask the client, and go on with the answer, as `TaskContext.ask` does.

    >>> answer = await ask("Which account?")

    Raises:
        TurnParked, WaitTimeoutError, WrongAnswerError, WrongCallError: as `TaskContext.ask`.
    """
    return await current_context().ask(
        question, data=data, schema=schema, timeout_s=timeout_s, auth=auth, id=id
    )


async def call_agent(agent: str | AgentCard | Remote, message: str, **options: Any) -> Reply:
    """Call another agent, as `TaskContext.call_agent` does, which has the options.

    An AgentExecutor has no `agents` by name: pass a URL, a card or a Remote.

    >>> reply = await call_agent("https://books.example", "a book on tea")

    Raises:
        TurnParked, WaitTimeoutError, WrongCallError: as `TaskContext.call_agent`.
    """
    return await current_context().call_agent(agent, message, **options)


async def poll(name: str, look: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a function until it returns something other than None, as `TaskContext.poll` does.

    >>> url = await poll("export", exports.url_of, job, every_s=60)
    """
    return await current_context().poll(name, look, *args, **options)


def step_id() -> str:
    """Return the id of the step that runs, the same each time that it runs.

    Raises:
        RuntimeError: the code is outside of steps.
    """
    return current_context().step_id
