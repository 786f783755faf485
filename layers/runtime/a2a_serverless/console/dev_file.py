"""The file in which a running `dev` tells this user's commands where it is, and their token.

Only its user can read the file and its folder.
"""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from a2a_serverless.errors import ConfigurationError

logger = logging.getLogger(__name__)

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
"""Permissions of group and others, which neither the file nor its folder may give."""


@dataclass(frozen=True, slots=True)
class RunningDev:
    """The address of a running `dev`, without a `/` at its end, and the token of its console."""

    url: str
    token: str


def dev_file() -> Path:
    """Return the path of the file, which is about the dev that this user has started last."""
    base = os.environ.get("XDG_RUNTIME_DIR") or str(Path.home() / ".cache")
    return Path(base) / "a2a-serverless" / "dev.json"


@contextmanager
def announced(dev: RunningDev) -> Iterator[None]:
    """Write the file, and remove it at the end of the block, if it is still this dev's.

    If it cannot be written, a warning says so; only the commands that look for it need it.
    """
    path, text = dev_file(), json.dumps({"url": dev.url, "token": dev.token})
    try:
        _write(path, text)
    except OSError as error:
        logger.warning("%s cannot be written (%s): set XDG_RUNTIME_DIR.", path, error.strerror)
    try:
        yield
    finally:
        with suppress(OSError):
            if path.read_text(encoding="utf-8") == text:
                path.unlink()


def _write(path: Path, text: str) -> None:
    """Write a file that only this user can read, in place of an existing one."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    new = path.with_name(f"dev-{os.getpid()}.json")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    new.replace(path)


def running_dev() -> RunningDev | None:
    """Return the dev that the file names; None if there is no file.

    Raises:
        ConfigurationError: others can read or write the file, or it is damaged.
    """
    path = dev_file()
    try:
        found = path.stat()
        if found.st_uid != os.getuid() or found.st_mode & _OTHERS:
            msg = f"{path} is not readable by you alone: remove it, and start dev again."
            raise ConfigurationError(msg)
        values = json.loads(path.read_text(encoding="utf-8"))
        return RunningDev(url=str(values["url"]), token=str(values["token"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        msg = f"{path} cannot be read: remove it, and start dev again."
        raise ConfigurationError(msg) from error
