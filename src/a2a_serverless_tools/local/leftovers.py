"""Finds what a turn leaves in the memory of its process, where no other process has it."""

from __future__ import annotations

import ast
import inspect
import logging
from collections import deque
from collections.abc import Iterator, Mapping
from types import ModuleType
from typing import Any, Final

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue

from a2a_serverless.worker.agents import handler_of
from a2a_serverless.worker.failures import going_on
from a2a_serverless.worker.frames import place
from a2a_serverless.worker.loops import called

logger = logging.getLogger(__name__)

_SCALARS: Final = (bool, int, float, complex, str, bytes)
_ROWS: Final = (list, tuple, deque)
_DEPTH: Final = 4
_MOST: Final = 1000
"""The depth to which values are compared, and the most items of a collection that are compared; of
a larger collection only the length is."""

Owner = ModuleType | type | object
"""An object with attributes: a module, a class of a module, or the agent."""


class TellingAgent(AgentExecutor):
    """Runs an agent for one turn, and logs which plain data the turn has left in its memory.

    It looks at globals and classes of the agent's modules, and at its own attributes. A client or a
    model that is made once and kept is no plain data.

    Args:
        agent: the agent, which no other turn uses.
        modules: the agent's own modules.
        told: the places that were logged before; they are not logged again.
    """

    def __init__(
        self, agent: AgentExecutor, modules: Mapping[str, ModuleType], told: set[str]
    ) -> None:
        self._agent = agent
        self._told = told
        self.handler = handler_of(agent)
        self._modules = modules
        self._owners = list(_owners(modules, getattr(self.handler, "__self__", agent)))
        self._before = self._memory()

    async def execute(self, context: RequestContext, event_queue: EventQueue) -> None:
        try:
            await called(self._agent.execute, context, event_queue)
        finally:
            with going_on(logger, logging.WARNING, "Memory not compared", action="not_compared"):
                self._tell()

    async def cancel(self, context: RequestContext, event_queue: EventQueue) -> None:
        await called(self._agent.cancel, context, event_queue)

    def _memory(self) -> dict[tuple[int, str], Any]:
        """Return the data of all owners, by the owner's number and the attribute's name."""
        return {
            (number, name): _copied(value)
            for number, owner in enumerate(self._owners)
            for name, value in tuple(vars(owner).items())
            if not name.startswith("__")
        }

    def _tell(self) -> None:
        for (number, name), value in self._memory().items():
            if value is _OPAQUE or self._before.get((number, name), _MISSING) == value:
                continue
            where = self._place(self._owners[number], name)
            if where not in self._told:
                self._told.add(where)
                text = (
                    "%s: this turn has changed `%s`, which stays in the memory of this process."
                    " The next turn may run in another one: keep what a conversation needs with"
                    " `await ctx.update_context(…)`."
                )
                logger.warning(text, where, name, extra={"action": "kept_in_memory"})

    def _place(self, owner: Owner, name: str) -> str:
        """Return the place of the line that first assigns a value to a name."""
        kind = None if isinstance(owner, ModuleType) else owner
        kind = kind if kind is None or inspect.isclass(kind) else type(kind)
        module = owner if kind is None else self._modules.get(kind.__module__)
        loader = getattr(module, "__loader__", None)
        tree = ast.parse(getattr(loader, "source", None) or b"")
        lines = _lines(tree, name, kind.__name__ if kind else "")
        return place(getattr(module, "__file__", None) or "?", min(lines, default=1))


def _owners(modules: Mapping[str, ModuleType], agent: object) -> Iterator[Owner]:
    for module in modules.values():
        yield module
        for value in tuple(vars(module).values()):
            if inspect.isclass(value) and value.__module__ == module.__name__:
                yield value
    if hasattr(agent, "__dict__"):
        yield agent


def _copied(value: Any, depth: int = _DEPTH) -> Any:
    """Return a copy of plain data, to compare with a later one; `_OPAQUE` for other objects."""
    if value is None or type(value) in _SCALARS:
        return value
    if isinstance(value, (*_ROWS, dict, set, frozenset)):
        if len(value) > _MOST or depth == 0:
            return len(value)
        if isinstance(value, dict):
            return {key: _copied(item, depth - 1) for key, item in value.items()}
        if isinstance(value, _ROWS):
            return [_copied(item, depth - 1) for item in value]
        return frozenset(value)
    return _OPAQUE


def _lines(tree: ast.Module, name: str, kind: str) -> Iterator[int]:
    """Yield the lines of the module, or of its class `kind`, that assign a value to `name`."""
    inner = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    for statement in tree.body:
        is_class = isinstance(statement, ast.ClassDef) and statement.name == kind
        if is_class if kind else not isinstance(statement, inner):
            yield from _stores(statement, name)


def _stores(tree: ast.AST, name: str) -> Iterator[int]:
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=known, ctx=ast.Store()) | ast.Attribute(attr=known, ctx=ast.Store()):
                if known == name:
                    yield node.lineno


class _Mark:
    """A value that is equal to nothing else."""


_OPAQUE: Final = _Mark()
_MISSING: Final = _Mark()
