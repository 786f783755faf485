"""What `sam build` makes, for this machine: its layer, and its handlers on the layer alone."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from statistics import median

import pytest

from a2a_serverless_tools.cloud.stack import BUILD_S, PLATFORM
from a2a_serverless_tools.scaffold.sizes import LAYER_BYTES
from benchmarks.imports import _LAMBDA, CANDIDATES, STOCK
from tests.support.required import ROOT

pytestmark = pytest.mark.long

RUNTIME = (
    *("boto3", "botocore", "jmespath", "python-dateutil", "s3transfer", "simplejson", "six"),
    "urllib3",
)
"""What Lambda's Python runtime brings."""
FOLDERS = {
    **{name: f"{name.capitalize()}Function" for name in CANDIDATES if name != STOCK},
    STOCK: "ApiFunction",
}
"""Where each candidate of the benchmark is imported."""
ROUNDS = 11
"""The most. More than three only while a limit is not kept, which may be due to other processes."""
TIMED = "import time; begin = time.process_time(); {}; print(time.process_time() - begin)"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of what `make build` makes."""
    folder = tmp_path_factory.mktemp("artefact") / "built"
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    made = subprocess.run(
        # The environment is as it is: a test run must not change it under the others.
        ["make", "--old-file=.venv/.stamp", "build", f"BUILD_ARGS=--build-dir {folder}"],  # noqa: S607
        cwd=ROOT,
        env={**inherited, "LAMBDA_PYTHON": python, "LAMBDA_PLATFORM": PLATFORM},
        capture_output=True,
        text=True,
        timeout=BUILD_S,
        check=False,
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return folder


def test_the_layer_holds_the_runtime_alone(built: Path) -> None:
    """The layer has the package and its bytecode, not the local stack, boto3 or programs.

    It takes no more than the build of an agent leaves for it of Lambda's 250 MB.
    """
    layer = built / "RuntimeLayer" / "python"
    there = {path.name for path in layer.iterdir()}
    assert not there & {"boto3", "botocore", "s3transfer", "moto", "bin", "a2a_serverless_tools"}
    assert list((layer / "a2a_serverless").glob("__pycache__/settings.*.pyc"))
    for name in ("RuntimeLayer", *sorted({*FOLDERS.values()})):
        files = [path for path in (built / name).rglob("*") if path.is_file()]
        size = sum(path.stat().st_size for path in files)
        print(f"{name}: {size / 1_000_000:.1f} MB")  # noqa: T201 - `make artefact` shows it
        assert name != "RuntimeLayer" or size <= LAYER_BYTES


def test_handlers_load_on_the_layer_alone(built: Path, tmp_path: Path) -> None:
    """Each handler is imported with the layer's packages and those of Lambda's runtime.

    The worker's loads faster than the SDK's server, the API's in at most 1.5 of its time.
    """
    for name in RUNTIME:
        packages = distribution(name)
        for place in {file.parts[0] for file in packages.files or () if ".." not in file.parts}:
            source = Path(str(packages.locate_file(place)))
            (tmp_path / place).unlink(missing_ok=True)
            (tmp_path / place).symlink_to(source)
    times: dict[str, list[float]] = {name: [] for name in CANDIDATES}
    for number in range(ROUNDS):
        for name, (_, statement) in CANDIDATES.items():
            times[name].append(seconds(built, FOLDERS[name], statement, runtime=tmp_path))
        ratios = {
            name: median(a / b for a, b in zip(own, times[STOCK], strict=True))
            for name, own in times.items()
        }
        is_fast = ratios["worker"] < 1 and ratios["api"] <= 1.5
        if is_fast and number >= 2:
            break
    for name, own in times.items():
        print(f"import of {name}: {min(own) * 1000:.0f} ms, {ratios[name]:.2f} of stock")  # noqa: T201
    assert is_fast, ratios


def seconds(built: Path, function: str, statement: str, *, runtime: Path) -> float:
    """The processor's time of an import in a process with the packages that Lambda would have."""
    layer = built / "RuntimeLayer" / "python"
    ran = subprocess.run(
        [sys.executable, "-S", "-c", TIMED.format(statement)],
        cwd=built / function,
        env={**_LAMBDA, "PYTHONPATH": f"{layer}:{runtime}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return float(ran.stdout.split()[-1])
