"""What the A2A project's conformance kit of 0.3 reports: counts, and whose each failure is."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

_NO_ID: Final = (
    "204 == 200",
    "it has no id, which makes it a notification: no answer, not even an error (6.11.1)",
)
_OF_THE_KIT: Final[Mapping[str, tuple[str, str]]] = {
    "test_rejects_invalid_json_rpc_requests[invalid_request2--32601]": _NO_ID,
    "test_rejects_invalid_json_rpc_requests[invalid_request4--32602]": _NO_ID,
    "test_task_history_length": (
        "Full history should contain more",
        "it asks for history_length, and the parameter is historyLength (7.3.1)",
    ),
    "test_boundary_values": (
        "Negative historyLength should be rejected",
        "it asks for history_length, and the parameter is historyLength (7.3.1)",
    ),
    "test_get_push_notification_config": (
        "but get config failed",
        'it asks for the id "default", which it has never set',
    ),
    "test_message_send_continue_with_contextid": (
        "-32602",
        "it looks for context_id in the answer, which has contextId, and sends another one",
    ),
    "test_unsupported_part_kind": (
        "Task should be in failed state",
        "its part has a text, and a field `type` that 0.3 does not have and readers ignore",
    ),
    "test_task_state_transitions": (
        "Unexpected initial state: input-required",
        "it wants a task at work, after a send that has waited for the agent's question",
    ),
}
"""By test: what it says, and why that is the kit's fault by the text of 0.3."""


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
            why = _fault_of_the_kit(test, said)
            whose = f"the kit's: {why}" if why else f"ours: {said.partition(chr(10))[0]}"
            yield f"FAIL {report.name} {test}: {whose}"


def is_ours(found: Sequence[Report]) -> bool:
    """Return True if a test has failed that is not known to be wrong."""
    return any(not _fault_of_the_kit(*one) for report in found for one in report.failed)


def _fault_of_the_kit(test: str, said: str) -> str:
    """Return why a failure is the kit's fault; empty if it is not known to be."""
    part, why = _OF_THE_KIT.get(test, ("", ""))
    return why if part in said else ""
