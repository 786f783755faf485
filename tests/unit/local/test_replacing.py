"""`dev` as a parent: which process serves, and what each is told, with processes that load nothing.

`tests/e2e/test_reloading.py` shows the same with an agent.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from a2a_serverless.errors import ConfigurationError
from a2a_serverless_tools import cli
from a2a_serverless_tools.local import replacing
from a2a_serverless_tools.local.own_file import url_of
from a2a_serverless_tools.local.sockets import bind


def test_dev_ends_its_processes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may still write to the file, which nobody else gets meanwhile."""
    file, held = tmp_path / "dev.db", []

    class Ended:
        """Processes of which the first is ended by Ctrl-C."""

        def __init__(self, command: list[str], sessions: str) -> None:
            assert command[-2:] == ["--port", "0"]
            assert Path(sessions).is_dir()

        def run(self, _: object) -> None:
            raise KeyboardInterrupt

        def end(self) -> None:
            held.append(url_of(file))

    monkeypatch.setattr(replacing, "Family", Ended)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    try:
        assert cli.main(["dev", "--file", str(file), "--port", "0"]) == 0
    finally:
        for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
            signal.signal(number, handler)
    assert held[0].startswith("http://127.0.0.1:")


CHILD = """
import os, signal, sys, time
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle
from pathlib import Path
from a2a_serverless_tools.local.replacing import Told

here = Path(sys.argv[1])
link = Connection(int(sys.argv[-1]))
try:
    start = link.recv()
    recv_handle(link)
except EOFError:
    sys.exit()
starts = here / "starts"
before = starts.read_text().split() if starts.exists() else []
alive = [each for each in before if Path(f"/proc/{each}").exists()]
starts.write_text(" ".join([*before, str(os.getpid())]))
def say(what, reason=""):
    link.send(Told(what, reason))
def goes_on():
    time.sleep(1000)
exec((here / f"process-{len(before)}").read_text())
"""


NOTES = "(here / 'seen').write_text(f'{start.frees} {alive}')"
ENDED = "The process that serves has ended at its start"


@pytest.fixture
def family(tmp_path: Path) -> Iterator[replacing.Family]:
    """Processes that do what a file says, the first of those that serve what `process-0` says."""
    made = replacing.Family([sys.executable, "-c", CHILD, str(tmp_path)], str(tmp_path))
    yield made
    made.end()


@pytest.mark.parametrize(
    ("does", "says"),
    [
        ("say('refused', 'No card.')", "No card."),
        ("os._exit(7)", f"{ENDED} (with exit code 7)."),
        ("os.kill(os.getpid(), signal.SIGKILL)", f"{ENDED} (by SIGKILL)."),
    ],
)
def test_a_failing_start(family: replacing.Family, tmp_path: Path, does: str, says: str) -> None:
    """The start is refused with the reason."""
    (tmp_path / "process-0").write_text(does)
    with bind(0) as bound, pytest.raises(ConfigurationError) as refused:
        family.run(bound)
    assert str(refused.value) == says


def test_what_the_dead_had_received_is_free(family: replacing.Family, tmp_path: Path) -> None:
    """Where one dies, what it has replaced may still run turns: it is ended first."""
    doing = (
        "say('ready'); say('changed'); assert link.recv() == ''; goes_on()",
        "assert alive and not start.frees; say('ready'); os._exit(3)",
        f"{NOTES}; say('ready'); os.kill(os.getppid(), signal.SIGINT); goes_on()",
    )
    for number, does in enumerate(doing):
        (tmp_path / f"process-{number}").write_text(does)
    with bind(0) as bound, pytest.raises(KeyboardInterrupt):
        family.run(bound)
    assert (tmp_path / "seen").read_text() == "True []"
