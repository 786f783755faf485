"""The result of a turn: the task, its artifacts and the turn's events, as a client sees them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from a2a.helpers import get_text_parts
from a2a.types import Artifact, Message, Part, Task, TaskArtifactUpdateEvent, TaskStatusUpdateEvent

from a2a_serverless.tasks.entries import StepId, data_of
from a2a_serverless.tasks.fold import Event
from a2a_serverless.tasks.head import Head, plain_state
from a2a_serverless.tasks.progress import Progress, progress_in
from a2a_serverless.tasks.questions import question_texts
from a2a_serverless.tasks.usage import Usage, total
from a2a_serverless.worker.context import HistoryMessage, history_message
from a2a_serverless.worker.files import FileInfo, files_of

if TYPE_CHECKING:
    from a2a_serverless_tools.testing.bench import AgentBench

Said = str | Part | Message | Sequence[str | Part]
"""A message: a text, a part, several of both, or the protocol's own object."""

When = int | Callable[[Event], bool] | StepId
"""A point of a turn: after its n-th event, after the first one for which this is True, or after the
record of a step, `step(NAME)`."""


def parts_of(said: Said) -> list[Part]:
    """Return the parts of a message.

    Raises:
        TypeError: it is none.
    """
    if isinstance(said, Message):
        return [*said.parts]
    parts: Any = [said] if isinstance(said, str | Part) else said
    if not (isinstance(parts, Sequence) and all(isinstance(one, str | Part) for one in parts)):
        raise TypeError(
            f"A message is a text, a part, or several of them, and this is {said!r}: for a JSON"
            " value write `a2a.helpers.new_data_part(…)`."
        )
    return [Part(text=one) if isinstance(one, str) else one for one in parts]


def step(name: str, *, key: str = "", number: int = 1) -> StepId:
    """Return the point of a turn right after the record of a step is stored.

    `number` counts the steps of this name and key. The records of sleeps are called `ctx.sleep`.

    >>> run = bench.send("Two days in Lisbon", kill_after=step("search"))
    """
    return StepId(name, key, number)


@dataclass(frozen=True, slots=True)
class SeenArtifact:
    """An artifact as it is now.

    >>> assert "Lisbon" in run.artifacts["answer"].text
    """

    artifact: Artifact

    @property
    def text(self) -> str:
        """Return its text parts, such as its chunks, as one text."""
        return "".join(get_text_parts(self.artifact.parts))

    @property
    def data(self) -> list[Any]:
        """Return its JSON values."""
        return data_of(self.artifact.parts)

    @property
    def files(self) -> list[FileInfo]:
        """Return its files, by content or by URL."""
        return files_of(self.artifact.parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A task as it is when one of its turns is over.

    >>> run = bench.send("Two days in Lisbon")
    >>> assert run.state == "completed", run
    """

    task: Task
    events: tuple[Event, ...]
    """The turn's events in order, as a stream shows them after its opening Task."""
    attempts: int
    """How often the agent was started on the turn: the first time, after each failure or kill, and
    when it went on after a sleep or a hand-over."""
    steps: tuple[str, ...]
    """The names of the turn's records in order, those of its sleeps (`ctx.sleep`) and of the state
    that it has loaded (`ctx.load_context`) among them."""
    errors: tuple[BaseException, ...]
    """What the agent has raised, one for each attempt that raised something, `SystemExit` too."""
    user: str
    tenant: str
    head: Head
    bench: AgentBench

    @property
    def state(self) -> str:
        """Return the task's state by its name in logs, such as `completed` or `input_required`."""
        return plain_state(self.task.status.state)

    @property
    def usage(self) -> Usage:
        """Return what the task's models have used, in all turns and attempts."""
        return total(self.head.usage)

    @property
    def text(self) -> str:
        """Return the text of the status message: a question, an answer, a reason."""
        return "\n".join(get_text_parts(self.task.status.message.parts))

    @property
    def questions(self) -> dict[str, str]:
        """Return the texts of what `ctx.ask` has asked, by the ids of the questions.

        >>> assert bench.send("Book a table").questions == {"day": "Which day?"}
        """
        return dict(question_texts(self.task.status.message.parts))

    @property
    def artifacts(self) -> dict[str, SeenArtifact]:
        """Return the task's artifacts by their ids, in the order in which they were begun."""
        return {one.artifact_id: SeenArtifact(one) for one in self.task.artifacts}

    @property
    def history(self) -> list[HistoryMessage]:
        """Return the task's messages, oldest first, without its status message."""
        return [history_message(message) for message in self.task.history]

    @property
    def progress(self) -> list[Progress]:
        """Return the progress that the turn's events have told, in order."""
        statuses = [event for event in self.events if isinstance(event, TaskStatusUpdateEvent)]
        told = (progress_in(status.metadata) for status in statuses)
        return [progress for progress in told if progress is not None]

    def chunks(self, artifact_id: str) -> list[str]:
        """Return the texts in which an artifact was streamed.

        >>> assert run.chunks("answer") == ["Day one", " and day two"]
        """
        updates = [event for event in self.events if isinstance(event, TaskArtifactUpdateEvent)]
        of_artifact = (one.artifact for one in updates if one.artifact.artifact_id == artifact_id)
        return ["".join(get_text_parts(artifact.parts)) for artifact in of_artifact]

    def reply(self, message: Said, **options: Any) -> Run:
        """Send the task's next message, by the same user; `options` as for `AgentBench.send`.

        >>> assert bench.send("Book a table").reply("Friday").state == "completed"
        """
        same = {"user": self.user, "tenant": self.tenant}
        return self.bench.send(message, to=self, **(same | options))

    def cancel(self) -> Run:
        """Cancel the task, which waits for a message; return it as it is then.

        >>> assert bench.send("Book a table").cancel().state == "canceled"
        """
        return self.bench.cancel(self)

    def __str__(self) -> str:
        """Return the state in which the turn has ended, and how."""
        errors = "".join(f", {error!r}" for error in self.errors)
        artifacts = ", ".join(self.artifacts) or "none"
        steps = f" steps: {', '.join(self.steps)}," if self.steps else ""
        return (
            f"{self.state}: {self.text!r}, artifacts: {artifacts},{steps}"
            f" attempts: {self.attempts}{errors}"
        )

    __repr__ = __str__
