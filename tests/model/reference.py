"""A task as the sentences of `tasks/entries.py` have it: slow, plain, and from the beginning."""

from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from a2a.types import Artifact, Message, Part, Task, TaskArtifactUpdateEvent, TaskStatus
from google.protobuf.struct_pb2 import Struct

from a2a_serverless.tasks import entries
from a2a_serverless.tasks.fold import Event, Record
from a2a_serverless.tasks.head import TERMINAL


@dataclass(slots=True)
class Shown:
    """What a log shows: the Task, and the Message that answered without one."""

    task: Task
    reply: Message | None = None
    cuts: dict[str, set[int]] = field(default_factory=dict)
    """The numbers of parts that go on with an artifact's text, while more of it may come."""


def shown(task_id: str, context_id: str, records: Sequence[Record]) -> Shown:
    """Return what is left of a log when every restart has discarded what it discards."""
    told = Shown(Task(id=task_id, context_id=context_id))
    told.task.status.SetInParent()
    for record in counting(records):
        for entry in record.entries:
            _tell(told, entry)
    return told


def restored_by(task_id: str, context_id: str, records: Sequence[Record]) -> list[Artifact]:
    """Return the artifacts as the restart in the last record has left them."""
    *before, last = records
    bare = Record(version=last.version, entries=tuple(_restarts(last)), token=last.token)
    return list(shown(task_id, context_id, [*before, bare]).task.artifacts)


def flat(artifacts: Iterable[Artifact]) -> list[Artifact]:
    """Return artifacts whose neighbouring texts of like metadata are one part."""
    return [_joined(artifact, range(len(artifact.parts))) for artifact in artifacts]


def recorded_at(records: Sequence[Record], turn_base: int) -> int:
    """Return the version of the turn's last record; that of its beginning, if it has none."""
    own = [record.version for record in _own(records, turn_base) if _steps(record)]
    return max(own, default=turn_base)


def journal(records: Sequence[Record], code_base: int, last: int) -> list[entries.Entry]:
    """Return what another attempt finds of steps, and of what was said beside them.

    Also in the turns before, at whose ends the same code has asked its client; up to a version, and
    what came from outside whenever it came.
    """
    behind = [record for record in counting(records) if code_base < record.version]
    kept = [each for each in behind if each.token is not None or _from_outside(each)]
    found = [each for each in kept if each.version <= last or _from_outside(each)]
    return [entry for record in found for entry in record.entries if of_journal(entry)]


def _from_outside(record: Record) -> bool:
    steps = record.entries if record.token is None else ()
    return any(isinstance(each, entries.Recorded) for each in steps)


def beginnings(records: Sequence[Record], turn_base: int) -> int:
    """Return how often the turn has begun: once, and with each restart that discards a record."""
    ends = [number for number, record in enumerate(records) if [*_restarts(record)]]
    lasts = [[recorded_at(records[: number + n], turn_base) for n in (0, 1)] for number in ends]
    return 1 + sum(after < before for before, after in lasts)


def of_journal(entry: entries.Entry) -> bool:
    """Whether an attempt looks for the entry when its code runs again."""
    said = entries.StatusChanged | entries.ArtifactWritten
    is_said = isinstance(entry, said) and entry.outside_steps
    return is_said or isinstance(entry, entries.Recorded)


def watched(task: Task, events: Sequence[Event], *, restored: int | None) -> None:
    """Tell a subscriber, who has the Task, of the events of a commit.

    A restart shows the `restored` artifacts first. What it does not show comes to begin with a
    replacement if it comes again, so that the subscriber may as well have dropped it.
    """
    if restored is not None:
        del task.artifacts[:]
    for number, event in enumerate(events):
        if isinstance(event, TaskArtifactUpdateEvent):
            assert not (event.append and number < (restored or 0))
            _write(task, event.artifact, append=event.append)


