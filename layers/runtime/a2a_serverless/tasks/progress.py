"""How much of a turn's work is done: the metadata of a status, and the bar that is made of it."""

from __future__ import annotations

import math
from typing import Final

from google.protobuf.struct_pb2 import Struct

from a2a_serverless.tasks.entries import whole
from a2a_serverless.values import dataclass

KEY: Final = "progress"
"""The key of a status's metadata: `{"progress": {"done": 3, "total": 10}}`."""

_FULL, _EMPTY = "█", "░"
_WIDTH: Final = 20


@dataclass(frozen=True, slots=True)
class Progress:
    """`done` of `total`, in units of the agent's own: pages, rows, steps."""

    done: float
    total: float

    @classmethod
    def of(cls, done: float, total: float) -> Progress:
        """Return the progress; a `done` beyond `total` counts as `total`.

        Raises:
            ValueError: `total` is not above 0, or one of the two is not a finite number.
        """
        if not (math.isfinite(done) and math.isfinite(total) and total > 0):
            msg = f"progress({done!r}, {total!r}): give two numbers, done and a total above 0."
            raise ValueError(msg)
        return cls(min(max(done, 0), total), total)

    @property
    def percent(self) -> int:
        """Return the whole percents that are done."""
        return math.floor(self.done / self.total * 100)

    @property
    def numbers(self) -> str:
        """Return the numbers for a person, such as `1,200 of 5,000`."""
        return f"{_number(self.done)} of {_number(self.total)}"

    def metadata(self) -> Struct:
        """Return the metadata that tells this progress in a status."""
        struct = Struct()
        # Numbers of other kinds, such as numpy's, are no JSON values.
        struct.update({KEY: {"done": float(self.done), "total": float(self.total)}})
        return struct

    def __str__(self) -> str:
        """Return a bar with its numbers, such as `██████░░░░░░░░░░░░░░ 3 of 10`."""
        full = math.floor(self.done / self.total * _WIDTH)
        return f"{_FULL * full}{_EMPTY * (_WIDTH - full)} {self.numbers}"


def _number(value: float) -> str:
    return f"{value:,.2f}".rstrip("0").rstrip(".")


def progress_in(metadata: Struct | None) -> Progress | None:
    """Return the progress in a status's metadata; None if there is none, or in another form."""
    if metadata is None or KEY not in metadata.fields:
        return None
    told = metadata.fields[KEY].struct_value.fields
    numbers = [
        whole(told[name].number_value)
        for name in ("done", "total")
        if name in told and told[name].WhichOneof("kind") == "number_value"
    ]
    try:
        done, total = numbers
        return Progress.of(done, total)
    except ValueError:
        return None
