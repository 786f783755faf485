"""Answers for LangGraph's `interrupt()`: each goes to the question that it was given to.

LangGraph counts the interrupts of a node, and gives the first answer to whichever comes first when
the node runs again. Calls of tools side by side come in any order.
"""

from __future__ import annotations

import sys
from collections import defaultdict, deque
from collections.abc import Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import fields, is_dataclass
from threading import local
from typing import Any, Final, TypeAlias
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import LC_AUTO_PREFIX, BaseMessage
from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.checkpoint.serde.types import INTERRUPT, RESUME
from langgraph.errors import GraphInterrupt
from langgraph.types import Interrupt, interrupt
from pydantic import BaseModel

from a2a_serverless.frameworks.adapter import INVALID
from a2a_serverless.frameworks.steps import text_of
from a2a_serverless.tasks.identity import digest
from a2a_serverless.worker import FinalError

_MORE_THAN_ANY: Final = 1_000_000
"""More interrupts than a node has."""


def without_ids(given: Any) -> Any:
    """Return a value of a graph without what is new in each run: ids, and the order of sets."""
    if isinstance(given, BaseMessage):
        return without_ids(given.model_dump(exclude={"id"}))
    if isinstance(given, BaseModel):
        return without_ids(dict(given))
    if is_dataclass(given) and not isinstance(given, type):
        return {each.name: without_ids(getattr(given, each.name)) for each in fields(given)}
    if isinstance(given, Mapping):
        named = {str(name): without_ids(value) for name, value in given.items()}
        if str(named.get("id", "")).startswith(LC_AUTO_PREFIX):  # a block of a message's content
            del named["id"]
        return named
    if isinstance(given, set | frozenset):
        return sorted(text_of(without_ids(value)) for value in given)
    return [*map(without_ids, given)] if isinstance(given, list | tuple) else given


def _mark(question: Any) -> str:
    return digest("question", text_of(without_ids(question)))


class _Call:
    """A call of a tool in a node, and the call in which it is made."""

    def __init__(self, key: str, node: str, outer: _Call | None) -> None:
        self.key = key
        self.node = node
        self.outer = outer
        self.has_ended = False
        self.is_beside = False
        """Another call of the node has run at the same time."""


_call: ContextVar[_Call | None] = ContextVar("call", default=None)
"""The call that was begun last; it may have ended."""


def _calling() -> _Call | None:
    """Return the call in which the code runs; None outside of calls."""
    call = _call.get()
    while call is not None and call.has_ended:
        call = call.outer
    return call


class Callers(BaseCallbackHandler):
    """Knows which call of a tool asks, also where several ask the same."""

    run_inline = True  # in the context in which the tool runs then

    def __init__(self) -> None:
        self._running: dict[UUID, _Call] = {}
        self._asking: dict[tuple[str, str], _Call] = {}

    def of(self, asked: Interrupt[Any], graph: str) -> str | None:
        """Return the key of the call that asks; None: no call of a tool.

        `graph` is the namespace of the graph whose node asks.

        Raises:
            FinalError: the answer might go on with another call's graph.
        """
        call = self._asking.get((asked.id, _mark(asked.value)))
        if call is None:
            return None
        if call.is_beside and graph.startswith(call.node):
            raise FinalError(
                f"Calls of tools run graphs side by side in the node {call.node.partition(':')[0]},"
                " and one of them asks. LangGraph keeps such graphs in the order in which they have"
                " begun: give each call a task of its own, as `create_agent` does, or let the model"
                " make one call at a time.",
                client_text=INVALID,
            )
        return call.key

    def on_tool_start(
        self,
        serialized: dict[str, Any] | None,
        input_str: str,
        *,
        run_id: UUID,
        metadata: dict[str, Any] | None = None,
        inputs: dict[str, Any] | None = None,
        **named: Any,
    ) -> None:
        given = text_of(without_ids(input_str if inputs is None else inputs))
        key = str(named.get("tool_call_id") or digest((serialized or {}).get("name", ""), given))
        outer = _calling()
        call = _Call(key, (metadata or {}).get("langgraph_checkpoint_ns", ""), outer)
        for other in list(self._running.values()):
            if other is not outer and other.node == call.node:
                other.is_beside = call.is_beside = True
        self._running[run_id] = call
        _call.set(call)

    def on_tool_end(self, output: Any, *, run_id: UUID, **_: Any) -> None:  # noqa: ARG002 - its
        self._running.pop(run_id).has_ended = True

    def on_tool_error(self, error: BaseException, *, run_id: UUID, **_: Any) -> None:
        call = self._running.pop(run_id)
        call.has_ended = True
        if isinstance(error, GraphInterrupt):
            for asked in error.args[0]:
                self._asking.setdefault((asked.id, _mark(asked.value)), call)


