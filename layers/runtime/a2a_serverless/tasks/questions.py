"""Questions that an agent's code asks its client in the middle of its work. Pure.

A question ends its turn, and the code goes on in the turn of the answer. Its id is on the parts of
the status's message, so that a client can answer several questions at once, or some of them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import field
from typing import Final, NamedTuple

from a2a.types import Part

from a2a_serverless.tasks.entries import (
    LATE,
    QUESTION,
    Recorded,
    StepId,
    TurnEnded,
    TurnOpened,
)
from a2a_serverless.tasks.fold import Log, Record
from a2a_serverless.values import dataclass

ASK: Final = "ctx.ask"
"""The name of the records of questions."""
ID_FIELD: Final = "questionId"
"""The field of a part's metadata with the id of its question: of the question's own parts, and of
those of an answer."""


class Asked(NamedTuple):
    """What the record of a question says beside its id."""

    until: int = 0
    """The time at which the code goes on without an answer, in milliseconds; 0: it waits on."""
    wrong: int = 0
    """The answers before that did not fit."""

    def record(self, step_id: StepId) -> Recorded:
        """Return the record of the question."""
        return Recorded(step_id, QUESTION, json.dumps([*self]).encode())

    @classmethod
    def of(cls, entry: Recorded) -> Asked:
        """Return what a record says that `record` has made."""
        return cls(*json.loads(entry.value)[:2])


def id_on_parts(step_id: StepId) -> str:
    """Return the id of a question as a client sees it: its own, and its number, unless that is 1.

    One without an id of its own has its number in any case.
    """
    is_plain = step_id.key and step_id.number == 1
    return step_id.key if is_plain else f"{step_id.key}#{step_id.number}"


def id_of_part(part: Part) -> str:
    """Return the id of the question that a part is of, or answers; empty: it names none."""
    fields = part.metadata.fields
    return fields[ID_FIELD].string_value if ID_FIELD in fields else ""


def own_parts(parts: Iterable[Part], step_id: StepId) -> list[Part]:
    """Return the parts of a message that answer a question: those that name it, or none."""
    return [part for part in parts if id_of_part(part) in ("", id_on_parts(step_id))]


@dataclass(slots=True)
class Questions:
    """What the code of a task's current turn has asked its client."""

    open: dict[StepId, Recorded] = field(default_factory=dict)
    """The records of those that wait for an answer."""
    answers: dict[StepId, TurnOpened] = field(default_factory=dict)
    """What has answered the others."""
    _turn_is_open: bool = True
    _behind: TurnOpened | None = None
    """A message that was accepted before the turn's end."""

    def add(self, record: Record) -> None:
        """Take the next commit of the log."""
        opening = record.opening
        if self._turn_is_open:
            self._behind = opening or self._behind
        elif opening is not None:
            self._answer(opening)
        self._turn_is_open = self._turn_is_open or record.opens_turn
        for entry in record.entries:
            if isinstance(entry, Recorded) and entry.form in (QUESTION, LATE):
                self.open.pop(entry.id, None)
                self.answers.pop(entry.id, None)  # asked anew, it waits for another answer
                if entry.form == QUESTION:
                    self.open[entry.id] = entry
        if any(isinstance(entry, TurnEnded) for entry in record.entries):
            behind, self._behind = self._behind, None
            self._turn_is_open = behind is not None
            if behind is not None:
                self._answer(behind)

    def _answer(self, opening: TurnOpened) -> None:
        """Let a message answer the questions that its parts name; all, if it names none."""
        named = {id_of_part(part) for part in opening.request.message.parts} - {""}
        for step_id in [*self.open]:
            if not named or id_on_parts(step_id) in named:
                self.answers[step_id] = opening
                del self.open[step_id]

    def late(self, now_ms: int) -> list[StepId]:
        """Return the open ones whose time is over."""
        times = {step_id: Asked.of(entry).until for step_id, entry in self.open.items()}
        return [step_id for step_id, until in times.items() if 0 < until <= now_ms]


def questions_of(log: Log) -> Questions:
    """Return the questions of a log that was read from its beginning."""
    found, turn = Questions(), log.head.turn
    if turn.begun:
        for record in log.between(turn.begun_base, log.head.version):
            found.add(record)
    return found


def question_texts(parts: Iterable[Part]) -> Mapping[str, str]:
    """Return the texts of questions in a status's message, by their ids."""
    texts: dict[str, str] = {}
    for part in parts:
        if part.text and (name := id_of_part(part)):
            texts[name] = f"{texts[name]}\n{part.text}" if name in texts else part.text
    return texts
