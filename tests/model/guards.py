"""The guards, each switched off alone by a damage of the code: what the explorer has to find."""

import tomllib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.model.search import Finding, Report
from tests.model.worlds import LONG, SHORT, world_of
from tests.support.damages import Damage

_NAMED = {one.name: one for one in SHORT + LONG}


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """A guard, and what the explorer has to find without it."""

    name: str
    does: str
    world: str
    """The name of a scenario, or the words of another world."""
    breaks: str
    """The promise that is broken without it, in the words of the check that finds it."""
    shows: Sequence[str]
    """What its counterexample cannot do without: texts that its steps have in this order."""
    damages: Sequence[Damage]
    """What switches it off; none: its world lacks it."""

    @property
    def is_of_one_task(self) -> bool:
        return self.world in _NAMED  # all others are described

    def explore(self) -> Report:
        """Visit the states of its world without it."""
        named = _NAMED.get(self.world)
        with ExitStack() as off:
            for damage in self.damages:
                off.enter_context(damage.made())
            return named.explore() if named else world_of(self.world).explore()

    def is_found_by(self, finding: Finding | None) -> bool:
        """Whether what the explorer has found without the guard is what it had to find."""
        if finding is None:
            return False
        steps = iter(finding.trace)
        is_shown = all(any(text in step for step in steps) for text in self.shows)
        return is_shown and finding.promise == self.breaks


def _guards() -> Iterator[Guard]:
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    for name, row in tomllib.loads(text).items():
        said = {key: row.pop(key) for key in ("does", "world", "breaks")}
        shows, damages = row.pop("shows", ()), [Damage(file, *it) for file, it in row.items()]
        yield Guard(name=name, **said, shows=shows, damages=damages)


GUARDS = tuple(_guards())
