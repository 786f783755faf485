"""Runs the checks one after the other, and undoes after each what it has made."""

import asyncio
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from a2a_serverless import aws
from a2a_serverless_tools.cloud.program import say
from tests.live.account import ERRORS
from tests.live.subject import BrokenError, Check, NotPossibleError, Subject


@dataclass(kw_only=True)
class Finding:
    """What one check has found: the reason, or what it has measured."""

    name: str
    outcome: str = "passed"
    says: str = ""


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
        found.findings.append(finding)
        says = f": {finding.says}" if finding.says else ""
        say(f"  {finding.outcome}{says} ({time.monotonic() - began:.1f} s)")
        if found.interrupted:
            break
    return found


async def _run(subject: Subject, check: Check) -> Finding:
    finding = Finding(name=check.name)
    try:
        measured = await check.run(subject) or {}
        finding.says = ", ".join(f"{name} {value}" for name, value in measured.items())
    except NotPossibleError as error:
        finding.outcome, finding.says = "not possible here", str(error)
    except BrokenError as error:
        finding.outcome, finding.says = "failed", str(error)
    except ERRORS as error:
        finding.outcome, finding.says = "failed", f"AWS: {aws.error_code(error)}: {error}"
    except Exception as error:  # noqa: BLE001 - one answer of another form must not end the run
        finding.outcome, finding.says = "failed", f"{type(error).__name__}: {error}"
    return finding
