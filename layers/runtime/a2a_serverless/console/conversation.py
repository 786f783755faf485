"""A task's log as a conversation: messages, artifacts as they are now, and statuses between."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Final, Literal, TypeAlias

from a2a.types import Artifact, Message, Part, Role
from google.protobuf.json_format import MessageToDict
from markupsafe import Markup

from a2a_serverless.console.markdown import html_of
from a2a_serverless.storage.log import Log
from a2a_serverless.tasks.entries import (
    ArtifactWritten,
    MessageAppended,
    Replied,
    Restarted,
    StatusChanged,
    TurnOpened,
    Unknown,
)
from a2a_serverless.tasks.fold import Record
from a2a_serverless.tasks.head import INTERRUPTED, TERMINAL, plain_state
from a2a_serverless.tasks.progress import Progress, progress_in

PartKind: TypeAlias = Literal["text", "markdown", "json", "image", "file", "link", "elsewhere"]

IMAGES: Final = frozenset({"image/png", "image/jpeg", "image/gif", "image/webp"})
"""Types of images that are shown; all others, including SVG, are files."""
MOST_TEXT: Final = 200_000
"""The most characters of one text that a page shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPart:
    """A part of a message or artifact, ready to be escaped by the template."""

    kind: PartKind
    text: str = ""
    html: Markup | None = None
    """The text as HTML, if it is Markdown."""
    name: str = ""
    size: int = 0
    index: int = 0
    """The part's place, for its URL."""
    is_cut: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """One message, artifact or status of a conversation."""

    kind: Literal["user", "agent", "artifact", "state", "note", "progress"]
    at: int | None
    version: int
    parts: tuple[ShownPart, ...] = ()
    title: str = ""
    index: int = 0
    """An artifact's place among all, for the URLs of its parts."""
    progress: Progress | None = None


def conversation(log: Log) -> list[Said]:
    """Return the conversation of a log that was read from its beginning.

    An artifact stands at the place where it was begun, with its content as it is now: chunks of
    attempts that a restart has discarded are not shown. Only the last progress of a turn is shown,
    as a bar.
    """
    artifacts = dict(log.fold().artifacts)
    places = _places(log, artifacts)
    said: list[Said] = []
    for record in log.records:
        for entry in record.entries:
            match entry:
                case TurnOpened(request):
                    said.append(_message(request.message, record))
                case MessageAppended(message) | Replied(message):
                    said.append(_message(message, record))
                case StatusChanged():
                    _tell_status(said, entry, record)
                case Restarted():
                    said.append(
                        _note("note", "a new attempt began; what was unfinished is gone", record)
                    )
                case Unknown():
                    said.append(_note("note", "an entry that this release does not know", record))
                case _:
                    pass
        for index, artifact_id in enumerate(artifacts):
            if places.get(artifact_id) == record.version:
                said.append(_artifact(artifacts[artifact_id], index, record))
    return said


def _tell_status(said: list[Said], change: StatusChanged, record: Record) -> None:
    """Add a status's message, the bar instead of the turn's earlier one, and the task's end."""
    status, progress = change.status, progress_in(change.metadata)
    if progress is not None:
        of_turn = list(takewhile(lambda one: one.kind != "user", reversed(said)))
        for bar in (one for one in of_turn if one.kind == "progress"):
            said.remove(bar)
        message = _message(status.message, record)
        said.append(replace(message, kind="progress", progress=progress))
    elif status.HasField("message"):
        said.append(_message(status.message, record))
    if status.state in TERMINAL | INTERRUPTED:
        said.append(_note("state", plain_state(status.state), record))


def _places(log: Log, artifacts: dict[str, Artifact]) -> dict[str, int]:
    """Return the version at which each of the remaining artifacts was begun."""
    begun: dict[str, int] = {}
    for record in log.records:
        for entry in record.entries:
            if isinstance(entry, Restarted):
                begun = {name: v for name, v in begun.items() if v <= entry.base}
            elif isinstance(entry, ArtifactWritten):
                begun.setdefault(entry.artifact.artifact_id, record.version)
    first = log.records[0].version if log.records else 0
    return {name: begun.get(name, first) for name in artifacts}


def _message(message: Message, record: Record) -> Said:
    return Said(
        kind="user" if message.role == Role.ROLE_USER else "agent",
        at=record.at,
        version=record.version,
        parts=tuple(shown_parts(message.parts)),
    )


def _artifact(artifact: Artifact, index: int, record: Record) -> Said:
    return Said(
        kind="artifact",
        at=record.at,
        version=record.version,
        title=artifact.name or artifact.artifact_id,
        parts=tuple(shown_parts(artifact.parts)),
        index=index,
    )


def _note(kind: Literal["state", "note"], title: str, record: Record) -> Said:
    return Said(kind=kind, at=record.at, version=record.version, title=title)


def shown_parts(parts: Sequence[Part]) -> Iterator[ShownPart]:
    """Yield parts; join texts of one kind that follow each other, such as chunks."""
    texts: list[str] = []
    is_markdown = False
    for index, part in enumerate(parts):
        if part.WhichOneof("content") == "text":
            markdown = part.media_type.partition(";")[0].strip().lower() == "text/markdown"
            if texts and markdown != is_markdown:
                yield _text("".join(texts), is_markdown=is_markdown)
                texts = []
            is_markdown = markdown
            texts.append(part.text)
            continue
        if texts:
            yield _text("".join(texts), is_markdown=is_markdown)
            texts = []
        yield _other(part, index)
    if texts:
        yield _text("".join(texts), is_markdown=is_markdown)


def _text(text: str, *, is_markdown: bool) -> ShownPart:
    shown, is_cut = text[:MOST_TEXT], len(text) > MOST_TEXT
    if is_markdown:
        return ShownPart(kind="markdown", html=html_of(shown), is_cut=is_cut)
    return ShownPart(kind="text", text=shown, is_cut=is_cut)


def _other(part: Part, index: int) -> ShownPart:
    match part.WhichOneof("content"):
        case "data":
            text = json.dumps(MessageToDict(part.data), indent=2, ensure_ascii=False)
            return ShownPart(kind="json", text=text[:MOST_TEXT], is_cut=len(text) > MOST_TEXT)
        case "raw":
            kind: PartKind = "image" if media_type(part) in IMAGES else "file"
            name = part.filename or part.media_type or "file"
            return ShownPart(kind=kind, name=name, size=len(part.raw), index=index)
        case "url":
            return ShownPart(kind="link", text=part.url, name=part.filename)
        case _:
            return ShownPart(kind="elsewhere")


def media_type(part: Part) -> str:
    """Return the media type of a part in lower case, without parameters."""
    return str(part.media_type).partition(";")[0].strip().lower()
