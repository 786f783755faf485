"""The testing kit, and the agent started as `make dev` starts it, on a free port."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest_plugins = ["a2a_serverless_tools.testing.fixtures"]

PROJECT = Path(__file__).parents[1]
START_S = 300  # a limit for machines that have much other work


@pytest.fixture(scope="session")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the agent's address; its tasks are in a file of the tests."""
    output = tmp_path_factory.mktemp("dev") / "output"
    command = [
        sys.executable,
        "-m",
        "a2a_serverless_tools.cli",
        "dev",
        "--port",
        "0",
        "--no-console",
        "--file",
        str(output.with_name("dev.db")),
    ]
    with output.open("wb") as file:
        dev = subprocess.Popen(command, cwd=PROJECT, stdout=file, stderr=file)
    try:
        yield _address(dev, output)
    finally:
        dev.terminate()
        dev.wait()


def _address(dev: subprocess.Popen[bytes], output: Path) -> str:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        said = output.read_text(encoding="utf-8")
        if found := re.search(r"A2A at (\S+),", said):
            return found[1]
        assert dev.poll() is None, said
        time.sleep(0.1)
    raise TimeoutError(output.read_text(encoding="utf-8"))
