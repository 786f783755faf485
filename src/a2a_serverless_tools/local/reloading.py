"""The agent of `dev`: loaded again when its own files or `.env` have changed, or for every turn.

Its card is read again, too; after a change of installed packages `dev` starts anew. No process
watches the files: they are looked at before a turn begins, and the card before a request.
"""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Self

from a2a.server.agent_execution import AgentExecutor, RequestContext
from a2a.server.events import EventQueue

from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.errors import ConfigurationError
from a2a_serverless.worker.agents import TurnAgents, handler_of, keeps_conversation, load_agent
from a2a_serverless.worker.failures import AgentNotLoadedError, log_exceptions, place
from a2a_serverless.worker.loops import called
from a2a_serverless_tools.local.dotenv import Dotenv
from a2a_serverless_tools.local.own_modules import FOREIGN, OwnModules, SourceLoader, content_of

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

logger = logging.getLogger(__name__)

_ORDER: Final = (
    "keeps_conversation of the agent has changed: turns of a conversation run in the order of the"
    " agent with which dev was started; start dev again"
)

NAMED: Final = 3
"""The most changed files that a line of the log names."""


class ReloadedAgent:
    """The agent of the files as they are now, for a `with` block and all environments of a worker.

    A turn that begins after a change runs the new code; running turns end with the old code. If the
    new code cannot be loaded, turns that begin fail with the reason. Each of them tries it again:
    what was missing may be there meanwhile, though no file of the agent has changed.

    Args:
        reference: the agent, as for `load_agent`.
        is_fresh: True to load it anew for every turn, and to log what a turn has left in memory.
        keeps_agent: True to run the last agent that could be loaded where a turn would fail because
            the new one cannot be; the log says so, once for each reason.
        may_be_broken: True for a process that was started anew: if the agent cannot be loaded, its
            messages fail with the reason until it can.
        kept: modules that stay as they are first imported, such as those of context variables.
        variables: `.env`, which is read again when it has changed.
        start_anew: starts the process again, soon, as installed packages were replaced or removed:
            Python keeps what it has imported of them. A turn that begins meanwhile waits for that.
        clock: names the times at which agents were loaded.

    Raises (on entry):
        ConfigurationError: the agent cannot be loaded.
    """

    def __init__(
        self,
        reference: str,
        *,
        is_fresh: bool = False,
        keeps_agent: bool = False,
        may_be_broken: bool = False,
        kept: Iterable[str] = (),
        variables: Dotenv | None = None,
        start_anew: Callable[[], None] = lambda: None,
        clock: Clock | None = None,
    ) -> None:
        self._reference = reference
        self._here = Path.cwd()
        self._folder = (self._here / reference.rpartition(":")[0]).resolve().parent
        self._is_fresh = is_fresh
        self._keeps_agent = keeps_agent
        self._may_be_broken = may_be_broken
        self._variables = variables
        self._start_anew = start_anew
        self._packages = _packages()
        self._is_leaving = False
        self._clock = clock or SystemClock()
        self._modules = OwnModules(self._folder, self._clock, kept=kept)
        self._lock = threading.Lock()
        self._source: bytes | None = None
        self._spare: AgentExecutor | None = None
        """An instance of the present version that is not used by an environment yet."""
        self._told: set[str] = set()
        self._broken = ""
        """The reason why the present files cannot be loaded; empty if they were loaded."""
        self._of = ""
        self._version = 0

    def __enter__(self) -> Self:
        self._modules.install()
        try:
            self._take(self._load())
        except BaseException as error:
            if not (self._may_be_broken and isinstance(error, ConfigurationError)):
                self._modules.remove()
                raise
            logger.error("%s", error, extra={"action": "agent_not_loaded"})  # noqa: TRY400 - a sentence
            self._take(_NotLoaded(str(error)))
            self._broken = str(error)
        return self

    def __exit__(self, *_: object) -> None:
        self._modules.remove()

    @property
    def agent(self) -> AgentExecutor:
        """Return the agent that was loaded last."""
        return self._agent

    def environment(self) -> TurnAgents:
        """Return the object that gives the turns of one environment their agent."""
        return _Environment(self)

    def of_turn(self, environment: _Environment) -> AgentExecutor:
        """Return the agent of a turn that begins now."""
        with self._lock:
            if self._has_other_packages():
                return _NotBegun()
            changed = self._modules.changed()
            if self._variables is not None:
                changed += self._variables.changed()
            wants_anew = self._is_fresh and self._spare is None
            if changed or wants_anew or self._broken:
                self._reload(changed)
            if self._broken and not self._keeps_agent:
                return _NotLoaded(f"{self._broken} Repair it, and send the message again.")
            if self._is_fresh:
                return _TellingAgent(self._instance(), self._modules.loaded(), self._told)
            if environment.version != self._version:
                environment.version, environment.agent = self._version, self._instance()
            return environment.agent

    def _reload(self, changed: list[str]) -> None:
        """Load the agent of the files as they are now; if that fails, keep the modules before."""
        before = self._modules.take_out()
        importlib.invalidate_caches()
        try:
            agent = self._load()
        except BaseException as error:
            self._modules.put_back(before)
            if not isinstance(error, ConfigurationError):
                raise
            self._break(str(error), is_edit=bool(changed))
        else:
            was_broken = bool(self._broken)
            if keeps_conversation(agent) != keeps_conversation(self._agent):
                logger.warning(_ORDER, extra={"action": "restart_needed"})
            self._take(agent)
            if changed or was_broken:
                extra = {"action": "agent_reloaded"}
                why = f"{self._names(changed)} changed" if changed else "It can be loaded again"
                text = "%s: turns that begin now run the agent of %s"
                logger.info(text, why, self._of, extra=extra)

    def _has_other_packages(self) -> bool:
        """Start anew if a package that was installed at the start is there no more, or is another.

        One that has come is found by the next import.
        """
        now = _packages()
        gone = sorted(path for path, mark in self._packages.items() if now.get(path) != mark)
        if gone and not self._is_leaving:
            self._is_leaving = True
            names = _several([Path(path).name.partition("-")[0] for path in gone])
            text = "%s changed in site-packages: dev starts anew"
            logger.warning(text, names, extra={"action": "started_anew"})
            self._start_anew()
        return self._is_leaving

    def _load(self) -> AgentExecutor:
        if self._variables is not None:
            self._variables.read()
        loaders: list[SourceLoader] = []

        def loader(name: str, path: str) -> SourceLoader:
            loaders.append(self._modules.loader(name, path))
            return loaders[0]

        agent = load_agent(self._reference, folder=self._here, loader=loader)
        self._source = loaders[0].source
        return agent

    def _take(self, agent: AgentExecutor) -> None:
        self._version += 1
        self._agent = self._spare = agent
        self._broken = ""
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000, tz=UTC).astimezone()
        self._of = f"{now:%H:%M:%S}"

    def _break(self, reason: str, *, is_edit: bool) -> None:
        """Note why the files cannot be loaded; log which agent stays, if one does."""
        is_news = is_edit or reason != self._broken
        self._broken = reason
        if self._keeps_agent and is_news:
            text = "%s The agent of %s goes on, until this one can be loaded."
            logger.error(text, reason, self._of, extra={"action": "agent_kept"})

    def _instance(self) -> AgentExecutor:
        """Return an instance of the present version: one for each environment, as on Lambda.

        The agent's file is run once for each instance, its other modules once for all. If that
        fails, the environment shares another one's instance.
        """
        if self._spare is not None:
            agent, self._spare = self._spare, None
            return agent
        if self._is_fresh:  # its files cannot be loaded
            return self._agent
        loader = partial(self._modules.loader, source=self._source)
        try:
            return load_agent(self._reference, folder=self._here, loader=loader)
        except ConfigurationError as error:
            extra = {"action": "agent_shared"}
            text = "%s Turns at the same time share one instance of the agent of %s."
            logger.warning(text, error, self._of, extra=extra)
            return self._agent

    def _names(self, paths: list[str]) -> str:
        """Return the names of changed files, for a sentence."""
        names = sorted(
            os.path.relpath(path, self._folder) if Path(path).is_relative_to(self._folder) else path
            for path in paths
        )
        return _several(names)


