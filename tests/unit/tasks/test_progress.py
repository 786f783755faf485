"""Progress as metadata of a status, and as a bar."""

from __future__ import annotations

import math
from typing import Any

import pytest
from google.protobuf.struct_pb2 import Struct

from a2a_serverless.tasks.progress import Progress, progress_in


@pytest.mark.parametrize(
    ("done", "total", "bar", "percent"),
    [
        (0, 3, "░" * 20 + " 0 of 3", 0),
        (3, 10, "█" * 6 + "░" * 14 + " 3 of 10", 30),
        (2_500_000, 10_000_000.5, "█" * 4 + "░" * 16 + " 2,500,000 of 10,000,000.5", 24),
        (12, 10, "█" * 20 + " 10 of 10", 100),
        (-1, 10, "░" * 20 + " 0 of 10", 0),
    ],
)
def test_a_bar_and_its_numbers(done: float, total: float, bar: str, percent: int) -> None:
    """The bar is full at the total; what is below nothing or beyond all is bounded."""
    progress = Progress.of(done, total)
    assert (str(progress), progress.percent) == (bar, percent)
    assert progress_in(progress.metadata()) == progress


@pytest.mark.parametrize(
    ("done", "total"), [(0, 0), (1, -1), (1, math.nan), (math.inf, 1), (1, math.inf)]
)
def test_numbers_that_make_no_progress_are_refused(done: float, total: float) -> None:
    """The sentence shows the call and what to give instead."""
    with pytest.raises(ValueError, match="give two numbers, done and a total above 0"):
        Progress.of(done, total)


@pytest.mark.parametrize(
    "told", [None, 0.5, "half", {}, {"done": 1}, {"done": "1", "total": 2}, {"done": 1, "total": 0}]
)
def test_metadata_of_others_is_no_progress(told: Any) -> None:
    """An agent may have its own metadata of that name."""
    metadata = Struct()
    metadata.update({"progress": told})
    assert progress_in(metadata) is None
    assert progress_in(Struct()) is progress_in(None) is None
