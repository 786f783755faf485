"""Runs the checks one after the other, and undoes after each what it has made."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from a2a_serverless import aws
from tests.live.account import ERRORS
from tests.live.findings import BrokenError, Check, Figures, Finding, NotPossibleError, Outcome
from tests.live.subject import Subject

Say = Callable[[str], object]


@dataclass
class Findings:
    """What a run has found, and what of its things remains."""

    findings: list[Finding] = field(default_factory=list)
    remains: list[str] = field(default_factory=list)
    interrupted: bool = False

    @property
    def is_well(self) -> bool:
        """Whether nothing failed, remained or was cut short."""
        failed = any(finding.outcome is Outcome.FAILED for finding in self.findings)
        return not (failed or self.remains or self.interrupted)


async def run(
    subject: Subject, checks: Iterable[Check], say: Say, found: Findings | None = None
) -> Findings:
    """Run the checks. A cancel ends the run, after what the present check made is undone.

    A check may run others itself, which add to what it has `found`; what it made until then stays.
    """
    found = found or Findings()
    for check in checks:
        before = len(subject.made.things)
        say(f"{check.name}: {check.proves}")
        began = subject.clock.monotonic()
        try:
            finding = await _run(subject, check)
        except asyncio.CancelledError:
            found.interrupted = True
            finding = _finding(check, Outcome.FAILED, "interrupted")
        finally:
            # In a task of its own, so that a second Ctrl-C does not cut it short.
            undoing = asyncio.ensure_future(_undo(subject, found, before))
            while not undoing.done():
                try:
                    await asyncio.shield(undoing)
                except asyncio.CancelledError:
                    found.interrupted = True
        seconds = round(subject.clock.monotonic() - began, 1)
        found.findings.append(replace(finding, seconds=seconds))
        say(f"  {finding.outcome}{f': {finding.says}' if finding.says else ''} ({seconds} s)")
        if found.interrupted:
            break
    return found


async def _run(subject: Subject, check: Check) -> Finding:
    try:
        check.needs(subject)
        figures = await check.run(subject)
    except NotPossibleError as error:
        return _finding(check, Outcome.NOT_POSSIBLE, str(error))
    except BrokenError as error:
        return _finding(check, Outcome.FAILED, str(error), error.figures)
    except ERRORS as error:
        says = f"AWS answered {aws.error_code(error)}: {error}"
        return _finding(check, Outcome.FAILED, says)
    except Exception as error:  # noqa: BLE001 - one answer of another form must not end the run
        return _finding(check, Outcome.FAILED, f"{type(error).__name__}: {error}")
    return _finding(check, Outcome.PASSED, figures=figures)


async def _undo(subject: Subject, found: Findings, before: int) -> None:
    found.remains += await subject.made.undo(before)


def _finding(
    check: Check, outcome: Outcome, says: str = "", figures: Figures | None = None
) -> Finding:
    return Finding(
        name=check.name,
        proves=check.proves,
        outcome=outcome,
        says=says,
        figures=figures or {},
    )
