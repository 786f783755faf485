"""`a2a-serverless bundle`: the agent's packages, as `sam build` puts them into the function."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from a2a_serverless_tools.cli.arguments import Commands, add_command, project_folder


def add(commands: Commands) -> None:
    """Describe the command and its arguments."""
    bundle = add_command(
        commands,
        "bundle",
        _run,
        summary="puts the agent's locked packages into a folder, for `sam build`",
        description="Installs what functions/worker/requirements.txt locks into FOLDER, as wheels "
        "for Lambda's platform. Stops with one sentence where requirements.in does not fit the "
        "layer or was not locked, and, with --measure, where FOLDER is too large for Lambda.",
    )
    bundle.add_argument("folder", metavar="FOLDER", type=Path, help="gets the packages")
    bundle.add_argument("--python-version", metavar="VERSION", default="3.13", help="of Lambda")
    bundle.add_argument(
        "--python-platform",
        metavar="PLATFORM",
        default="aarch64-manylinux_2_34",
        help="as uv names it (default: %(default)s)",
    )
    bundle.add_argument(
        "--measure", action="store_true", help="only compare FOLDER with what Lambda takes"
    )
    bundle.add_find_links()


def _run(options: Namespace) -> int:
    """Install the packages of the project around the current folder, or measure a built folder."""
    from a2a_serverless_tools.scaffold.dependencies import Dependencies, check_size

    if options.measure:
        check_size(options.folder)
        return 0
    options.folder.mkdir(parents=True, exist_ok=True)
    Dependencies(project_folder(Path.cwd()), options.find_links).bundle(
        options.folder.resolve(),
        python_version=options.python_version,
        python_platform=options.python_platform,
    )
    return 0
