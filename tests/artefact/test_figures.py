"""How large the packages are, and how long their handlers take to load, in processes of their own.

What counts is the processor's time of the import statement, which depends less than the clock's on
what else the machine does, and its ratio to another import of the same round.
"""

import os
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from a2a_serverless_tools.scaffold.sizes import LAYER_BYTES
from tests.artefact.build import Artefact, size, zipped_size
from tests.artefact.deployment import Deployment
from tests.artefact.environment import PYTHON

pytestmark = pytest.mark.emulators

MB = 1_000_000
IS_LONG = os.environ.get("A2A_ARTEFACT") == "long"
"""`make artefact`: every handler, and more runs of each."""
FEWEST, MOST = 3, 11
"""Rounds. More than the fewest only while a limit is not kept, which may be due to what else the
machine does."""
STOCK = "import a2a.server.routes, fastapi, uvicorn"
"""What a server of the official SDK loads before its first line."""

_PROGRAM = """\
import time
begin = time.process_time()
{statement}
print(f"imported in {{(time.process_time() - begin) * 1000:.1f}} ms")
"""


@dataclass(frozen=True)
class Loading:
    """An import statement and where it is run: folder and environment."""

    name: str
    statement: str
    folder: Path
    environment: Mapping[str, str]

    def measure(self) -> float:
        """Milliseconds of one run."""
        command = [*PYTHON, "-c", _PROGRAM.format(statement=self.statement)]
        options: Any = {"capture_output": True, "text": True, "timeout": 60}
        own = dict(self.environment)
        ran = subprocess.run(command, cwd=self.folder, env=own, check=False, **options)
        assert ran.returncode == 0, ran.stderr
        return float(ran.stdout.rpartition("imported in ")[2].split()[0])


Times = Mapping[str, Sequence[float]]
"""Milliseconds by name, round after round."""


def in_turns(loadings: Iterable[Loading], is_enough: Callable[[Times], bool]) -> Times:
    """Measure each in every round: at least `FEWEST` rounds, and `MOST` until `is_enough`.

    In the long form there are always `MOST`.
    """
    loadings = list(loadings)
    times: dict[str, list[float]] = {loading.name: [] for loading in loadings}
    for number in range(1, MOST + 1):
        for loading in loadings:
            times[loading.name].append(loading.measure())
        if number >= FEWEST and not IS_LONG and is_enough(times):
            break
    return times


def ratio(times: Times, name: str, other: str) -> float:
    """How much longer one takes than another one."""
    return median(a / b for a, b in zip(times[name], times[other], strict=True))


def test_packages_leave_room_for_the_agent(artefact: Artefact, tmp_path: Path) -> None:
    """The layer takes no more than the build of an agent leaves for it of Lambda's 250 MB."""
    for name in ("RuntimeLayer", *artefact.functions()):
        folder = artefact.folder / name
        shown = f"{size(folder) / MB:.1f} MB"
        if IS_LONG:
            shown += f", zipped {zipped_size(folder, tmp_path / name) / MB:.1f} MB"
        print(f"{name}: {shown}")  # noqa: T201 - pytest shows it
    assert size(artefact.layer) <= LAYER_BYTES


def test_handlers_load_as_fast_as_the_stock_server(deployment: Deployment, tmp_path: Path) -> None:
    """The worker's handler loads faster than the SDK's server, the API's in at most 1.5x."""
    functions = deployment.functions
    every = [name for name in functions if name != "StreamFunction"]
    names = every if IS_LONG else ["WorkerFunction", "ApiFunction"]
    loadings = [
        Loading(it.name, f"import {it.handler.partition('.')[0]}", it.folder, it.environment())
        for it in map(functions.__getitem__, names)
    ]
    environment = functions["ApiFunction"].environment()
    stock = Loading("stock", STOCK, tmp_path, environment)
    times = in_turns([*loadings, stock], is_fast)
    for name, measured in times.items():
        of_stock = ratio(times, name, "stock")
        print(f"import of {name}: {min(measured):.0f} ms, {of_stock:.2f} of stock")  # noqa: T201
    assert is_fast(times), times


def is_fast(times: Times) -> bool:
    worker, api = (ratio(times, f"{name}Function", "stock") for name in ("Worker", "Api"))
    return worker < 1 and api <= 1.5
