"""A framework's calls of models and tools as the steps of a turn."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeAlias

from a2a_serverless.tasks.entries import StepId
from a2a_serverless.tasks.identity import digest
from a2a_serverless.worker import TaskContext
from a2a_serverless.worker.steps import MAX_NAME, StepError, current_step

MODEL = "model"
"""The name of the steps that are requests of a model; a tool's steps have its name."""

Signals: TypeAlias = Mapping[type[Exception], tuple[str, ...]]
"""Exceptions with which a framework steers itself: for each one its attributes, which its
constructor takes under the same names."""


class NotRecordedError(StepError):
    """A call has raised: its exception is the cause. It has no record, and the call runs again."""


def record_of(ctx: TaskContext, name: str, key: str) -> bytes | None:
    """Return the bytes that an earlier attempt has recorded for the one step of a name and key."""
    record = ctx._queue.journal.found(StepId(name, key, 1))  # noqa: SLF001 - the adapters belong to the runtime
    return None if record is None else record.value


class Steps:
    """Runs the calls of one turn as steps.

    A signal of the framework is recorded and raised again like a result. Any other exception comes
    through as it is and is not recorded: in a later attempt the call runs again.
    """

    def __init__(self, ctx: TaskContext, signals: Signals | None = None) -> None:
        self._ctx = ctx
        self._signals = signals or {}
        self._numbers: Counter[tuple[str, str]] = Counter()

    async def run(self, name: str, call: Callable[[], Awaitable[Any]], *, key: str = "") -> Any:
        """Return the result of a call, a JSON value; `key` is the framework's id of the call.

        Calls of one name and key are told apart by the order in which they begin. A call inside a
        step belongs to that step.
        """
        if current_step() is not None:
            return await call()
        self._numbers[name, key] += 1
        key = f"{key} {self._numbers[name, key]}".strip()
        if len(key) > MAX_NAME:
            key = digest(key)

        async def recorded() -> Any:
            try:
                return [None, await call()]
            except tuple(self._signals) as signal:
                kind = next(kind for kind in self._signals if isinstance(signal, kind))
                fields = {name: getattr(signal, name) for name in self._signals[kind]}
                return [kind.__name__, fields]
            except Exception as error:
                text = str(error)[:MAX_NAME]
                raise NotRecordedError(name, type(error).__name__, text) from error

        failure: BaseException | None = None
        try:
            signal, result = await self._ctx.step(name[:MAX_NAME], recorded, key=key)
        except NotRecordedError as error:
            failure = error.__cause__
        if failure is not None:  # outside of `except`, which would change its chain
            raise failure
        for kind in self._signals:
            if kind.__name__ == signal:
                raise kind(**result)
        return result