class Saver(InMemorySaver):
    """Checkpoints in memory; a task that has asked reads its answers by question."""

    def get_tuple(self, config: RunnableConfig) -> CheckpointTuple | None:
        found = super().get_tuple(config)
        if found is None:
            return None
        writes: list[Any] = []
        kept: dict[str, list[Any]] = {}
        for task_id, channel, value in found.pending_writes or ():
            if channel == INTERRUPT:
                kept.setdefault(task_id, [])
            if channel == RESUME:
                kept[task_id] = value
            else:
                writes.append((task_id, channel, value))
        writes += [(task_id, RESUME, _Answers(answers)) for task_id, answers in kept.items()]
        return found._replace(pending_writes=writes)

    def asking(self, asked: Interrupt[Any]) -> tuple[CheckpointTuple, str]:
        """Return the last checkpoint of the graph that asks, the innermost, and the task's id."""
        found = [
            (each, task_id)
            for each in self.list(None)
            for task_id, channel, value in each.pending_writes or ()
            if channel == INTERRUPT and any(one.id == asked.id for one in value)
        ]
        return max(found, key=lambda one: len(namespace_of(one[0])))

    def answer(self, asked: Interrupt[Any], by: str | None, answer: Any) -> None:
        """Keep an answer for the task that has asked."""
        last, task_id = self.asking(asked)
        kept = [
            one
            for owner, channel, answers in last.pending_writes or ()
            if owner == task_id and channel == RESUME
            for one in answers
            if _is_kept(one)
        ]
        kept.append({"asked": _mark(asked.value), "by": by, "answer": answer})
        self.put_writes(last.config, [(RESUME, kept)], task_id)


def namespace_of(checkpoint: CheckpointTuple) -> str:
    """Return the namespace of a graph: empty for the outermost."""
    namespace: str = checkpoint.config["configurable"]["checkpoint_ns"]
    return namespace


def _is_kept(one: Any) -> bool:
    """Return True for an answer with its question; earlier releases kept answers alone."""
    return isinstance(one, dict) and one.keys() == {"asked", "by", "answer"}


_Left: TypeAlias = defaultdict[tuple[str | None, str], deque[Any]]
"""Answers by the call that has asked, and by its question."""


class _Answers(list[Any]):
    """The answers of a task, in the place of the list that `interrupt()` reads by position.

    The list itself is empty: what reads it in another way finds no answer, and asks again.
    """

    def __init__(self, kept: list[Any]) -> None:
        super().__init__()
        self._kept = kept
        self._runs: dict[int, tuple[object, _Left]] = {}
        self._taken = local()

    def __bool__(self) -> bool:
        """Return True if there is an answer for what `interrupt()` asks now; it is taken."""
        asking = sys._getframe(1)  # noqa: SLF001 - the question is in no argument
        if asking.f_code is not interrupt.__code__:
            return False
        asked = _mark(asking.f_locals["value"])
        left = self._left_in(asking.f_locals["scratchpad"])
        call = _calling()
        for by in (None if call is None else call.key, None):
            with suppress(IndexError):
                self._taken.answer = left[by, asked].popleft()
                return True
        return False

    def _left_in(self, run: object) -> _Left:
        """Return the answers that one run of the node has not taken; a retry takes all again."""
        if id(run) not in self._runs:
            left: _Left = defaultdict(deque)
            for one in filter(_is_kept, self._kept):
                left[one["by"], one["asked"]].append(one["answer"])
            self._runs.setdefault(id(run), (run, left))
        return self._runs[id(run)][1]

    def __len__(self) -> int:
        return _MORE_THAN_ANY

    def __getitem__(self, at: Any) -> Any:
        return self._kept if isinstance(at, slice) else self._taken.answer

    def append(self, answer: Any) -> None:
        """Do nothing: LangGraph puts the answer behind those before it, and it is kept already."""
