"""How long handlers take to load: measured in processes of their own, in turns.

What counts is the processor's time of the import statement, which depends less than the clock's on
what else the machine does, and its ratio to another import of the same round.
"""

import os
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.artefact.environment import PYTHON

STOCK = "import a2a.server.routes, fastapi, uvicorn"
"""What a server of the official SDK loads before its first line."""

_PROGRAM = """\
import time
begin = time.process_time()
{statement}
print(f"imported in {{(time.process_time() - begin) * 1000:.1f}} ms")
"""


@dataclass(frozen=True, kw_only=True)
class Loading:
    """An import statement and where it is run: folder and environment."""

    name: str
    statement: str
    folder: Path
    environment: Mapping[str, str]

    def measure(self) -> float:
        """Milliseconds of one run."""
        ran = subprocess.run(
            [*PYTHON, "-c", _PROGRAM.format(statement=self.statement)],
            cwd=self.folder,
            env=dict(self.environment),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
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


IS_LONG = os.environ.get("A2A_ARTEFACT") == "long"
"""`make artefact`: every handler, and more runs of each."""
FEWEST, MOST = 3, 11
"""Rounds. More than the fewest only while a limit is not kept, which may be due to what else the
machine does."""
