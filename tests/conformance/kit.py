"""`python -m tests.conformance.kit KIT KIT_0_3`: the A2A project's conformance kits of 1.0 and 0.3.

The page `conformance-kit` says how.

Runs that of 1.0 against `a2a-serverless dev` once for each way in which it wants an agent, and that
of 0.3 once over each transport. The kits have no credentials, so that their requests get them on
their way. Exit codes: 0 nothing failed but by the kit's own fault, 1 a test failed, 2 a kit is
missing.
"""

from __future__ import annotations

import argparse
import json
import secrets
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree as ET

from a2a_serverless_tools.local.http_server import HttpServer
from a2a_serverless_tools.local.sockets import bind
from tests.conformance.key_proxy import key_proxy
from tests.e2e.commands import environment, running_with

HERE = Path(__file__).parent
LEVELS = ("MUST", "SHOULD", "MAY")
OUTCOMES = ("FAIL", "PASS", "SKIPPED", "NOT TESTED")
"""Of a requirement in one run of the kit; of several runs the first one of these counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """An agent as the kit wants it, and the tests that it is wanted for."""

    name: str
    card: str
    agent: str = "tck_agent.py"
    options: tuple[str, ...] = ()
    """Of `dev`."""
    selected: tuple[str, ...] = ()
    """Of the kit."""
    has_keys: bool = True
    is_extended: bool = False
    """Whether known callers get another card, where callers are known."""


WAYS = (
    Way(name="JSON-RPC and HTTP+JSON", card="tck_card.json", is_extended=True),
    Way(
        name="an extension that is required (CORE-CAP-004)",
        card="tck_card_extension.json",
        selected=("-k", "ExtensionRequired"),
    ),
    Way(
        name="neither push nor an extended card (CORE-CAP-001 and 003)",
        card="tck_card.json",
        options=("--no-push",),
        selected=("-k", "not_supported"),
    ),
)


WAY_0_3 = Way(name="0.3", card="tck_card_0_3.json", agent="tck_agent_0_3.py", has_keys=False)
"""Nobody needs a key: its tests of credentials go by the order of the card's schemes."""

