"""`a2a-serverless lock`: resolves the packages of a project together with those of the layer."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from a2a_serverless_tools.cli.arguments import Commands, add_command, project_folder


def add(commands: Commands) -> None:
    """Describe the command and its arguments."""
    lock = add_command(
        commands,
        "lock",
        _run,
        summary="resolves the agent's packages beside those of the layer",
        description="Makes functions/worker/requirements.txt of requirements.in beside it, with "
        "hashes, and the locks in requirements/. What the layer has is left out; what does not "
        "fit it is named.",
    )
    lock.add_find_links()


def _run(options: Namespace) -> int:
    """Write the locks of the project around the current folder."""
    from a2a_serverless_tools.scaffold.dependencies import Dependencies

    Dependencies(project_folder(Path.cwd()), options.find_links).lock()
    return 0
