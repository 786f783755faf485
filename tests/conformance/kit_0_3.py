"""What the A2A project's conformance kit of 0.3 reports: counts, and whose each failure is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

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


def reports(folder: Path) -> list[Report]:
    """Return what the kit has written of its runs, by their names."""
    return [Report.read(path) for path in sorted(folder.glob("*_results.json"))]


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
