"""The file in which each running `dev` tells this user's commands where it is, and their token.

It is readable by its user alone, in a folder that is, too.
"""

from __future__ import annotations

import json
import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from a2a_serverless.errors import ConfigurationError

logger = logging.getLogger(__name__)

_OTHERS: Final = stat.S_IRWXG | stat.S_IRWXO
"""Permissions of group and others, which neither the file nor its folder may give."""


@dataclass(frozen=True, slots=True)
class RunningDev:
    """The address of a running `dev`, without a `/` at its end, and the token of its console.

    `folder` is the one in which it was started; empty: it is not known.
    """

    url: str
    token: str
    folder: str = ""


@dataclass(frozen=True, slots=True)
class _Entry:
    """A dev and its process; 0: that is not known."""

    dev: RunningDev
    process: int

    def is_running(self) -> bool:
        try:
            os.kill(self.process, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # another user's, who has its number now
            return False
        return True


def dev_file() -> Path:
    """Return the file's path."""
    base = os.environ.get("XDG_RUNTIME_DIR") or str(Path.home() / ".cache")
    return Path(base) / "a2a-serverless" / "dev.json"


@contextmanager
def announced(dev: RunningDev) -> Iterator[None]:
    """Name a dev in the file until the end of the block, before those that were started earlier.

    If it cannot be written, a warning says so; only the commands that look for it need it.
    """
    path, own = dev_file(), _Entry(dev, os.getpid())
    try:
        _write(path, [own, *_others(path, own)])
    except OSError as error:
        logger.warning("%s cannot be written (%s): set XDG_RUNTIME_DIR.", path, error.strerror)
    try:
        yield
    finally:
        with suppress(OSError):
            _write(path, _others(path, own))


def running_devs() -> list[RunningDev]:
    """Return the devs that run, that which was started last first.

    Raises:
        ConfigurationError: others can read or write the file, or it is damaged.
    """
    path = dev_file()
    try:
        entries = _read(path)
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        msg = f"{path} cannot be read: remove it, and start dev again."
        raise ConfigurationError(msg) from error
    return [entry.dev for entry in entries if entry.is_running()]


def _others(path: Path, own: _Entry) -> list[_Entry]:
    """Return the other devs in the file that still run; none where it cannot be read."""
    try:
        return [entry for entry in _read(path) if entry != own and entry.is_running()]
    except (OSError, ValueError, KeyError, TypeError, ConfigurationError):
        return []


def _read(path: Path) -> list[_Entry]:
    """Return the devs of the file, that which was started last first.

    Raises:
        ConfigurationError: others than this user may read it.
        OSError, ValueError, KeyError, TypeError: it cannot be read.
    """
    found = path.stat()
    if found.st_uid != os.getuid() or found.st_mode & _OTHERS:
        msg = f"{path} is not readable by you alone: remove it, and start dev again."
        raise ConfigurationError(msg)
    last = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(last, dict):
        raise TypeError(last)
    return [_entry(values) for values in (last, *last.get("earlier", ()))]


def _entry(values: dict[str, Any]) -> _Entry:
    dev = RunningDev(
        url=str(values["url"]), token=str(values["token"]), folder=str(values.get("folder", ""))
    )
    return _Entry(dev, int(values.get("process", 0)))


def _write(path: Path, entries: list[_Entry]) -> None:
    """Put a file of this user's alone in the place of one that is there; without devs, none."""
    if not entries:
        path.unlink(missing_ok=True)
        return
    last, *earlier = [{**asdict(entry.dev), "process": entry.process} for entry in entries]
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    path.parent.chmod(0o700)
    new = path.with_name(f"dev-{os.getpid()}.json")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump({**last, "earlier": earlier}, file)
    new.replace(path)
