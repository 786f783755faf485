"""`python -m tests.model`: explore, and show what every guard is good for.

Without arguments: the short scenarios, then all guards. `--long` adds the long scenarios (minutes),
`--guard NAME` prints the counterexample of one guard, `--scenario TEXT` picks scenarios.
"""

from __future__ import annotations

import argparse
import sys

from tests.model.explore import Report, explore
from tests.model.guards import GUARDS, Guard
from tests.model.scenarios import LONG, SHORT, named_scenario


def main() -> int:
    """Run what the arguments ask for; 1 when something is not as it should be."""
    parser = argparse.ArgumentParser(prog="python -m tests.model", description=__doc__)
    parser.add_argument("--long", action="store_true", help="the long scenarios too: minutes")
    parser.add_argument("--guard", choices=[guard.name for guard in GUARDS])
    parser.add_argument("--scenario", default="", help="only scenarios with this in their name")
    arguments = parser.parse_args()
    if arguments.guard:
        guard = next(guard for guard in GUARDS if guard.name == arguments.guard)
        return int(not _without(guard, is_traced=True))
    scenarios = [s for s in SHORT + LONG * arguments.long if arguments.scenario in s.name]
    is_well = True
    total = 0
    _say(f"{'scenario':<48}{'states':>9}{'steps':>10}{'seconds':>9}")
    for scenario in scenarios:
        report = explore(scenario)
        total += report.states
        is_well = is_well and report.finding is None
        _say(f"{report.scenario:<48}{report.states:>9}{report.moves:>10}{report.seconds:>9.1f}")
        _trace(report)
    _say(f"{'in all':<48}{total:>9}\n")
    if not arguments.scenario:
        _say(f"{'without the guard':<20}{'steps':>6}{'states':>8}{'seconds':>9}  what breaks")
        found = [_without(guard) for guard in GUARDS]
        is_well = is_well and all(found)
    return int(not is_well)


def _without(guard: Guard, *, is_traced: bool = False) -> bool:
    """Whether the explorer finds what it should when the guard is off."""
    report = explore(named_scenario(guard.scenario), guard.without)
    finding = report.finding
    found = "nothing" if finding is None else finding.promise
    why = f": {guard.is_backed}" if guard.is_backed else ""
    steps = finding.steps if finding else "-"
    _say(f"{guard.name:<20}{steps:>6}{report.states:>8}{report.seconds:>9.1f}  {found}{why}")
    if is_traced:
        _say(f"\nThe guard: {guard.does}.\nWithout it, in the scenario {guard.scenario!r}:\n")
        _trace(report)
    return (finding is None) == bool(guard.is_backed)


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
