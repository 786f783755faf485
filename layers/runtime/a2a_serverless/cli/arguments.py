"""The arguments that several commands share, and the agent and card where none is named."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, NoReturn, TypeAlias

from a2a_serverless.errors import ConfigurationError

PROGRAM = "a2a-serverless"

EXIT_UNUSABLE = 2
"""The exit code if call, agent, card, table or queue is unusable; one sentence says which."""

_HIGHEST_PORT = 65_535

_AGENT = Path("functions/worker/agent.py")
_CARD = Path("functions/api/agent_card.json")


_DASHED_DIGEST: Final = re.compile(r"-(?!-[a-z]+(-[a-z]+)*$)[A-Za-z0-9_-]{21}")
"""An id or a scope that begins with `-`, and is not an option's name of the same length."""
_MARK: Final = "\0"
"""What no argument of a process can hold."""


class Parser(argparse.ArgumentParser):
    """A parser that answers a wrong call with one sentence, and adds what several commands take.

    An id or a scope is a value also where it begins with `-`, as one in 64 does.
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
        return found, [one.removeprefix(_MARK) for one in left]

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_UNUSABLE, f"{self.prog}: {message}; see {self.prog} --help\n")

    def add_agent(
        self,
        help_text: str = "what runs the tasks",
        default: str = "functions/worker/agent.py:agent of the project, else ./agent.py:agent",
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
            help="the agent card (default: functions/api/agent_card.json of the project, else "
            "./agent_card.json)",
        )

    def add_port(self) -> None:
        """Add `--port`, 8000 unless it is given."""
        self.add_argument(
            "--port", type=_port, default=8000, help="0 takes a free one (default: %(default)s)"
        )

    def add_concurrency(self, default: int, of: str) -> None:
        """Add `--concurrency`, a number above 0."""
        self.add_argument(
            "--concurrency",
            type=_positive,
            default=default,
            metavar="N",
            help=f"{of} (default: %(default)s)",
        )

    def add_backend(self) -> None:
        """Add `--backend`, hidden: outside `dev` `aws` is the only value, and may be named."""
        self.add_argument("--backend", choices=("aws",), default="aws", help=argparse.SUPPRESS)


Commands: TypeAlias = "argparse._SubParsersAction[Parser]"  # noqa: SLF001 - has no public name

Run: TypeAlias = Callable[[argparse.Namespace], int]
"""Does a command's work and returns the exit code; a `ConfigurationError` is printed."""


def add_command(
    commands: Commands, name: str, run: Run, *, summary: str, description: str
) -> Parser:
    """Add a command, and return its parser to add its own arguments."""
    command = commands.add_parser(name, help=summary, description=description)
    command.set_defaults(run=run)
    command.add_argument("-v", "--verbose", action="store_true", help="log what happens to stderr")
    return command


def agent_spec(named: str | None) -> str:
    """Return the agent as `FILE.py:NAME`.

    The first of: the argument, `A2A_AGENT`, functions/worker/agent.py of the project, ./agent.py.

    Raises:
        ConfigurationError: the file does not exist.
    """
    spec = named or os.environ.get("A2A_AGENT") or f"{_found(_AGENT) or 'agent.py'}:agent"
    path, _, name = spec.rpartition(":")
    if not path or not name:
        raise ConfigurationError(f"--agent {spec} must have the form FILE.py:NAME.")
    if not Path(path).is_file():
        msg = f"There is no agent at {path}; name one with --agent FILE.py:NAME."
        raise ConfigurationError(msg)
    return spec


def card_path(named: str | None) -> Path:
    """Return the agent card's file.

    The first of: the argument, `A2A_CARD`, functions/api/agent_card.json of the project,
    ./agent_card.json.

    Raises:
        ConfigurationError: the file does not exist.
    """
    path = Path(named or os.environ.get("A2A_CARD") or _found(_CARD) or "agent_card.json")
    if not path.is_file():
        raise ConfigurationError(f"There is no agent card at {path}; name one with --card FILE.")
    return path


def _found(relative: Path) -> Path | None:
    """Return `relative` beside the nearest template.yaml that has it."""
    for folder in _folders():
        if (folder / "template.yaml").is_file() and (folder / relative).is_file():
            found = folder / relative
            is_below = found.is_relative_to(Path.cwd())
            return found.relative_to(Path.cwd()) if is_below else found
    return None


def _folders() -> Iterator[Path]:
    here = Path.cwd()
    yield here
    yield from here.parents
    yield from Path(__file__).resolve().parents


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > _HIGHEST_PORT:
        raise argparse.ArgumentTypeError(f"{text} is not a port")
    return int(text)
