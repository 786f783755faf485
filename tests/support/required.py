"""What tests need beside Python, and what its absence means."""

import os
import subprocess
from pathlib import Path
from typing import Final, NoReturn

import pytest

ROOT: Final = Path(__file__).parents[2]
VARIABLE: Final = "A2A_REQUIRE_EMULATORS"


def report_not_run(reason: str) -> NoReturn:
    """Report the test as not run; as failed where the variable is 1, as in the whole run of CI."""
    if os.environ.get(VARIABLE) == "1":
        pytest.fail(reason, pytrace=False)
    pytest.skip(reason)


def python_of(environment: str) -> Path:
    """The interpreter of an environment of tests/foreign, which is as its lock has it."""
    lock = ROOT / "tests/foreign" / environment / "requirements.txt"
    return _python(ROOT / "build/foreign" / environment, lock)


def peer_python_of(environment: str) -> Path:
    """The interpreter of an environment of benchmarks/peers, which is as its lock has it."""
    lock = ROOT / "benchmarks/peers/requirements" / f"{environment}.txt"
    return _python(ROOT / "build/peers" / environment, lock)


def run_in(environment: str, *module: object, **variables: str) -> str:
    """What a module prints, with arguments and variables, that such an environment runs."""
    run = subprocess.run(
        [str(word) for word in (python_of(environment), "-W", "ignore", "-m", *module)],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT / 'layers/runtime'}:{ROOT / 'src'}:{ROOT}", **variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return run.stdout


def _python(folder: Path, lock: Path) -> Path:
    installed = folder / "requirements.txt"
    if not installed.exists() or installed.read_bytes() != lock.read_bytes():
        report_not_run(f"The environment {folder.name} is not as its lock has it: `make foreign`.")
    return folder / "bin/python"
