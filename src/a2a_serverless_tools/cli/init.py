"""`a2a-serverless init`: a project of one's own."""

from __future__ import annotations

import shlex
from argparse import Namespace
from pathlib import Path

from a2a_serverless_tools.cli.arguments import Commands, add_command


def add(commands: Commands) -> None:
    """Describe the command and its arguments."""
    init = add_command(
        commands,
        "init",
        _run,
        summary="makes a project of your own, to run, test, deploy and upgrade",
        description="Writes an agent with its card, the template that deploys it, locked "
        "packages, tests, a Makefile and a pipeline into DIR, which has to be empty or missing. "
        "The framework stays a package that the project names with its version.",
    )
    init.add_argument("folder", metavar="DIR", type=Path, help="the project's folder")
    init.add_argument(
        "--agent",
        default="worker",
        metavar="KIND",
        help="worker, executor (of the official SDK), langgraph, pydantic-ai, openai-agents, "
        "strands or adk (default: %(default)s)",
    )
    init.add_argument("--name", help="of the stack in AWS (default: made from DIR)")
    init.add_find_links()


def _run(options: Namespace) -> int:
    """Write the project; if that fails, leave nothing behind."""
    from a2a_serverless_tools.cli.serving import say
    from a2a_serverless_tools.cli.text import refuse
    from a2a_serverless_tools.scaffold.project import KINDS, Project, checked_name, create

    if options.agent not in KINDS:
        return refuse(f"--agent {options.agent} is none of {', '.join(KINDS)}.")
    project = Project(options.agent, checked_name(options.name, options.folder))
    create(options.folder, project, options.find_links)
    say(f"{project.name} is in {options.folder}: README.md says what is where. Next:")
    say(f"  cd {shlex.quote(str(options.folder))} && make test && make dev")
    return 0