def _several(names: list[str]) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(names[:NAMED]) + more


class _Environment(TurnAgents):
    """The agent of one environment: its own instance, in the version of its last turn."""

    agent: AgentExecutor
    """Set with the first turn."""

    def __init__(self, agents: ReloadedAgent) -> None:
        self._agents = agents
        self.version = 0

    def for_turn(self) -> AgentExecutor:
        return self._agents.of_turn(self)


def _packages() -> dict[str, tuple[int, int]]:
    """Return the installed packages by their folders of metadata, with a mark of each."""
    found = {}
    for folder in sys.path:
        if Path(folder).name in FOREIGN:
            with suppress(OSError), os.scandir(folder) as entries:
                for entry in entries:
                    if entry.name.endswith(".dist-info"):
                        found[entry.path] = (entry.inode(), entry.stat().st_mtime_ns)
    return found


class ReloadedCard:
    """An application that is made again when files of its card have changed.

    Args:
        make: reads the files and makes the application; after a `ConfigurationError` the one before
            stays.
        files: those files.
    """

    def __init__(self, make: Callable[[], ASGIApp], files: Iterable[Path]) -> None:
        self._make = make
        self._seen = {path: content_of(path) for path in files}
        self._app = make()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for path, before in self._seen.items():
            self._seen[path] = content_of(path)
            if self._seen[path] != before:
                self._reload(path)
        await self._app(scope, receive, send)

    def _reload(self, path: Path) -> None:
        try:
            self._app = self._make()
        except ConfigurationError as error:
            extra = {"action": "card_kept"}
            logger.error("%s The one before is served until it is repaired.", error, extra=extra)  # noqa: TRY400 - its sentence says all
        else:
            logger.info("%s changed: its card is served", path, extra={"action": "card_reloaded"})


