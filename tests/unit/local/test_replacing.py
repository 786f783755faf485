"""`dev` as a parent: which process serves, and what each is told, with processes that load nothing.

`tests/e2e/test_reloading.py` shows the same with an agent.
"""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from a2a_serverless_tools import cli
from a2a_serverless_tools.local import replacing
from a2a_serverless_tools.local.own_file import url_of


def test_dev_ends_its_processes_before_another_may_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may still write to the file, which nobody else gets meanwhile."""
    file, held = tmp_path / "dev.db", []

    class Ended:
        """Processes of which the first is ended by Ctrl-C."""

        def __init__(self, command: list[str]) -> None:
            assert command[-2:] == ["--port", "0"]

        def run(self, _: object) -> int:
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
