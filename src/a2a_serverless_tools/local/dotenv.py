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
from a2a_serverless_tools.local.own_modules import content_of
from a2a_serverless_tools.scaffold.source import project_around

NAME: Final = ".env"


class Dotenv:
    """`.env` in a folder, or else in the project around it.

    A variable that is set already keeps its value. The names that a deployment refuses are refused
    here too, except AWS_*, such as AWS_PROFILE: on this machine they replace the worker's role.
    """

    def __init__(self, folder: Path, environment: MutableMapping[str, str] = os.environ) -> None:
        folders = dict.fromkeys(each for each in (folder, project_around(folder)) if each)
        self._paths = [each / NAME for each in folders]
        self._environment = environment
        self._set: dict[str, str] = {}
        self._seen: dict[Path, bytes | None] = {}

    def read(self) -> Path | None:
        """Set the variables as the file has them now; return its path, None if there is none.

        Those that an earlier call has set, and that the file has no longer, are removed.

        Raises:
            ConfigurationError: a line cannot be read; file and line are named, and no value is
                shown. Nothing is set or removed then.
        """
        self._seen = self._look()  # first, so that a change while it is read is noticed later
        path, found = self.entries()
        own = {name for name, value in self._set.items() if self._environment.get(name) == value}
        self._set = {
            name: value
            for name, value in found.items()
            if name in own or name not in self._environment
        }
        self._environment.update(self._set)
        for name in own - self._set.keys():
            del self._environment[name]
        return path

    def entries(self) -> tuple[Path | None, dict[str, str]]:
        """Return the path, None if there is no file, and the variables as the file has them now.

        Raises:
            ConfigurationError: as `read`.
        """
        path = next((each for each in self._paths if each.is_file()), None)
        return path, dict(_entries(path)) if path else {}

    def changed(self) -> list[str]:
        """Return the files that have changed since they were read."""
        now = self._look()
        return [str(path) for path in self._paths if now[path] != self._seen.get(path)]

    def _look(self) -> dict[Path, bytes | None]:
        return {path: content_of(path) for path in self._paths}


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
