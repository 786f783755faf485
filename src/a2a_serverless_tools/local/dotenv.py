"""`.env`: the agent's keys on a developer's machine."""

from __future__ import annotations

import os
from collections.abc import Iterator, MutableMapping
from io import StringIO
from pathlib import Path
from typing import Final

from dotenv.parser import parse_stream

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.worker.agents import check
from a2a_serverless_tools.scaffold.source import project_around

NAME: Final = ".env"


def paths(folder: Path) -> list[Path]:
    """Return where `.env` may be: in a folder, or else in the project around it."""
    folders = dict.fromkeys(each for each in (folder, project_around(folder)) if each)
    return [each / NAME for each in folders]


def read(folder: Path, environment: MutableMapping[str, str] = os.environ) -> Path | None:
    """Set the variables of a folder's `.env`; return its path, None if there is none.

    A variable that is set already keeps its value. The names that a deployment refuses are refused
    here too, except AWS_*, such as AWS_PROFILE: on this machine they replace the worker's role.

    Raises:
        ConfigurationError: a line cannot be read; file and line are named, and no value is shown.
            Nothing is set then.
    """
    path, found = entries(folder)
    environment.update({name: of for name, of in found.items() if name not in environment})
    return path


def entries(folder: Path) -> tuple[Path | None, dict[str, str]]:
    """Return the path of a folder's `.env`, None if there is none, and its variables.

    Raises:
        ConfigurationError: as `read`.
    """
    path = next((each for each in paths(folder) if each.is_file()), None)
    return path, dict(_entries(path)) if path else {}


def _entries(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the variables of a file as python-dotenv reads them, `$` without a meaning."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            f"{path} cannot be read as text: {type(error).__name__}."
        ) from error
    for found in parse_stream(StringIO(text)):
        statement = found.original.string
        empty = statement[: len(statement) - len(statement.lstrip())]
        place = f"{path}, line {found.original.line + empty.count(chr(10))}: it"
        if found.error or (found.key is not None and found.value is None):
            raise ConfigurationError(
                f"{place} is not of the form NAME=value, or a quote has no end."
            )
        if found.key is not None and found.value is not None:
            check(found.key, found.value, place, allowed="AWS_*")
            yield found.key, found.value
