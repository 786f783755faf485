"""`a2a-serverless init`, `lock`, `upgrade` and `bundle`: what is done with a project."""

from __future__ import annotations

import shlex
from argparse import Namespace
from pathlib import Path
from typing import Final

from a2a_serverless_tools.cli.arguments import Adders, Parser, project_folder
from a2a_serverless_tools.cli.text import refuse, say

_EXIT_TO_DO: Final = 1
"""The exit code if the owner has something to decide or, with --check, something to upgrade."""


def _add_init(init: Parser) -> None:
    init.does(
        _init,
        "Writes an agent with its card, the template that deploys it, locked "
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


def _init(options: Namespace) -> int:
    """Write the project; if that fails, leave nothing behind."""
    from a2a_serverless_tools.scaffold.project import KINDS, Project, checked_name, create

    if options.agent not in KINDS:
        return refuse(f"--agent {options.agent} is none of {', '.join(KINDS)}.")
    project = Project(options.agent, checked_name(options.name, options.folder))
    create(options.folder, project, options.find_links)
    say(f"{project.name} is in {options.folder}: README.md says what is where. Next:")
    say(f"  cd {shlex.quote(str(options.folder))} && make test && make dev")
    return 0


def _add_lock(lock: Parser) -> None:
    lock.does(
        _lock,
        "Makes functions/worker/requirements.txt of requirements.in beside it, with "
        "hashes, and the locks in requirements/. What the layer has is left out; what does not "
        "fit it is named.",
    )
    lock.add_find_links()


def _lock(options: Namespace) -> int:
    from a2a_serverless_tools.scaffold.dependencies import Dependencies

    Dependencies(project_folder(Path.cwd()), options.find_links).lock()
    return 0


def _add_upgrade(upgrade: Parser) -> None:
    upgrade.does(
        _upgrade,
        "Merges what the installed version writes into the project around the current "
        "folder, by `git merge-file`. Your edits stay. What both have changed is marked in the "
        "file and listed, and the exit code is 1.",
    )
    upgrade.add_argument(
        "--check", action="store_true", help="change nothing; exit with 1 if there is work to do"
    )
    upgrade.add_find_links()


def _upgrade(options: Namespace) -> int:
    """Print a line for each file that changes; return 1 if the owner has to decide something."""
    from a2a_serverless_tools.scaffold.dependencies import DEVELOPMENT, Dependencies
    from a2a_serverless_tools.scaffold.project import plan

    folder = project_folder(Path.cwd())
    upgrade, dependencies = plan(folder), Dependencies(folder, options.find_links)
    for step in upgrade.steps:
        print(step, flush=True)  # an error of the locks comes below
    is_merged = not upgrade.steps and upgrade.before.version == upgrade.after.version
    if is_merged and dependencies.are_of_this_version():
        say("nothing to upgrade")
        return 0
    what = "the locks" if is_merged else f"{upgrade.before.version} to {upgrade.after.version}"
    if options.check:
        say(f"to upgrade: {what}")
        return _EXIT_TO_DO
    upgrade.apply()
    if any(step.name == DEVELOPMENT for step in upgrade.conflicts):
        say("decide what is marked with <<<<<<< in the files above, then upgrade again: the locks")
        return _EXIT_TO_DO
    dependencies.lock()
    say(f"upgraded {what}")
    if upgrade.conflicts:
        say("decide what is marked with <<<<<<< in the files above, then run the tests")
        return _EXIT_TO_DO
    return 0


def _add_bundle(bundle: Parser) -> None:
    bundle.does(
        _bundle,
        "Installs what functions/worker/requirements.txt locks into FOLDER, as wheels "
        "for Lambda's platform. Stops with one sentence where requirements.in does not fit the "
        "layer or was not locked, and, with --measure, where FOLDER is too large for Lambda.",
    )
    bundle.add_argument("folder", metavar="FOLDER", type=Path, help="gets the packages")
    bundle.add_argument("--python-version", metavar="VERSION", help="of Lambda")
    bundle.add_argument(
        "--python-platform",
        metavar="PLATFORM",
        help="as uv names it (default: that of Lambda)",
    )
    bundle.add_argument(
        "--measure", action="store_true", help="only compare FOLDER with what Lambda takes"
    )
    bundle.add_find_links()


def _bundle(options: Namespace) -> int:
    from a2a_serverless_tools.scaffold.dependencies import (
        LAMBDA_PLATFORM,
        LAMBDA_PYTHON,
        Dependencies,
    )
    from a2a_serverless_tools.scaffold.sizes import check_size

    if options.measure:
        check_size(options.folder)
        return 0
    options.folder.mkdir(parents=True, exist_ok=True)
    Dependencies(project_folder(Path.cwd()), options.find_links).bundle(
        options.folder.resolve(),
        python_version=options.python_version or LAMBDA_PYTHON,
        python_platform=options.python_platform or LAMBDA_PLATFORM,
    )
    return 0


ADDERS: Final[Adders] = {
    "init": _add_init,
    "lock": _add_lock,
    "upgrade": _add_upgrade,
    "bundle": _add_bundle,
}
