"""The arguments that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import NoReturn, TypeAlias

PROGRAM = "a2a-serverless"

EXIT_UNUSABLE = 2
"""The exit code if call, agent, card, table or queue is unusable; one sentence says which."""

_HIGHEST_PORT = 65_534  # the stream door takes the next one


class Parser(argparse.ArgumentParser):
    """A parser that answers a wrong call with one sentence, and adds what several commands take."""

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_UNUSABLE, f"{self.prog}: {message}; see {self.prog} --help\n")

    def add_agent(
        self,
        help_text: str = "what runs the tasks",
        default: str = "functions/worker/agent.py:agent of the project, else ./agent.py:agent",
    ) -> None:
        """Add `--agent`, which `local.project.agent_spec` reads."""
        self.add_argument(
            "--agent",
            metavar="PATH.py:NAME",
            help=f"an AgentExecutor or a Worker, class or instance: {help_text} "
            f"(default: {default})",
        )

    def add_card(self) -> None:
        """Add `--card`, which `local.project.card_path` reads."""
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


def _positive(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text} is not a number above 0")
    return int(text)


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > _HIGHEST_PORT:
        raise argparse.ArgumentTypeError(f"{text} is not a port")
    return int(text)
