"""What `make cloud` refuses, in one sentence and with exit code 2, and that it leaves nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from a2a_serverless.errors import ConfigurationError
from tests.cloud import deployment, emulator, program, template
from tests.cloud.deployment import Deployment, PhaseError, run
from tests.unit.live.scripted_aws import ScriptedAws

ROOT = Path(__file__).parents[3]


def script(path: Path, *lines: str) -> Path:
    """An executable shell script."""
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]), encoding="utf-8")
    path.chmod(0o755)
    return path


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one sentence of a refusal."""
    assert program.main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    (sentence,) = said.err.splitlines()
    return sentence


def test_a_machine_without_the_functions_python(tmp_path: Path) -> None:
    """Without Python 3.13 the target ends with one sentence and make's exit code, which is 2."""
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "cloud.txt").touch()
    uv = script(tmp_path / "uv", "exit 1")
    target = "build/cloud/venv/requirements.txt"
    made = subprocess.run(
        ["make", "--file", ROOT / "Makefile", f"UV={uv}", target],  # noqa: S607
        cwd=tmp_path,
        env={**os.environ, "PYENV_ROOT": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 2
    assert "make cloud needs Python 3.13, on which the functions run: install it." in made.stderr
    assert not (tmp_path / "build").exists()


def test_a_port_in_use(capsys: pytest.CaptureFixture[str]) -> None:
    """A port on which someone listens is refused before anything is started."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert f"Port {port} of 127.0.0.1 is in use" in refused(["--port", str(port)], capsys)


def test_another_version_of_the_emulator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What is substituted is true of the locked version: another one is not started."""
    monkeypatch.setattr(emulator, "PYTHON", script(tmp_path / "python", "echo 9.9.9"))
    said = refused([], capsys)
    assert f"The emulator is ministack 9.9.9, and cloud.txt has {emulator.locked_version()}" in said


def test_an_emulator_that_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A missing environment is named."""
    monkeypatch.setattr(emulator, "PYTHON", tmp_path / "nothing")
    assert "The emulator is ministack none" in refused([], capsys)


def test_a_check_that_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    """A name that no check has is refused before anything is started."""
    assert "There is no check nothing" in refused(["--only", "nothing"], capsys)


def test_the_substitutions_are_of_the_locked_version() -> None:
    """Who locks another version looks at what is substituted, and says so there."""
    for name in ("launch.py", "template.py"):
        text = (ROOT / "tests" / "cloud" / name).read_text(encoding="utf-8")
        assert f"MiniStack {emulator.locked_version()}" in text


def test_the_short_run_names_checks() -> None:
    """Each name of the short run is a check's."""
    assert set(program.SHORT) <= program._chosen(program._parser().parse_args([]))


async def test_a_deployment_that_fails(
    aws: ScriptedAws, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its FAILED events say why, in the order in which they came."""
    events = [
        {"LogicalResourceId": "RestApi", "ResourceStatus": "CREATE_FAILED"},
        {"LogicalResourceId": "ApiRole", "ResourceStatus": "CREATE_COMPLETE"},
        {"LogicalResourceId": "TaskTable", "ResourceStatus": "CREATE_FAILED"},
    ]
    common: dict[str, Any] = {"StackId": "s", "EventId": "e", "StackName": "s", "Timestamp": 0}
    aws.answers["cloudformation.DescribeStackEvents"] = {
        "StackEvents": [{**common, **event, "ResourceStatusReason": "no such"} for event in events]
    }
    monkeypatch.setattr(Deployment, "account", aws)
    monkeypatch.setattr(deployment, "SAM", script(tmp_path / "sam", "echo it failed", "exit 1"))
    (tmp_path / "template.yaml").write_text('{"Parameters": {}, "Resources": {"RestApi": {}}}')
    monkeypatch.setattr(template, "SUBSTITUTIONS", {})
    running = emulator.Emulator(1, 1, tmp_path / "log")
    stack = Deployment(emulator=running, door=None, build=tmp_path, name="s")  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError) as raised:
        await stack.deploy()
    assert str(raised.value) == (
        "The deployment of s failed. TaskTable CREATE_FAILED: no such; "
        "RestApi CREATE_FAILED: no such"
    )


async def until(holds: Callable[[], bool]) -> None:
    """Wait until it holds."""
    for _ in range(6000):
        if holds():
            return
        await asyncio.sleep(0.01)
    pytest.fail("it did not come to hold")


@pytest.mark.parametrize("has_started", [True, False])
async def test_a_step_that_is_interrupted_leaves_no_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, has_started: bool
) -> None:
    """An interrupted step ends with the processes that it has started, also in its own start."""
    noted, returns = tmp_path / "pid", asyncio.Event()
    told = f"echo $! > {noted}.new; mv {noted}.new {noted}"
    step = script(tmp_path / "step", "sleep 600 &", told, "wait")
    start = asyncio.create_subprocess_exec

    async def starts(*command: Any, **options: Any) -> asyncio.subprocess.Process:
        process = await start(*command, **options)
        await returns.wait()
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", starts)
    running = asyncio.ensure_future(run([str(step)], os.environ, within_s=600))
    if has_started:
        returns.set()
    await until(noted.exists)
    running.cancel()
    await asyncio.sleep(0)
    returns.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    command = Path(f"/proc/{noted.read_text().strip()}/cmdline")
    await until(lambda: not command.exists() or not command.read_bytes())


def test_an_interrupt_while_python_imports() -> None:
    """Ctrl-C before the program's own first line ends it with 130, and without a traceback."""
    command = [sys.executable, "-X", "importtime", "-m", "tests.cloud", "--only", "nothing"]
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.split()[-1] == "asyncio":  # the first of many
                break
        process.send_signal(signal.SIGINT)
        said = process.stderr.read()
        assert process.wait() == program.EXIT_INTERRUPTED
    assert "Traceback" not in said


async def test_a_step_is_bounded() -> None:
    """A step that does not end in time is an error that names it and the bound."""
    with pytest.raises(PhaseError, match=r"sleep 600 did not end within 0\.01 s"):
        await run(["sleep", "600"], os.environ, within_s=0.01)
