"""How long the handlers take to import, beside the official SDK's server.

    python -m benchmarks.imports [--rounds N] [--from-source]

Every measurement is a fresh process, and the candidates take turns, so that a slow moment of the
machine meets all of them. Only what the functions are deployed with can be imported: the layer's
lock, and the AWS SDK of Lambda's runtime. A handler is imported as Lambda does it, with its
settings, its logger and its clients, but without any call of AWS; and with bytecode, which the
layer brings along. `--from-source` leaves that out.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[1]
RUNTIME_HAS = frozenset(
    {"boto3", "botocore", "jmespath", "python-dateutil", "s3transfer", "six", "urllib3"}
)
"""Packages of Lambda's runtime; their dependencies belong to it as well."""

STOCK = "official SDK's server"
CANDIDATES: Mapping[str, tuple[str, str]] = {
    STOCK: ("functions/api", "import a2a.server.routes, fastapi, uvicorn"),
    "worker": ("functions/worker", "import worker"),
    "api": ("functions/api", "import api"),
    "stream": ("functions/api", "import stream_server"),
    "push": ("functions/push", "import push"),
    "sweeper": ("functions/sweeper", "import sweeper"),
}
"""By name: the folder in which the process runs, and what it imports."""

_CHILD = """
import sys
for name in {blocked!r}: sys.modules[name] = None
sys.path.insert(0, "")
from time import perf_counter, process_time
began, cpu = perf_counter(), process_time()
{statement}
took = perf_counter() - began, process_time() - cpu
import json, resource
loaded = [name for name, module in sys.modules.items() if module is not None]
print(json.dumps([*took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, loaded]))
"""
_LAMBDA = {
    "A2A_AUTH": "none",
    "A2A_PUSH_DEAD_LETTER_QUEUE": "push-dead-letters.fifo",
    "A2A_PUSH_QUEUE": "push.fifo",
    "A2A_QUEUE": "operations.fifo",
    "A2A_TABLE": "tasks",
    "A2A_UNDECODABLE_QUEUE": "undecodable",
    "AWS_ACCESS_KEY_ID": "nobody",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_LAMBDA_FUNCTION_NAME": "measured",
    "AWS_SECRET_ACCESS_KEY": "nothing",
    "POWERTOOLS_METRICS_NAMESPACE": "A2AServerless",
    "POWERTOOLS_SERVICE_NAME": "measured",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Import:
    """One import in a process of its own."""

    wall_ms: float
    cpu_ms: float
    most_kib: int
    """The most memory that the process had."""
    modules: frozenset[str]


def measure(
    names: Sequence[str], *, rounds: int, from_source: bool = False
) -> dict[str, list[Import]]:
    """Import each candidate `rounds` times, in turns; a round before them writes the bytecode."""
    blocked = _not_deployed()
    taken: dict[str, list[Import]] = {name: [] for name in names}
    with TemporaryDirectory() as bytecode:
        python = {
            "PYTHONPYCACHEPREFIX": bytecode,
            "PYTHONDONTWRITEBYTECODE": "1" if from_source else "",
        }
        for number in range(1 if from_source else 0, rounds + 1):
            for name in names:
                once = _import(name, blocked, python)
                if number:
                    taken[name].append(once)
    return taken


def loaded(name: str) -> frozenset[str]:
    """Return the modules that are loaded after a candidate's import."""
    return _import(name, _not_deployed(), {}).modules


def ratio(taken: Mapping[str, Sequence[Import]], name: str) -> float:
    """Return a candidate's processor time as a share of the official server's in the same round."""
    rounds = zip(taken[name], taken[STOCK], strict=True)
    return median(candidate.cpu_ms / stock.cpu_ms for candidate, stock in rounds)


def _import(name: str, blocked: Sequence[str], python: Mapping[str, str]) -> Import:
    folder, statement = CANDIDATES[name]
    run = subprocess.run(  # noqa: S603 - this file's own words
        [sys.executable, "-c", _CHILD.format(blocked=blocked, statement=statement)],
        cwd=ROOT / folder,
        env={**os.environ, **_LAMBDA, **python},
        check=False,
        capture_output=True,
        text=True,
    )
    if run.returncode:
        last = run.stderr.strip().splitlines()[-1:]
        raise RuntimeError(f"{name} cannot be imported: {last}")
    wall_s, cpu_s, most_kib, modules = json.loads(run.stdout.splitlines()[-1])
    return Import(
        wall_ms=wall_s * 1000,
        cpu_ms=cpu_s * 1000,
        most_kib=most_kib,
        modules=frozenset(modules),
    )


def _not_deployed() -> list[str]:
    """Return the top-level names that exist here and not in the functions."""
    lock = (ROOT / "requirements" / "runtime.txt").read_text(encoding="utf-8")
    deployed = {_plain(name) for name in re.findall(r"^([\w.-]+)==", lock, re.MULTILINE)}
    deployed |= RUNTIME_HAS | {"a2a-serverless"}
    return sorted(
        name
        for name, distributions in packages_distributions().items()
        if not deployed & {_plain(distribution) for distribution in distributions}
    )


def _plain(distribution: str) -> str:
    return re.sub(r"[-_.]+", "-", distribution).lower()


def main() -> None:
    """Print what the imports of all functions take."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--from-source", action="store_true")
    options = parser.parse_args()
    names = [name for name, (folder, _) in CANDIDATES.items() if (ROOT / folder).is_dir()]
    taken = measure(names, rounds=options.rounds, from_source=options.from_source)
    print(f"{'':24}{'wall':>9}{'processor':>12}{'ratio':>8}{'modules':>9}{'memory':>10}")
    for name in names:
        wall_ms = median(once.wall_ms for once in taken[name])
        cpu_ms = median(once.cpu_ms for once in taken[name])
        print(
            f"{name:24}{wall_ms:6.0f} ms{cpu_ms:9.0f} ms"
            f"{ratio(taken, name):8.2f}{len(taken[name][0].modules):9}"
            f"{median(once.most_kib for once in taken[name]) / 1024:7.0f} MB"
        )


if __name__ == "__main__":
    main()
