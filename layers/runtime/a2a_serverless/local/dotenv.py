"""`.env`: the agent's keys on a developer's machine."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from typing import Final

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.scaffold.source import project_around
from a2a_serverless.worker.environment import check

NAME: Final = ".env"
_VALUE: Final = re.compile(
    r"""\s*(?:(?P<quote>['"])(?P<quoted>.*?)(?P=quote)|(?P<plain>.*?))\s*(?:(?<=\s)\#.*)?"""
)
"""A value, in quotes or not; after it, ` #` begins a comment."""


def load_dotenv(folder: Path, environment: MutableMapping[str, str] = os.environ) -> Path | None:
    """Set the variables of `.env` in a folder or the project around it; return its path.

    A variable that is set already keeps its value. The names that a deployment refuses are refused
    here too, except AWS_*, such as AWS_PROFILE: on this machine they replace the worker's role.

    Raises:
        ConfigurationError: a line cannot be read; file and line are named, and no value is shown.
    """
    folders = dict.fromkeys(each for each in (folder, project_around(folder)) if each)
    path = next((each / NAME for each in folders if (each / NAME).is_file()), None)
    if path is None:
        return None
    for name, value in dict(_entries(path)).items():
        environment.setdefault(name, value)
    return path


def _entries(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the variables of `NAME=value` lines; `export`, quotes and comments may be there."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{path} cannot be read as text: {type(error).__name__}."
        ) from error
    for number, line in enumerate(lines, 1):
        text = line.strip().removeprefix("export ").lstrip()
        if not text or text.startswith("#"):
            continue
        name, equals, value = text.partition("=")
        found = _VALUE.fullmatch(value)
        if not equals or found is None:
            raise ConfigurationError(f"{path}, line {number}: it is not of the form NAME=value.")
        name, value = name.strip(), found["plain" if found["quote"] is None else "quoted"]
        check(name, value, f"{path}, line {number}: it", allowed="AWS_")
        yield name, value