class _NotBegun(AgentExecutor):
    """Leaves a turn to the process that starts next: this one gives it back at its end."""

    async def execute(self, *_: object, **__: object) -> None:
        await asyncio.Event().wait()

    cancel = execute


class _NotLoaded(AgentExecutor):
    """Fails a turn with the reason why its agent cannot be loaded."""

    keeps_conversation = True  # as it may: turns of a conversation are in order from the start

    def __init__(self, reason: str) -> None:
        self._reason = reason

    async def execute(self, *_: object, **__: object) -> None:
        raise AgentNotLoadedError(self._reason)

    cancel = execute


_SCALARS: Final = (bool, int, float, complex, str, bytes)
_ROWS: Final = (list, tuple, deque)
_DEPTH: Final = 4
_MOST: Final = 1000
"""The depth to which values are compared, and the most items of a collection that are compared; of
a larger collection only the length is."""

_Owner = ModuleType | type | object
"""An object with attributes: a module, a class of a module, or the agent."""


class _TellingAgent(AgentExecutor):
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
            with log_exceptions(
                logger, logging.WARNING, "Memory not compared", action="not_compared"
            ):
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

    def _place(self, owner: _Owner, name: str) -> str:
        """Return the place of the line that first assigns a value to a name."""
        kind = None if isinstance(owner, ModuleType) else owner
        kind = kind if kind is None or inspect.isclass(kind) else type(kind)
        module = owner if kind is None else self._modules.get(kind.__module__)
        loader = getattr(module, "__loader__", None)
        tree = ast.parse(getattr(loader, "source", None) or b"")
        lines = _lines(tree, name, kind.__name__ if kind else "")
        return place(getattr(module, "__file__", None) or "?", min(lines, default=1))


def _owners(modules: Mapping[str, ModuleType], agent: object) -> Iterator[_Owner]:
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
