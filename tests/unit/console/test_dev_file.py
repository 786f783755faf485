"""The file that names running devs, of several projects on one machine."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from a2a_serverless.errors import ConfigurationError
from a2a_serverless_tools.console.dev_file import RunningDev, announced, dev_file, running_devs

FIRST, SECOND, THIRD = (
    RunningDev(f"http://127.0.0.1:{port}", "secret", f"/home/{port}") for port in (1, 2, 3)
)


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def test_a_dev_that_ends_leaves_the_others() -> None:
    """Those that run are listed, that which was started last first, in whatever order they end."""
    first, second, third = ExitStack(), ExitStack(), ExitStack()
    first.enter_context(announced(FIRST))
    second.enter_context(announced(SECOND))
    third.enter_context(announced(THIRD))
    assert running_devs() == [THIRD, SECOND, FIRST]
    second.close()
    assert running_devs() == [THIRD, FIRST]
    third.close()
    assert running_devs() == [FIRST]
    assert dev_file().stat().st_mode & 0o777 == 0o600
    first.close()
    assert running_devs() == []
    assert not dev_file().exists()


def test_a_dev_that_was_killed_is_passed_over() -> None:
    """Its entry stays in the file until another dev starts or ends."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    with announced(FIRST):
        first = json.loads(dev_file().read_text())
        killed = {"url": THIRD.url, "token": "", "process": ended.pid, "earlier": [first]}
        dev_file().write_text(json.dumps(killed))
        assert running_devs() == [FIRST]
        with announced(SECOND):
            assert THIRD.url not in dev_file().read_text()
        assert running_devs() == [FIRST]
    assert running_devs() == []


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"url": "x"}', '{"url": "", "token": "", "earlier": 1}']
)
def test_a_damaged_file_is_named_and_replaced(text: str) -> None:
    """A command says what to do about it; a dev that starts writes it anew."""
    with announced(FIRST):
        dev_file().write_text(text)
        with pytest.raises(ConfigurationError, match="cannot be read: remove it"):
            running_devs()
        with announced(SECOND):
            assert running_devs() == [SECOND]
