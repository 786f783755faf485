"""Runs the checks one after the other, undoes after each what it has made, and reports."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from a2a_serverless import __version__, aws
from a2a_serverless_tools.cloud.program import say
from tests.live.account import ERRORS
from tests.live.findings import BrokenError, Check, Figures, NotPossibleError
from tests.live.subject import Subject


@dataclass(kw_only=True)
class Finding:
    """What one check has found; `says` is empty where it passed."""

    name: str
    outcome: str = "passed"
    says: str = ""
    figures: Figures = field(default_factory=dict)
    seconds: float = 0.0


@dataclass
class Findings:
    """What a run has found, and what of its things remains."""

    findings: list[Finding] = field(default_factory=list)
    remains: list[str] = field(default_factory=list)
    interrupted: bool = False

    @property
    def is_well(self) -> bool:
        """Whether nothing failed, remained or was cut short."""
        failed = any(finding.outcome == "failed" for finding in self.findings)
        return not (failed or self.remains or self.interrupted)

    def write(self, subject: Subject, folder: Path) -> Path:
        """Write the report, which has no credential; return its path."""
        stack = subject.ground.stack if subject.ground else None
        whole = {
            "version": __version__,
            "run": subject.run,
            "endpoint": subject.endpoint,
            "stack": stack and stack.name,
            "parameters": dict(stack.parameters) if stack else {},
            **asdict(self),
        }
        path = folder / "report.json"
        path.write_text(json.dumps(whole, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        return path


async def run(subject: Subject, checks: Iterable[Check]) -> Findings:
    """Run the checks. A cancel ends the run, after what the present check made is undone."""
    found = Findings()
    for check in checks:
        say(f"{check.name}: {check.proves}")
        began = time.monotonic()
        try:
            finding = await _run(subject, check)
        except asyncio.CancelledError:
            found.interrupted = True
            finding = Finding(name=check.name, outcome="failed", says="interrupted")
        # In a task of its own, so that a second Ctrl-C does not cut it short.
        undoing = asyncio.ensure_future(subject.made.undo())
        while not undoing.done():
            try:
                await asyncio.shield(undoing)
            except asyncio.CancelledError:
                found.interrupted = True
        found.remains += undoing.result()
        finding.seconds = round(time.monotonic() - began, 1)
        found.findings.append(finding)
        says = f": {finding.says}" if finding.says else ""
        say(f"  {finding.outcome}{says} ({finding.seconds} s)")
        if found.interrupted:
            break
    return found


async def _run(subject: Subject, check: Check) -> Finding:
    finding = Finding(name=check.name)
    try:
        finding.figures = await check.run(subject)
    except NotPossibleError as error:
        finding.outcome, finding.says = "not possible here", str(error)
    except BrokenError as error:
        finding.outcome, finding.says, finding.figures = "failed", str(error), error.figures
    except ERRORS as error:
        finding.outcome, finding.says = "failed", f"AWS: {aws.error_code(error)}: {error}"
    except Exception as error:  # noqa: BLE001 - one answer of another form must not end the run
        finding.outcome, finding.says = "failed", f"{type(error).__name__}: {error}"
    return finding
