from __future__ import annotations

import fcntl
import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.storage.layout import INDEXES
from a2a_serverless.storage.sqlite import SqliteTable, blobs_folder
from a2a_serverless.storage.table import Key, Put
from a2a_serverless_tools.local.own_file import empty, held, own_file, url_of
from tests.support.present import present

OWN = "this process"

HOLDING = """
import sys, time
from pathlib import Path
from a2a_serverless_tools.local.own_file import held
with held(Path(sys.argv[1])) as own:
    own.announce("http://127.0.0.1:8123")
    print("held", flush=True)
    time.sleep(1000)
"""


def test_the_folder_is_the_users_alone_and_git_takes_nothing_of_it(tmp_path: Path) -> None:
    """A folder `.a2a` is made with what makes git ignore it; another one that is there is left."""
    file = own_file(tmp_path)
    with held(file), closing(SqliteTable(file, INDEXES)):
        modes = {each.name: each.stat().st_mode & 0o777 for each in file.parent.glob("dev.db*")}
    assert set(modes.values()) == {0o600}, modes
    assert file.parent.stat().st_mode & 0o777 == 0o700
    assert (file.parent / ".gitignore").read_text() == "*\n"
    with held(tmp_path / "other.db"):
        assert not (tmp_path / ".gitignore").exists()
    ignored = file.parent / ".gitignore"
    ignored.unlink()  # as in a folder that was made by hand or copied
    for content in ("*\n", "mine\n"):
        with held(file):
            assert ignored.read_text() == content
        ignored.write_text("mine\n")


def test_a_second_dev_is_refused_until_the_first_has_ended(tmp_path: Path) -> None:
    """Its sentence names the first one's address; a killed one holds nothing."""
    file = own_file(tmp_path)
    holding = [sys.executable, "-c", HOLDING, str(file)]
    with subprocess.Popen(holding, stdout=subprocess.PIPE, text=True) as first:
        assert present(first.stdout).readline() == "held\n"
        with pytest.raises(ConfigurationError) as refused, held(file):
            pass
        assert str(refused.value) == (
            f"{file} is in use by the dev at http://127.0.0.1:8123: end that one, or name another"
            " file with --file."
        )
        assert url_of(file) == "http://127.0.0.1:8123"
        first.send_signal(signal.SIGKILL)
    assert url_of(file) == ""
    with held(file) as own:
        assert url_of(file) == ""
        own.announce("http://127.0.0.1:1")
        assert url_of(file) == "http://127.0.0.1:1"
    assert url_of(file) == ""


HERE = "http://127.0.0.1:1"
ELSEWHERE = [
    *("http://127.0.0.2:1", "http://127.0.0.1", "http://127.0.0.1:1@stranger.example:1"),
    *("http://user@127.0.0.1:1", "http://127.0.0.1.stranger.example:1", "file://127.0.0.1:1"),
    *("http://127.0.0.1:\x1b[31m", 1),
]


@pytest.mark.parametrize(
    ("url", "process", "counts"),
    [
        *((url, OWN, True) for url in (HERE, "http://[::1]:1")),
        *((HERE, process, False) for process in (0, -1, True, 2**70)),
        *((url, OWN, False) for url in ELSEWHERE),
    ],
)
def test_an_address_counts_only_while_its_lock_is_held(
    tmp_path: Path, url: object, process: object, *, counts: bool
) -> None:
    """What anybody may have written names no agent: without a holder, or of another host."""
    file, beside = tmp_path / "dev.db", tmp_path / "dev.db.lock"
    said = json.dumps({"url": url, "process": os.getpid() if process is OWN else process})
    beside.write_text(said)
    assert url_of(file) == ""
    with held(file):
        assert url_of(file) == ""
        beside.write_text(said)
        assert url_of(file) == (url if counts else "")
        for broken in ("", "[]", "null", "[" * 100_000, said + "}"):
            beside.write_text(broken)
            assert url_of(file) == ""
    beside.unlink()
    assert url_of(file) == ""


def test_a_look_keeps_no_dev_from_its_file(tmp_path: Path) -> None:
    """Who looks has the lock for a moment, and a dev that begins then waits for that."""
    file = tmp_path / "dev.db"
    with held(file):
        pass
    with (tmp_path / "dev.db.lock").open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        end = threading.Timer(0.05, fcntl.flock, (looking, fcntl.LOCK_UN))
        end.start()
        with held(file):
            pass
        end.join()


def test_a_folder_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence names the file, the cause and the way out."""
    (tmp_path / "text").touch()
    said = r"text/dev.db cannot be made \(.*\): make its folder writable, or .* with --file\.$"
    with pytest.raises(ConfigurationError, match=said), held(tmp_path / "text" / "dev.db"):
        pass
    read_only = Mock(side_effect=OSError(30, os.strerror(30)))
    monkeypatch.setattr(os, "open", read_only)
    said = r"\(Read-only file system\): make its folder"
    with pytest.raises(ConfigurationError, match=said), held(own_file(tmp_path)):
        pass


async def test_an_emptied_file_stays_the_same_file(tmp_path: Path) -> None:
    """Who has it open finds nothing any more, and what is written later; also of another format."""
    file = tmp_path / "dev.db"
    key = Key("TASK#a", "HEAD")
    with closing(SqliteTable(file, INDEXES)) as reading:
        await reading.write(Put(item={**key._asdict(), "version": 1}))
        with closing(sqlite3.connect(file)) as newer:
            newer.execute("PRAGMA user_version = 99")
        with pytest.raises(ConfigurationError, match="newer release"):
            SqliteTable(file, INDEXES)
        blobs = blobs_folder(file) / "task"
        blobs.mkdir(parents=True)
        empty(file)
        assert not blobs.parent.exists()
        with closing(SqliteTable(file, INDEXES)) as writing:
            assert await reading.get(key) is None
            await writing.write(Put(item={**key._asdict(), "version": 2}))
            assert (await reading.get(key) or {})["version"] == 2
    empty(tmp_path / "none.db")
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize("table", ["customers", "items"])
def test_what_is_not_ours_is_not_emptied(tmp_path: Path, table: str) -> None:
    """A database of another program and a text are refused, and stay as they were."""
    other, text = tmp_path / "other.db", tmp_path / "notes.txt"
    with closing(sqlite3.connect(other)) as database:
        database.execute(f"CREATE TABLE {table} (name TEXT)")
    text.write_text(json.dumps(["notes"]) * 500)
    before = other.read_bytes(), text.read_bytes()
    with pytest.raises(ConfigurationError, match="has tables of another program"):
        empty(other)
    with pytest.raises(ConfigurationError, match=r"cannot be emptied: .*Remove it, or name"):
        empty(text)
    assert (other.read_bytes(), text.read_bytes()) == before
