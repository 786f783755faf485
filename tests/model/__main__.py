"""`python -m tests.model`: explore, and show what every guard is good for.

Without arguments: the short scenarios, then all guards, each with its counterexample. `--long` adds
the long scenarios and random logs (minutes), `--guard NAME` is about one guard.
"""

import argparse
import sys
import time
from collections.abc import Iterable

from tests.model.guards import GUARDS, Guard
from tests.model.logs import check_logs
from tests.model.search import Report, Small
from tests.model.worlds import LONG, SHORT

LOGS = 50_000
"""Random logs that the long form folds."""


def main() -> int:
    """Run what the arguments ask for; 1 when something is not as it should be."""
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--long", action="store_true", help="the long scenarios too: minutes")
    parser.add_argument("--guard", choices=[guard.name for guard in GUARDS])
    arguments = parser.parse_args()
    if arguments.guard:
        return int(not _guards(guard for guard in GUARDS if guard.name == arguments.guard))
    is_well = _scenarios(SHORT + LONG if arguments.long else SHORT)
    is_well = _guards(GUARDS) and is_well
    if arguments.long:  # an AssertionError shows a log that comes out wrong
        began = time.process_time()
        _say(f"\nRandom logs fold as they should: {check_logs(LOGS)}")
        _say(f"{time.process_time() - began:.1f} seconds")
    return int(not is_well)


def _scenarios(smalls: Iterable[Small]) -> bool:
    """Whether every promise holds, in as many states as there have to be."""
    is_well, total, seconds = True, 0, 0.0
    _say(f"{'scenario':<48}{'states':>9}{'steps':>10}{'seconds':>9}")
    for small in smalls:
        report = small.explore()
        total, seconds = total + report.states, seconds + report.seconds
        _say(f"{small.name:<48}{report.states:>9}{report.moves:>10}{report.seconds:>9.1f}")
        if report.finding is not None:
            is_well = False
            _trace(report)
        elif report.states < small.least:
            is_well = False
            _say(f"      TOO FEW STATES: at least {small.least}; an actor has stopped acting")
    _say(f"{'in all':<48}{total:>9}{seconds:>19.1f}\n")
    return is_well


def _guards(chosen: Iterable[Guard]) -> bool:
    """Whether the explorer finds what it should when each guard is off; with all it finds."""
    reports = [(guard, guard.explore()) for guard in chosen]
    for guard, report in reports:
        if report.finding is not None:
            _say(f"{guard.name}: {guard.does}.\nWithout it, in the world {guard.world!r}:\n")
            _trace(report)
    _say(f"{'without the guard':<20}{'steps':>6}{'states':>8}{'seconds':>9}  what breaks")
    rows = [_row(guard, report) for guard, report in reports]
    return all(rows)


def _row(guard: Guard, report: Report) -> bool:
    """One line of the table; False, and a line that says so, where the finding is another one."""
    finding = report.finding
    steps = "-" if finding is None else len(finding.trace)
    found = "nothing" if finding is None else finding.promise
    _say(f"{guard.name:<20}{steps:>6}{report.states:>8}{report.seconds:>9.1f}  {found}")
    if guard.is_found_by(finding):
        return True
    _say(f"      NOT AS EXPECTED: {guard.breaks}")
    return False


def _trace(report: Report) -> None:
    if report.finding is not None:
        for number, line in enumerate(report.finding.trace, start=1):
            _say(f"{number:>4}. {line}")
        _say(f"      {report.finding.promise}\n")


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