_OF_THE_KIT: Final[Mapping[str, str]] = {
    **{
        f"test_rejects_invalid_json_rpc_requests[invalid_request{number}]": "204 == 200"
        for number in ("2--32601", "4--32602")
    },
    "test_task_history_length": "Full history should contain more",
    "test_boundary_values": "Negative historyLength should be rejected",
    "test_get_push_notification_config": "but get config failed",
    "test_message_send_continue_with_contextid": "-32602",
    "test_unsupported_part_kind": "Task should be in failed state",
    "test_task_state_transitions": "Unexpected initial state: input-required",
}
"""What tests say that fail by the kit's own fault; the page `conformance-kit` has the reasons."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the kits in every way, and print what they found."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.kit")
    parser.add_argument("kit", type=Path, help="a checkout of a2a-tck with an environment in .venv")
    parser.add_argument("kit_0_3", type=Path, help="another one, of its branch 0.3.x")
    options = parser.parse_args(arguments)
    kit, kit_0_3 = options.kit, options.kit_0_3
    for path in (kit, kit_0_3):
        if not (path / ".venv" / "bin" / "python").exists():
            _say(
                f"{path} is no checkout of a kit with its environment: see the page"
                " `conformance-kit`."
            )
            return 2
    found: dict[str, tuple[str, str]] = {}
    rows = []
    has_failed = False
    for way in WAYS:
        with _agent(way) as url:
            has_failed |= _run(kit, url, way) != 0
        rows.append((way.name, *_counts(kit / "reports" / "junitreport.xml")))
        report = json.loads((kit / "reports" / "compatibility.json").read_text(encoding="utf-8"))
        found = merged(found, report["per_requirement"])
    of_0_3 = _run_0_3(kit_0_3)
    for line in (*summary(rows, found), *table(of_0_3)):
        _say(line)
    return int(has_failed or is_ours(of_0_3))


def merged(
    found: Mapping[str, tuple[str, str]], report: Mapping[str, Mapping[str, str]]
) -> dict[str, tuple[str, str]]:
    """Return level and outcome of each requirement, those of one more report among them."""
    both = dict(found)
    for name, requirement in report.items():
        outcomes = [requirement["status"], both.get(name, ("", OUTCOMES[-1]))[1]]
        both[name] = (requirement["level"], min(outcomes, key=OUTCOMES.index))
    return both


def summary(
    rows: Sequence[tuple[str, int, int, int]], found: Mapping[str, tuple[str, str]]
) -> Iterator[str]:
    """Yield the tables of the page `conformance-kit`, and the requirements that were skipped."""
    yield "| run | passed | failed | skipped |"
    for row in rows:
        yield f"| {' | '.join(str(cell) for cell in row)} |"
    yield "| level | in the kit | passed | failed | skipped | without a test in the kit |"
    counted = Counter(found.values())
    for level in LEVELS:
        failed, passed, skipped, untested = (counted[level, outcome] for outcome in OUTCOMES)
        of_all = failed + passed + skipped + untested
        yield f"| {level} | {of_all} | {passed} | {failed} | {skipped} | {untested} |"
    for outcome in ("FAIL", "SKIPPED"):
        names = sorted(name for name, (_, one) in found.items() if one == outcome)
        yield f"{outcome}: {', '.join(names) or 'none'}"


@contextmanager
def _agent(way: Way) -> Iterator[str]:
    """The URL of the agent that the kit wants, without a need for credentials."""
    arguments = ("dev", "--port", "0", *way.options)
    agent = (f"{HERE / way.agent}:agent", str(HERE / way.card))
    command = (*arguments, "--agent", agent[0], "--card", agent[1])
    bound, key = bind(0), secrets.token_hex(16)
    variables = {"A2A_AUTH": "api-key" if way.has_keys else "none"}
    if way.has_keys:
        variables["A2A_API_KEYS"] = json.dumps({"kit": key})
        variables["A2A_PUBLIC_URL"] = f"http://127.0.0.1:{bound.getsockname()[1]}"
        if way.is_extended:
            variables["A2A_EXTENDED_CARD"] = str(HERE / "tck_extended_card.json")
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "dev.log")
        python = Path(sys.executable)
        with running_with(python, *command, env=environment(**variables), output=log) as dev:
            url = dev.url
            if not way.has_keys:
                bound.close()
                yield url
                return
            with HttpServer(key_proxy(url, {"X-API-Key": key}), bound) as proxy:
                yield proxy.url


def _run(kit: Path, url: str, way: Way) -> int:
    command = [".venv/bin/python", "run_tck.py", "--sut-host", url]
    command += [
        "--transport",
        "jsonrpc,http_json",
        *(("--", *way.selected) if way.selected else ()),
    ]
    return subprocess.run(command, cwd=kit, check=False).returncode


def _run_0_3(kit: Path) -> list[Report]:
    """Run the kit of 0.3 over JSON-RPC and HTTP+JSON; return what it has reported."""
    folder = kit / "reports"
    for path in folder.glob("*_results.json"):
        path.unlink()
    with _agent(WAY_0_3) as url:
        command = [".venv/bin/python", "run_tck.py", "--sut-url", f"{url}/"]
        command += ["--category", "all", "--transports", "jsonrpc,rest"]
        subprocess.run(command, cwd=kit, check=False)
    return [Report.read(path) for path in sorted(folder.glob("*_results.json"))]


def _counts(report: Path) -> tuple[int, int, int]:
    """Tests that passed, failed, and were skipped."""
    suites = list(ET.parse(report).getroot().iter("testsuite"))  # noqa: S314 - the kit's own
    skipped = sum(int(suite.get("skipped", 0)) for suite in suites)
    failed = sum(int(suite.get(kind, 0)) for suite in suites for kind in ("failures", "errors"))
    of_all = sum(int(suite.get("tests", 0)) for suite in suites)
    return of_all - failed - skipped, failed, skipped


@dataclass(frozen=True, slots=True)
class Report:
    """One run of a category of tests over one transport, or over both."""

    name: str
    counts: Mapping[str, int]
    failed: Sequence[tuple[str, str]]
    """Each test, and what it has said."""

    @classmethod
    def read(cls, path: Path) -> Report:
        """Read a report of pytest-json-report."""
        content = json.loads(path.read_text(encoding="utf-8"))
        failed = [
            (test["nodeid"].rpartition("::")[2], _said(test))
            for test in content["tests"]
            if test["outcome"] in ("failed", "error")
        ]
        return cls(path.name.removesuffix("_results.json"), content["summary"], failed)


def _said(test: Mapping[str, Any]) -> str:
    phases = (test.get(phase, {}) for phase in ("setup", "call", "teardown"))
    return next((phase["crash"]["message"] for phase in phases if "crash" in phase), "")


def table(found: Sequence[Report]) -> Iterator[str]:
    """Yield the table of the page `conformance-kit`, and each failure with whose it is."""
    yield "| 0.3 | passed | failed | skipped |"
    for report in found:
        kinds = (("passed", "xpassed"), ("failed", "error"), ("skipped", "xfailed"))
        cells = [str(sum(report.counts.get(kind, 0) for kind in names)) for names in kinds]
        yield f"| {' | '.join([report.name, *cells])} |"
    for report in found:
        for test, said in report.failed:
            whose = "the kit's" if _is_of_the_kit(test, said) else "ours"
            yield f"FAIL {report.name} {test}: {whose}: {said.partition(chr(10))[0]}"


def is_ours(found: Sequence[Report]) -> bool:
    """Return True if a test has failed that is not known to be wrong."""
    return any(not _is_of_the_kit(*one) for report in found for one in report.failed)


def _is_of_the_kit(test: str, said: str) -> bool:
    return test in _OF_THE_KIT and _OF_THE_KIT[test] in said


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
