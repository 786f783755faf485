"""`a2a-serverless upgrade`: a project's files, as the installed version writes them."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from a2a_serverless_tools.cli.arguments import Commands, add_command, project_folder

EXIT_TO_DO = 1
"""The exit code if the owner has something to decide or, with --check, something to upgrade."""


def add(commands: Commands) -> None:
    """Describe the command and its arguments."""
    upgrade = add_command(
        commands,
        "upgrade",
        _run,
        summary="merges this version's template and files into a project, and locks anew",
        description="Merges what the installed version writes into the project around the current "
        "folder, by `git merge-file`. Your edits stay. What both have changed is marked in the "
        "file and listed, and the exit code is 1.",
    )
    upgrade.add_argument(
        "--check", action="store_true", help="change nothing; exit with 1 if there is work to do"
    )
    upgrade.add_find_links()


def _run(options: Namespace) -> int:
    """Print a line for each file that changes; return 1 if the owner has to decide something."""
    from a2a_serverless_tools.cli.serving import say
    from a2a_serverless_tools.scaffold.dependencies import DEVELOPMENT, Dependencies
    from a2a_serverless_tools.scaffold.upgrade import plan

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
        return EXIT_TO_DO
    upgrade.apply()
    if any(step.name == DEVELOPMENT for step in upgrade.conflicts):
        say("decide what is marked with <<<<<<< in the files above, then upgrade again: the locks")
        return EXIT_TO_DO
    dependencies.lock()
    say(f"upgraded {what}")
    if upgrade.conflicts:
        say("decide what is marked with <<<<<<< in the files above, then run the tests")
        return EXIT_TO_DO
    return 0
