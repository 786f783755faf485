"""A task as it is stored, for a person who looks at it."""

from __future__ import annotations

from dataclasses import dataclass

from a2a_serverless.tasks.fold import Record
from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.push import Push


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """HEAD, the commits up to its version, and the push configurations of a task."""

    head: Head
    records: tuple[Record, ...]
    pushes: tuple[Push, ...] = ()
