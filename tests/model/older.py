"""The release before: one that knows of no generation, mark or release of an attempt.

Its rules are today's without these fields, and its updates of HEAD leave them as they are.
"""

from __future__ import annotations

from dataclasses import replace

from a2a_serverless.tasks.head import Head
from a2a_serverless.tasks.rules import Step


def read_by_older(head: Head) -> Head:
    """HEAD as that release reads it."""
    return replace(head, needs=0, generation=None, size=0, cancel=None, released=None)


def made_by_older(step: Step) -> Step:
    """A commit as that release decides and stores it."""
    return replace(step, head=read_by_older(step.head), base=None, worker="", ended=None)
