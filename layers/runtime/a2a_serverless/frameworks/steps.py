"""A framework's calls of models and tools as the steps of a turn."""

from __future__ import annotations

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, Final, NoReturn, TypeAlias

from pydantic_core import to_jsonable_python

from a2a_serverless.tasks.entries import StepId
from a2a_serverless.tasks.identity import digest, unicode_of
from a2a_serverless.worker import FinalError, TaskContext
from a2a_serverless.worker.context import active_turn
from a2a_serverless.worker.failures import RecordTooLargeError, WrongCallError
from a2a_serverless.worker.meter import BudgetError
from a2a_serverless.worker.steps import ENDINGS, MAX_NAME, StepError, current_step

logger = logging.getLogger(__name__)

_MAX_KEY: Final = 150
"""The longest id of a framework that is a step's key as it is."""
_MOST_TRIES: Final = 20
"""How often a framework may try a call again in one attempt."""
RECORD_TOO_LARGE: Final = (
    "What the agent's model or a tool has made is larger than the record of a step may be:"
    " ask for less at once, or for a smaller file."
)
MODEL: Final = "model"
"""The name of the steps that are requests of a model; a tool's steps have its name."""

Signals: TypeAlias = Mapping[type[Exception], tuple[str, ...]]
"""Exceptions with which a framework steers itself: for each one its attributes, which its
constructor takes under the same names."""


_TOOL: Final = "tool"
"""The key of a status's metadata that tells a call of a tool."""
_MOST_SHOWN: Final = 8_000
"""The most characters of JSON that a status shows of a framework's value."""


@contextmanager
def final_errors(texts: Mapping[type[Exception], str]) -> Iterator[None]:
    """Fail the task at once for errors of the framework that come again with every start.

    `texts` says for each kind of error what the client reads.
    """
    try:
        yield
    except tuple(texts) as error:
        text = next(text for kind, text in texts.items() if isinstance(error, kind))
        raise FinalError(f"{type(error).__name__}: {error}", client_text=text) from error


def to_show(value: Any) -> Any:
    """Return a value of a framework as JSON, if it is small enough for a status; else its size."""
    text = text_of(value)
    return json.loads(text) if len(text) <= _MOST_SHOWN else {"characters": len(text)}


async def show_tool(ctx: TaskContext, name: str, call: str, state: str, **more: Any) -> None:
    """Tell the client that a call of a tool is "called", has "returned" or has "raised"."""
    told = {"name": name, "call": call, "state": state, **more}
    await ctx.send_status(f"Calls {name}." if state == "called" else None, {_TOOL: told})


def count_tokens(
    ctx: TaskContext,
    model: object,
    *,
    input_tokens: int | None,
    output_tokens: int | None,
    cached_tokens: int | None = 0,
    calls: int = 1,
) -> None:
    """Count what a model says that its answer has used; a count that it leaves out is 0.

    The answer was paid: counts that cannot be are logged, and end no turn.
    """
    inputs, outputs = input_tokens or 0, output_tokens or 0
    if not (inputs or outputs):
        return
    try:
        ctx.usage(
            str(model or "unknown"),
            input_tokens=inputs,
            output_tokens=outputs,
            cached_tokens=min(cached_tokens or 0, inputs),
            calls=calls,
        )
    except (WrongCallError, TypeError):
        told = f"{inputs!r} in, {cached_tokens!r} of them cached, {outputs!r} out"
        extra = {"action": "usage_not_counted", "task_id": ctx.task_id}
        logger.warning("Tokens that a model reports are not counted: %s", told, extra=extra)


class NotRecordedError(StepError):
    """A call has raised: its exception is the cause. It has no record, and the call runs again."""


def jsonable(value: Any, **options: Any) -> Any:
    """Return a value of a framework as JSON; `options` are those of pydantic."""
    try:
        return to_jsonable_python(value, **options)
    except UnicodeEncodeError:  # halves of characters
        return to_jsonable_python(unicode_of(value), **options)


def text_of(asked: Any) -> str:
    """Return what is asked as a text, the same one in each process: sets have to be sorted."""
    made = jsonable(
        asked,
        bytes_mode="base64",
        exclude_none=True,
        fallback=lambda odd: type(odd).__qualname__,
    )
    return json.dumps(made, sort_keys=True)