def _own(records: Sequence[Record], turn_base: int) -> list[Record]:
    """Return what attempts on the turn have written, and no restart has discarded."""
    own = [record for record in counting(records) if record.version > turn_base]
    return [record for record in own if record.token is not None]


def _steps(record: Record) -> list[entries.Recorded]:
    return [entry for entry in record.entries if isinstance(entry, entries.Recorded)]


def counting(records: Sequence[Record]) -> Iterator[Record]:
    """Yield the records that no restart discards.

    A restart discards what attempts wrote between its base and itself.
    """
    spans = [(entry.base, record.version) for record in records for entry in _restarts(record)]
    for record in records:
        is_an_attempts = record.token is not None
        is_behind_a_base = any(base < record.version < at for base, at in spans)
        if not (is_an_attempts and is_behind_a_base):
            yield record


def _restarts(record: Record) -> Iterator[entries.Restarted]:
    return (entry for entry in record.entries if isinstance(entry, entries.Restarted))


def _tell(told: Shown, entry: entries.Entry) -> None:
    task = told.task
    match entry:
        case entries.TurnOpened(request, _):
            _archive(task)
            task.history.append(request.message)
            task.history[-1].task_id, task.history[-1].context_id = task.id, task.context_id
        case entries.MessageAppended(message):
            task.history.append(message)
        case entries.StatusChanged(status, metadata, archive):
            if archive:
                _archive(task)
            task.status.CopyFrom(status)
            _merge(task.metadata, metadata or Struct())
            if status.state in TERMINAL:
                _end(told, task.artifacts)
        case entries.TurnEnded():
            _end(told, task.artifacts)
        case entries.ArtifactWritten(artifact, append, last_chunk, _):
            number = _write(task, artifact, append=append)
            cuts = told.cuts.setdefault(artifact.artifact_id, set())
            if number:
                cuts.add(number)
            else:
                cuts.clear()
            if last_chunk:
                _end(told, [it for it in task.artifacts if it.artifact_id == artifact.artifact_id])
        case entries.MetadataMerged(metadata):
            _merge(task.metadata, metadata)
        case entries.Replied(message):
            told.reply = message


def _archive(task: Task) -> None:
    """Move the status's message to the history."""
    if task.status.HasField("message"):
        task.history.append(task.status.message)
        task.status.CopyFrom(TaskStatus(state=task.status.state, timestamp=task.status.timestamp))


def _end(told: Shown, artifacts: Iterable[Artifact]) -> None:
    """Make one part of the text that has come in chunks."""
    for artifact in artifacts:
        artifact.CopyFrom(_joined(artifact, told.cuts.pop(artifact.artifact_id, ())))


def _joined(artifact: Artifact, cuts: Container[int]) -> Artifact:
    """Return an artifact without the cuts, as far as the parts on both sides are alike."""
    joined = Artifact()
    joined.CopyFrom(artifact)
    del joined.parts[:]
    for number, part in enumerate(artifact.parts):
        goes_on = Part()
        goes_on.CopyFrom(part)
        if joined.parts and number in cuts and part.HasField("text"):
            goes_on.text = joined.parts[-1].text
        if joined.parts and number in cuts and goes_on == joined.parts[-1]:
            joined.parts[-1].text += part.text
        else:
            joined.parts.append(part)
    return joined


def _write(task: Task, written: Artifact, *, append: bool) -> int:
    """Write an artifact; return how many parts it had before, if these stay."""
    for artifact in task.artifacts:
        if artifact.artifact_id == written.artifact_id:
            break
    else:
        artifact = task.artifacts.add(artifact_id=written.artifact_id)
        append = False
    if not append:
        artifact.CopyFrom(written)
        return 0
    before = len(artifact.parts)
    artifact.parts.extend(written.parts)
    if written.HasField("metadata"):
        _merge(artifact.metadata, written.metadata)
    return before


def _merge(metadata: Struct, update: Struct) -> None:
    """Set each key to its newest value."""
    for key in update.fields:
        metadata.fields[key].CopyFrom(update.fields[key])
