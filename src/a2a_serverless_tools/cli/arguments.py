"""The arguments that several commands share, and the agent and card if none is named."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, TypeAlias

from a2a_serverless.errors import ConfigurationError
from a2a_serverless_tools.scaffold.source import AGENT, CARD, CARD_NAME, project_around

PROGRAM = "a2a-serverless"

EXIT_UNUSABLE = 2
"""The exit code if call, agent, card, table or queue is unusable; one sentence says which."""

EXIT_DAMAGED = 1
"""The exit code if a part of what was asked for cannot be read, and all else was shown."""
EXIT_NOTHING = 3
"""The exit code if nothing was found of the caller that is named."""

_HIGHEST_PORT = 65_535


_DASHED_DIGEST: Final = re.compile(r"-(?!-[a-z]+(-[a-z]+)*$)[A-Za-z0-9_-]{21}")
"""Matches an id or a scope that begins with `-`, but no option's name of the same length."""
_MARK: Final = "\0"
"""A character that no argument of a process can hold."""


class Parser(argparse.ArgumentParser):
    """A parser that answers a wrong call with one sentence, and adds what several commands take.

    An id or a scope is taken for a value even if it begins with `-`, as one in 64 does.
    """

    def parse_known_args(  # type: ignore[override]  # argparse has overloads for other namespaces
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[argparse.Namespace, list[str]]:
        given = sys.argv[1:] if args is None else args
        marked = [_MARK + one if _DASHED_DIGEST.fullmatch(one) else one for one in given]
        found, left = super().parse_known_args(marked, namespace)
        for name, value in vars(found).items():
            if isinstance(value, str):
                setattr(found, name, value.removeprefix(_MARK))
        left = [one.removeprefix(_MARK) for one in left]
        if self.get_default("words") is not None:
            found.words += [one for one in left if not one.startswith("-")]
            left = [one for one in left if one.startswith("-")]
        return found, left

    def error(self, message: str) -> NoReturn:
        if message.startswith("unrecognized arguments") and message.endswith(".py"):
            message += ": the option --agent names an agent's file"
        self.exit(EXIT_UNUSABLE, f"{self.prog}: {message}; see {self.prog} --help\n")

    def does(self, run: Run, description: str) -> None:
        """Add what a command does: in words, and the function that does it."""
        self.description = description
        self.set_defaults(run=run)
        self.add_argument("-v", "--verbose", action="store_true", help="log what happens to stderr")

    def add_words(self, named: str, *, help_text: str) -> None:
        """Add `words`, which may stand before, between and behind the options."""
        self.add_argument("words", nargs="*", metavar=named, help=help_text)
        self.set_defaults(words=[])

    def add_agent(
        self,
        help_text: str = "what runs the tasks",
        default: str = "./agent.py:agent, else functions/worker/agent.py:agent of the project",
    ) -> None:
        """Add `--agent`, which `agent_spec` reads."""
        self.add_argument(
            "--agent",
            metavar="PATH.py:NAME",
            help=f"an AgentExecutor or a Worker, class or instance: {help_text} "
            f"(default: {default})",
        )

    def add_card(self) -> None:
        """Add `--card`, which `card_path` reads."""
        self.add_argument(
            "--card",
            metavar="FILE",
            help="the agent card (default: agent_card.json beside the agent, else "
            "./agent_card.json, else functions/api/agent_card.json for the agent of the project; "
            "else one is made of the agent's class and its docstring)",
        )

    def add_port(self, default: int = 8000) -> None:
        """Add `--port`."""
        self.add_argument(
            "--port", type=_port, default=default, help="0 takes a free one (default: %(default)s)"
        )

    def add_concurrency(self, default: int, of: str) -> None:
        """Add `--concurrency`, a number above 0."""
        self.add_argument(
            "--concurrency",
            type=positive,
            default=default,
            metavar="N",
            help=f"{of} (default: %(default)s)",
        )

    def add_find_links(self) -> None:
        """Add `--find-links`, a list of folders or pages of wheels."""
        self.add_argument(
            "--find-links",
            metavar="FOLDER",
            action="append",
            default=[],
            help="wheels beside those of the index; may be repeated",
        )

    def add_seconds(self, name: str, of: str) -> None:
        """Add an option that takes a number of seconds, 0 or more; None unless it is given."""
        self.add_argument(name, type=_seconds, metavar="S", help=f"seconds {of}")

    def add_place(self, *, is_verb: bool = False) -> None:
        """Add `--stack`, `--region` and `--file`; a verb takes them also before its name."""
        default = argparse.SUPPRESS if is_verb else None
        self.add_argument(
            "--stack",
            metavar="NAME",
            default=default,
            help="a deployed stack, found with your AWS credentials (default: the table A2A_TABLE, "
            "else the file of your dev)",
        )
        self.add_argument("--region", metavar="REGION", default=default, help="the stack's region")
        self.add_argument(
            "--file",
            metavar="FILE",
            type=Path,
            default=default,
            help="the file of a dev, which need not run (default: .a2a/dev.db of this folder or "
            "project)",
        )

    def add_task_id(self, *, is_optional: bool = False) -> None:
        """Add the id of a task, and `--scope`."""
        self.add_argument(
            "id", metavar="ID", nargs="?" if is_optional else None, help="the task's id"
        )
        self.add_argument(
            "--scope",
            metavar="SCOPE",
            help="the owner's digest, as the command shows it: for an id that several owners have, "
            "a task of a release without the index by-id, or a table without it",
        )

    def add_health_port(self) -> None:
        """Add `--health-port`, None unless it is given."""
        self.add_argument(
            "--health-port",
            type=_port,
            metavar="PORT",
            help="answers health checks on this port: 200 while it works, 503 once it has to "
            "end (default: none)",
        )


Commands: TypeAlias = "argparse._SubParsersAction[Parser]"  # noqa: SLF001 - has no public name

Adders: TypeAlias = Mapping[str, Callable[[Parser], None]]
"""The functions of a module that describe its commands, by the commands' names."""

Run: TypeAlias = Callable[[argparse.Namespace], int | Coroutine[Any, Any, int]]
"""Does a command's work and returns the exit code; a `ConfigurationError` is printed, and of a
coroutine also what AWS has refused."""


def project_folder(here: Path) -> Path:
    """Return the folder of the project around a folder.

    Raises:
        ConfigurationError: there is none.
    """
    project = project_around(here)
    if project is None:
        raise ConfigurationError(
            f"{here} is in no project: no folder from it upwards has a template.yaml of"
            f" a2a-serverless; make one with {PROGRAM} init DIR."
        )
    return project


def agent_spec(named: str | None) -> str:
    """Return the agent as `FILE.py:NAME`.

    It is the first one found of: the argument, `A2A_AGENT`, ./agent.py, functions/worker/agent.py
    of the project around the current folder. Other places are not searched. A file without a name
    stands for its `agent`.

    Raises:
        ConfigurationError: there is no agent, or the file does not exist.
    """
    spec = named or os.environ.get("A2A_AGENT") or _own_agent()
    spec = f"{spec}:agent" if spec.endswith(".py") else spec
    path, _, name = spec.rpartition(":")
    if not path or not name:
        raise ConfigurationError(f"--agent {spec} must have the form FILE.py:NAME.")
    if not Path(path).is_file():
        msg = f"There is no agent at {path}; name one with --agent FILE.py:NAME."
        raise ConfigurationError(msg)
    return spec


def card_path(named: str | None, agent: str | None = None) -> Path:
    """Return the agent card's file, or the agent `FILE.py:NAME` of which a card is to be made.

    It is the first one found of: the argument, `A2A_CARD`, agent_card.json beside the agent,
    ./agent_card.json, functions/api/agent_card.json of the project around the current folder if the
    agent is the project's; else the agent.

    Args:
        named: the argument; None: it was not given.
        agent: the agent as `agent_spec` returns it; None: no agent was chosen.

    Raises:
        ConfigurationError: there is neither card nor agent, or the file does not exist.
    """
    chosen = named or os.environ.get("A2A_CARD")
    candidates = [Path(chosen)] if chosen else _cards(agent)
    for path in candidates:
        if path.is_file():
            return path
    if not chosen and (agent or has_own_agent()):
        return Path(agent or agent_spec(None))
    looked_for = chosen or " or ".join(map(str, candidates))
    raise ConfigurationError(
        f"There is no agent card at {looked_for}: name one with --card FILE, or an agent, of which"
        " one is made, with --agent FILE.py:NAME."
    )


def has_own_agent() -> bool:
    """Return True if `A2A_AGENT`, the current folder or the project around it has an agent."""
    return bool(os.environ.get("A2A_AGENT")) or any(path.is_file() for path in _agents())


def _agents() -> list[Path]:
    return [Path("agent.py"), *_of_project(AGENT)]


def _own_agent() -> str:
    candidates = _agents()
    for path in candidates:
        if path.is_file():
            return f"{path}:agent"
    looked_for = " or ".join(map(str, candidates))
    raise ConfigurationError(
        f"There is no agent at {looked_for}: name one with --agent FILE.py:NAME, go to the folder"
        f" of your project, or make one with {PROGRAM} init DIR."
    )


def _cards(agent: str | None) -> list[Path]:
    """Return where a card may be; the project's is that of the agent in its folder alone."""
    found = [Path(CARD_NAME)]
    folder = Path(agent.rpartition(":")[0]).parent if agent else None
    if folder is not None:
        found.insert(0, folder / CARD_NAME)
    if folder is None or any(folder.samefile(own.parent) for own in _of_project(AGENT)):
        found += _of_project(CARD)
    return list(dict.fromkeys(found))


def _of_project(relative: str) -> list[Path]:
    """Return a file of the project around the current folder, whether it exists or not."""
    here = Path.cwd()
    project = project_around(here)
    if project is None:
        return []
    path = project / relative
    return [path.relative_to(here) if path.is_relative_to(here) else path]


def positive(text: str) -> int:
    """Return an argument as a number above 0."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds")
    return seconds


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > _HIGHEST_PORT:
        raise argparse.ArgumentTypeError(f"{text} is not a port")
    return int(text)
