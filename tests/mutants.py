"""Damage one guarantee at a time, and tell whether a test notices: `make mutants`.

`mutants.toml` has the damages. Each is made in a copy of the layer, on which the tests of `_TESTS`
are run until one fails. If none does, the guarantee has no test.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_LONGEST_S = 900
"""A damage with which the tests take longer is noticed: they wait for what it has taken away."""
_TESTS = {
    "tasks": "unit/tasks contract/test_cancel.py contract model unit/worker",
    "storage": "unit/storage/test_tail.py contract unit/storage unit/worker unit/http",
    "queues": "contract/test_queues.py unit/queues",
    "worker": "unit/worker contract model",
    "push": "unit/push contract",
    "http": "unit/http contract functions conformance",
    "addresses.py": "unit/test_addresses.py unit/push",
}
"""By folder of the layer: the tests that are run, in this order."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A damage: in a file, the text `old`, which is there once, becomes `new`."""

    file: str
    promise: str
    old: str
    new: str

    def is_killed(self, tests: str) -> bool:
        """Return True if one of the tests, which are paths in tests/, fails on it."""
        with tempfile.TemporaryDirectory(prefix="a2a-mutant-") as folder:
            self._make(Path(folder, "runtime"))
            paths = [f"tests/{name}" for name in tests.split()]
            command = [sys.executable, "-m", "pytest", "-xq", "-pno:cacheprovider", *paths]
            environment = {"PYTHONPATH": f"{folder}/runtime", "A2A_EMULATORS": "/nonexistent"}
            try:
                done = subprocess.run(
                    command,
                    check=False,
                    cwd=_ROOT,
                    env=os.environ | environment,
                    capture_output=True,
                    text=True,
                    timeout=_LONGEST_S,
                )
            except subprocess.TimeoutExpired:
                return True
        if done.returncode not in (0, 1):
            raise SystemExit(f"{self.file}: {self.promise}\n{done.stdout[-3000:]}{done.stderr}")
        return done.returncode == 1

    def _make(self, runtime: Path) -> None:
        """Copy the layer with this damage."""
        shutil.copytree(_ROOT / "layers/runtime", runtime)
        path = runtime / "a2a_serverless" / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise SystemExit(
                f"{self.file} has {text.count(self.old)} times {self.old!r}: not once."
            )
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")


def mutants() -> list[Mutant]:
    """Return all damages."""
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return [
        Mutant(file, promise, *texts)
        for file, each in table.items()
        for promise, texts in each.items()
    ]


def main() -> None:
    """Print each damage, killed or alive; exit with 1 if one is alive."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="*", help="of the layer, or folders; all by default")
    parser.add_argument("-n", type=int, default=2, help="damages at a time")
    parser.add_argument("--tests", help="paths in tests/, in the place of those of the folders")
    args = parser.parse_args()
    chosen = [one for one in mutants() if one.file.startswith(tuple(args.files or [""]))]

    def is_killed(one: Mutant) -> bool:
        return one.is_killed(args.tests or _TESTS[one.file.partition("/")[0]])

    alive = 0
    with ThreadPoolExecutor(args.n) as pool:
        for one, killed in zip(chosen, pool.map(is_killed, chosen), strict=True):
            alive += not killed
            sys.stdout.write(f"{'killed' if killed else 'ALIVE '} {one.file}: {one.promise}\n")
            sys.stdout.flush()
    sys.stdout.write(f"{len(chosen) - alive} of {len(chosen)} are killed.\n")
    sys.exit(bool(alive))


if __name__ == "__main__":
    main()
