"""The file in which `dev` keeps everything: where it is, which `dev` has it, how it is emptied."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO
from urllib.parse import urlsplit

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.settings import Settings
from a2a_serverless.storage.sqlite import blobs_folder
from a2a_serverless_tools.scaffold.source import project_around

FOLDER: Final = ".a2a"
NAME: Final = "dev.db"

HERE: Final = frozenset({"127.0.0.1", "localhost", "::1"})
"""The hosts of the loopback, on which `dev` listens."""

_READ_S: Final = 1.0
"""Seconds within which another process has looked whether a `dev` holds its file."""

_MOST_CHARS: Final = 1000
"""Characters that are read of what is beside the file."""

_OURS: Final = ("items", "deletions")
"""The tables of a file that this framework has written."""

_COLUMNS: Final = {"id", "PK", "SK", "item", "bytes"}
"""What the first of them has in every format."""


def own_file(folder: Path) -> Path:
    """Return the file of a folder's `dev`: below the project around it, else below the folder."""
    return (project_around(folder) or folder) / FOLDER / NAME


def log_of(path: Path) -> Path:
    """Return the file of the lines that `dev` logs about the tasks of a file."""
    return path.with_suffix(".log")


def settings_in(path: Path, settings: Settings) -> Settings:
    """Return settings that name a file and the queues in it, and no others; push is offered."""
    queues = ("queue", "quarantine_queue", "dead_letter_queue", "undecodable_queue")
    names = dict.fromkeys((*queues, "push_dead_letter_queue"), "")
    names |= {"table": f"file:{path}", "push_queue": "push_queue"}
    return settings.model_copy(update=names)


@dataclass(frozen=True, slots=True)
class _OwnFile:
    """A file that this process has for itself."""

    path: Path
    _lock: TextIO

    def announce(self, url: str) -> None:
        """Write the address of this `dev` beside the file, for other processes."""
        self._lock.seek(0)
        self._lock.truncate()
        json.dump({"url": url, "process": os.getpid()}, self._lock)
        self._lock.flush()


@contextmanager
def held(path: Path) -> Iterator[_OwnFile]:
    """Keep every other `dev` from a file during the block; make its folder if it is missing.

    The lock ends with the process, also with one that is killed.

    Raises:
        ConfigurationError: another dev has the file, or its folder cannot be used.
    """
    try:
        _make_folder(path.parent)
        lock = os.open(_beside(path), os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        msg = f"{path} cannot be made ({error.strerror}): make its folder writable, or name"
        raise ConfigurationError(f"{msg} another file with --file.") from error
    with os.fdopen(lock, "r+", encoding="utf-8") as file:
        try:
            _lock_alone(file)
        except BlockingIOError:
            url = _announced(file.read(_MOST_CHARS))
            name = f"the dev at {url}" if url else "another dev, which has just begun"
            msg = f"{path} is in use by {name}: end that one, or name another file with --file."
            raise ConfigurationError(msg) from None
        except OSError as error:
            msg = f"{path} cannot be locked ({error.strerror}): name a file on a disk of this"
            raise ConfigurationError(f"{msg} machine with --file.") from error
        file.truncate()
        yield _OwnFile(path, file)
        file.truncate(0)


def url_of(path: Path) -> str:
    """Return the address of the `dev` that has a file; empty: none runs, or it is not known.

    Anybody may have written what is beside the file, such as the author of a repository. It counts
    only while a process holds its lock.
    """
    with suppress(OSError, ValueError), _beside(path).open(encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return _announced(file.read(_MOST_CHARS))
    return ""


def empty(path: Path) -> None:
    """Remove all that a file and the folder beside it hold, of whatever format.

    It stays the same file for its readers.

    Raises:
        ConfigurationError: it holds something else, or it cannot be written.
    """
    if not path.exists():
        return
    try:
        with closing(sqlite3.connect(path, isolation_level=None)) as file:
            names = {
                name
                for (name,) in file.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            }
            columns = {name for _, name, *_ in file.execute("PRAGMA table_info(items)")}
            if names - {*_OURS, "sqlite_sequence"} or (columns and not columns >= _COLUMNS):
                msg = f"{path} has tables of another program: name another file with --file."
                raise ConfigurationError(msg)
            file.execute("PRAGMA secure_delete = ON")
            file.execute("BEGIN IMMEDIATE")
            for name in _OURS:
                file.execute(f"DROP TABLE IF EXISTS {name}")
            file.execute("PRAGMA user_version = 0")
            file.execute("COMMIT")
            file.execute("VACUUM")
            file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.rmtree(blobs_folder(path), ignore_errors=True)
    except sqlite3.Error as error:
        msg = f"{path} cannot be emptied: {error}. Remove it, or name another file with --file."
        raise ConfigurationError(msg) from error


def _make_folder(folder: Path) -> None:
    """Make a folder for this user alone, of which git takes nothing."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    ignored = folder / ".gitignore"
    if folder.name == FOLDER and not ignored.exists():
        ignored.write_text("*\n", encoding="utf-8")


def _beside(path: Path) -> Path:
    return path.with_name(f"{path.name}.lock")


def _lock_alone(file: TextIO) -> None:
    """Lock a file for this process; one that only looks who has it lets it go at once.

    Raises:
        BlockingIOError: another process keeps it.
        OSError: it cannot be locked.
    """
    deadline = time.monotonic() + _READ_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _announced(said: str) -> str:
    """Return the address in what `announce` has written; empty: it is none, or its `dev` is gone.

    That is an http address of the loopback, without a name or a password in it.
    """
    faults = (AttributeError, KeyError, OSError, OverflowError, RecursionError, TypeError)
    with suppress(ValueError, *faults):
        known = json.loads(said)
        url, process = known["url"], known["process"]
        parts = urlsplit(url)
        is_here = parts.scheme == "http" and parts.hostname in HERE and "@" not in parts.netloc
        if is_here and parts.port and type(process) is int and process > 0:
            os.kill(process, 0)  # what a dev before has left is there until the next one announces
            return f"http://{parts.netloc}"
    return ""