class Steps:
    """Runs the calls of one turn as steps: the one recorder under all adapters.

    LangGraph looks for a record before it decides to run a node, and so asks for `recorded` and
    `record` by themselves; the others have calls, which `run` looks up and makes.

    A signal of the framework is recorded and raised again like a result. Any other exception comes
    through as it is and is not recorded: in a later attempt the call runs again, unless the
    framework has repeated it with success.

    Args:
        pauses: how often the run has asked the client before: nothing is recorded twice under one
            name and key.
    """

    def __init__(
        self,
        ctx: TaskContext,
        pauses: int,
        signals: Signals | None = None,
        *,
        shows_tools: bool = False,
    ) -> None:
        self.ctx = ctx
        self._behind = f"behind {pauses}" if pauses else ""
        self._signals = signals or {}
        self.shows_tools = shows_tools
        self._numbers: Counter[tuple[str, str]] = Counter()
        self._failed: defaultdict[tuple[str, str], list[tuple[int, int]]] = defaultdict(list)

    def key(self, told: str, number: int) -> str:
        """Return the key of the n-th step that is `told` apart from others of its name."""
        return f"{told} {number} {self._behind}".strip()

    async def recorded(self, name: str, key: str) -> bytes | None:
        """Return the bytes that an earlier attempt has recorded for a step; None: it has not."""
        record = await active_turn(self.ctx).recorded(StepId(name, key, 1))
        return None if record is None else record.value

    async def record(self, name: str, call: Callable[..., Any], *given: Any, key: str) -> Any:
        """Return the result of a call, once it is recorded under a name and key.

        Raises:
            FinalError: the result is larger than a record may be, as it is in each attempt.
        """
        with final_errors({RecordTooLargeError: RECORD_TOO_LARGE}):
            return await self.ctx.step(name, call, *given, key=key)

    def refuse(self, what: str) -> NoReturn:
        """Let the turn start over: a record is not of `what` the framework has done now.

        Raises:
            NonDeterminismError: always.
        """
        told = ", or turn the adapter's steps off (`steps=False`)"
        active_turn(self.ctx).raise_non_determinism(what, told)

    async def run(
        self,
        name: str,
        call: Callable[[], Awaitable[Any]],
        *,
        key: str = "",
        asked: Any = None,
        arguments: Any = None,
    ) -> Any:
        """Return the result of a call, a JSON value; `key` is the framework's id of the call.

        `asked` is what it is asked, without what is new in each attempt; None: the id says it.
        A call of a tool has its `arguments`, and is shown to the client where that is wanted.

        Calls of one name and key are told apart by the order in which they begin. A call after one
        that has failed is the same one, tried again. A call inside a step belongs to that step.

        Raises:
            NonDeterminismError: the record is of a call that was `asked` something else.
        """
        if name == MODEL:
            call = partial(self._within_budget, call)
        if arguments is not None:
            call = partial(self.show, name, key, arguments, call)
        if current_step() is not None:
            return await call()
        name, failed = name[:MAX_NAME], self._failed[name, key]
        if failed:
            number, tries = failed.pop(0)
        else:
            self._numbers[name, key] += 1
            number, tries = self._numbers[name, key], 1
        told = key if len(key) <= _MAX_KEY else digest(key)
        mark = [] if asked is None else [digest("asked", text_of(asked))]
        keys = [self.key(told, number)]
        keys += [f"{keys[0]} try {n}" for n in range(2, _MOST_TRIES)]
        for each in keys:
            if (record := await self.recorded(name, each)) is not None:
                return self._result(json.loads(record), f"{name!r} ({keys[0]})", mark)
        try:
            ran = await self.record(name, self._to_record, call, mark, key=keys[tries - 1])
        except NotRecordedError as error:
            failed.append((number, tries + 1))
            failure = error.__cause__ or error
        else:
            return self._result(ran, name, mark)
        raise failure  # outside of `except`, which would change its chain

    async def _within_budget(self, call: Callable[[], Awaitable[Any]]) -> Any:
        self.ctx.check_budget()
        return await call()

    async def show(
        self, name: str, key: str, arguments: Any, call: Callable[[], Awaitable[Any]]
    ) -> Any:
        """Return the result of a tool's call; show the client its begin and end, if that is wanted.

        The arguments are a JSON value, or its text.
        """
        if not self.shows_tools:
            return await call()
        if isinstance(arguments, str):
            with suppress(ValueError):
                arguments = json.loads(arguments)
        await show_tool(self.ctx, name, key, "called", arguments=to_show(arguments))
        try:
            result = await call()
        except Exception:
            await show_tool(self.ctx, name, key, "raised")
            raise
        await show_tool(self.ctx, name, key, "returned")
        return result

    async def _to_record(self, call: Callable[[], Awaitable[Any]], mark: list[str]) -> Any:
        try:
            return [None, await call(), *mark]
        except tuple(self._signals) as signal:
            kind = next(kind for kind in self._signals if isinstance(signal, kind))
            told = {name: getattr(signal, name) for name in self._signals[kind]}
            return [kind.__name__, told, *mark]
        except (*ENDINGS, BudgetError):
            raise
        except BaseException as error:
            raise NotRecordedError("", type(error).__name__, "") from error

    def _result(self, recorded: list[Any], name: str, mark: list[str]) -> Any:
        signal, result, *of = recorded
        if of != mark:
            self.refuse(f"asked {name} something else than before")
        for kind in self._signals:
            if kind.__name__ == signal:
                raise kind(**result)
        return result
