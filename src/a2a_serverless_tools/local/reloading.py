"""The agent of `dev`: loaded again when its own files or `.env` have changed, or for every turn.

No process watches the files: they are looked at before a turn begins.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final, Self

from a2a.server.agent_execution import AgentExecutor

from a2a_serverless.clock import Clock, SystemClock
from a2a_serverless.errors import ConfigurationError
from a2a_serverless.worker.agents import TurnAgents, load_agent
from a2a_serverless.worker.failures import AgentNotLoadedError
from a2a_serverless_tools.local.dotenv import Dotenv
from a2a_serverless_tools.local.leftovers import TellingAgent
from a2a_serverless_tools.local.own_modules import OwnModules, SourceLoader, content_of

logger = logging.getLogger(__name__)

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
        kept: modules that stay as they are first imported, such as those of context variables.
        variables: `.env`, which is read again when it has changed.
        served: files that are read only when `dev` starts, such as the card; the log says that a
            change of theirs does not count.
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
        kept: Iterable[str] = (),
        variables: Dotenv | None = None,
        served: Iterable[Path] = (),
        clock: Clock | None = None,
    ) -> None:
        self._reference = reference
        self._here = Path.cwd()
        self._folder = (self._here / reference.rpartition(":")[0]).resolve().parent
        self._is_fresh = is_fresh
        self._keeps_agent = keeps_agent
        self._variables = variables
        self._served = {path: content_of(path) for path in served}
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
        except BaseException:
            self._modules.remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._modules.remove()

    def environment(self) -> TurnAgents:
        """Return the object that gives the turns of one environment their agent."""
        return Environment(self)

    def of_turn(self, environment: Environment) -> AgentExecutor:
        """Return the agent of a turn that begins now."""
        with self._lock:
            self._tell_served()
            changed = self._modules.changed()
            if self._variables is not None:
                changed += self._variables.changed()
            wants_anew = self._is_fresh and self._spare is None
            if changed or wants_anew or self._broken:
                self._reload(changed)
            if self._broken and not self._keeps_agent:
                return NotLoaded(f"{self._broken} Repair it, and send the message again.")
            if self._is_fresh:
                return TellingAgent(self._instance(), self._modules.loaded(), self._told)
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
            self._take(agent)
            if changed or was_broken:
                extra = {"action": "agent_reloaded"}
                why = f"{self._names(changed)} changed" if changed else "It can be loaded again"
                text = "%s: turns that begin now run the agent of %s"
                logger.info(text, why, self._of, extra=extra)

    def _tell_served(self) -> None:
        """Log which files have changed that are read only when `dev` starts."""
        for path, before in self._served.items():
            self._served[path] = content_of(path)
            if self._served[path] != before:
                text = "%s changed: it is served as it was when dev was started; start dev again"
                logger.warning(text, path, extra={"action": "restart_needed"})

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
        more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
        return ", ".join(names[:NAMED]) + more


class Environment(TurnAgents):
    """The agent of one environment: its own instance, in the version of its last turn."""

    agent: AgentExecutor
    """Set with the first turn."""

    def __init__(self, agents: ReloadedAgent) -> None:
        self._agents = agents
        self.version = 0

    def for_turn(self) -> AgentExecutor:
        return self._agents.of_turn(self)


class NotLoaded(AgentExecutor):
    """Fails a turn with the reason why its agent cannot be loaded."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    async def execute(self, *_: object, **__: object) -> None:
        raise AgentNotLoadedError(self._reason)

    cancel = execute
