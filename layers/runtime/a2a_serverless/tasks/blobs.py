"""Content that is stored beside the log: what is offloaded, and the references in its place.

A reference is a part whose URL has a scheme of its own. It names the content by digest and size,
and the task that owns it, so that fold, log, HEAD and digests carry it as any other part. Clients
and agents never see one: each edge shows the content, or a link to it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Final, Literal, NamedTuple, Self, TypeVar, cast
from urllib.parse import unquote

from a2a.types import Artifact, Message, Part
from google.protobuf.message import Message as AnyMessage

from a2a_serverless.errors import InvalidArgumentError
from a2a_serverless.tasks.entries import (
    OFFLOAD_BYTES,
    ArtifactWritten,
    check_readable,
    contents_of,
    copied,
    is_plain,
    parts_of,
)
from a2a_serverless.values import dataclass

M = TypeVar("M", bound=AnyMessage)
Content = TypeVar("Content", Message, Artifact)

SCHEME: Final = "a2a-blob"
"""Of the URL in a reference."""

UPLOADS: Final = "upload"
"""In place of a task's id in the keys of what clients have put there for messages to come."""

Kind = Literal["raw", "text", "data"]


class BlobOwner(NamedTuple):
    """One incarnation of a task, or one upload, which owns what is stored for it."""

    scope: str
    task_id: str
    incarnation: str

    @classmethod
    def uploads(cls, scope: str) -> BlobOwner:
        """Return the owner of all uploads of a scope, to find and to delete them."""
        return cls(scope, UPLOADS, "")

    @property
    def prefix(self) -> str:
        """Return how the keys of all its blobs begin."""
        whole = f"{self.scope}.{self.task_id}/{self.incarnation}"
        return f"{whole}/" if self.incarnation else whole

    @classmethod
    def of_state(cls, scope: str, context: str, write: str) -> Self:
        """Return the owner of one write of a context's state, which is not that of a task.

        `context` is the context's digest. No task's id has the mark before it, so that no part and
        no link ever names a state.
        """
        return cls(scope, f"!{context}", write)


@dataclass(frozen=True, slots=True)
class Blob:
    """Content that is stored for a task. Equal contents of one task are one blob."""

    owner: BlobOwner
    digest: str
    """SHA-256, in 64 hexadecimal digits."""
    size: int
    """In bytes."""
    kind: Kind = "raw"
    """The field of the part; a data value is stored as protobuf."""
    behind: int = 0
    """The raw bytes before it in its message or artifact: with its size they decide its form."""
    joins: str = ""
    """Of a text in an artifact that has ended: `<`, `>` or both: it is one part with the part
    before it, or behind it."""

    @classmethod
    def of(cls, content: bytes, owner: BlobOwner, kind: Kind = "raw", behind: int = 0) -> Blob:
        return cls(owner, hashlib.sha256(content).hexdigest(), len(content), kind, behind)

    @property
    def key(self) -> str:
        """Return its place among all blobs; it is unguessable, as the incarnation is random."""
        return f"{self.owner.prefix}{self.digest}.{self.size}"

    @property
    def place(self) -> str:
        """Return what names it where its scope and its task, or context, are known."""
        return f"{self.owner.incarnation}/{self.digest}.{self.size}"

    @property
    def reference(self) -> str:
        """Return the URL of a part that stands for the content."""
        behind = f"+{self.behind}" if self.behind else ""
        return f"{SCHEME}:{self.kind}{self.joins}{behind}:{self.key}"


def blob_of(part: Part) -> Blob | None:
    """Return the blob that a part refers to; None if the part is no reference."""
    if not part.url.startswith(SCHEME):
        return None
    found = _REFERENCE.fullmatch(part.url)
    if found is None:
        return None
    blob = _blob(found, cast("Kind", found["kind"]), int(found["behind"] or 0))
    return replace(blob, joins=found["joins"])


def blob_at(place: object, owner: BlobOwner) -> Blob | None:
    """Return the blob that `Blob.place` names, whichever incarnation; None if it names none."""
    found = _PLACE.fullmatch(place) if isinstance(place, str) else None
    if found is None:
        return None
    owner = owner._replace(incarnation=found["incarnation"])
    return Blob(owner, found["digest"], int(found["size"]))


def keyed_blob(key: str) -> Blob | None:
    """Return the blob with a key; None: it is that of a state, or of none."""
    found = re.fullmatch(_KEY, key)
    return None if found is None else _blob(found, "raw")


def linked_blob(url: str) -> Blob | None:
    """Return the blob that a link names, whatever its host and signature; None if it names none."""
    found = _LINK.fullmatch(unquote(url.partition("?")[0]))
    return None if found is None else _blob(found, "raw")


def refers(message: AnyMessage | None) -> bool:
    """Return True if a message has a part that refers to a blob."""
    return any(map(blob_of, parts_of(message)))


def check_without_store(message: AnyMessage) -> None:
    """Refuse references where no blob is stored.

    Raises:
        InvalidArgumentError: a part refers to a blob.
    """
    if refers(message):
        raise InvalidArgumentError(FOREIGN)


@dataclass(frozen=True, slots=True)
class ToStore:
    """Content to store before a commit names it: bytes, or a blob of another task to copy.

    The blob itself: a link says that the task has it.
    """

    blob: Blob
    content: bytes | Blob
    media_type: str


def offload(message: M, owner: BlobOwner, *, behind: int = 0) -> tuple[M, Sequence[ToStore]]:
    """Return a message with references in place of large contents, and what has to be stored.

    A link to a file of the same scope becomes a reference, too: the link would expire. What this
    process has offloaded before is not stored again. A link is what anybody says: one to a file of
    the task itself comes back as well. If nothing changes, the message itself is returned.
    `behind` are the raw bytes that the artifact has before the parts of this chunk.

    Raises:
        InvalidArgumentError: a part refers to what is stored for another scope, or has data that
            no answer could show.
    """
    if is_plain(message):
        return message, ()
    message, to_store = copied(message), []
    for content in contents_of(message):
        before = behind
        for part in content.parts:
            stored, was_offloaded = _stored(part, owner, before), blob_of(part) is not None
            if stored is not None:
                part.url = stored.blob.reference
                if not (was_offloaded and stored.content == stored.blob):
                    to_store.append(stored)
            before += raw_bytes(part)
    return message, to_store


def comparable(message: Content) -> Content:
    """Return a copy in which each large content, reference and link has the form of its digest.

    So copies of one message are equal, whether they bring a content or a link to it.
    """
    copy = copied(message)
    for part in copy.parts:
        content = _large(part)
        blob = _named(part) if content is None else Blob.of(content[1], _NONE, content[0])
        if blob is not None:
            part.url = f"{SCHEME}:{blob.kind}:{blob.digest}.{blob.size}"
    return copy


def filled(part: Part, blob: Blob, content: bytes) -> None:
    """Put the content of a blob into the part that refers to it.

    Raises:
        ValueError, DecodeError: it is not of the blob's kind.
    """
    match blob.kind:
        case "raw":
            part.raw = content
        case "text":
            part.text = content.decode()
        case _:  # data
            part.data.ParseFromString(content)


def is_text(part: Part) -> bool:
    """Return True if a part has text, or refers to one."""
    blob = blob_of(part)
    return part.WhichOneof("content") == "text" or (blob is not None and blob.kind == "text")


def joining(part: Part, side: str) -> bool:
    """Note in a part that refers to a text that it is one with the part on that side (`<`, `>`).

    Return False if it refers to none.
    """
    blob = blob_of(part)
    if blob is None:
        return False
    part.url = replace(blob, joins="".join(sorted({*blob.joins, side}))).reference
    return True


def joins(parts: Sequence[Part]) -> list[int]:
    """Return the numbers of the parts that are one with the part before, as `joining` has noted."""
    noted = [blob.joins if (blob := blob_of(part)) else "" for part in parts]
    pairs = enumerate(pairwise(noted), 1)
    return [number for number, (one, following) in pairs if ">" in one or "<" in following]


def raw_bytes(*parts: Part) -> int:
    """Return the bytes of the raw parts among these, and of those that refer to raw bytes."""
    return sum(_raw_bytes(part) for part in parts)


def _raw_bytes(part: Part) -> int:
    blob = blob_of(part)
    if blob is not None:
        return blob.size if blob.kind == "raw" else 0
    return len(part.raw)


def _stored(part: Part, owner: BlobOwner, behind: int) -> ToStore | None:
    """Return what a part refers to once it is stored; None: it is stored as it is.

    The content of what this task has stored already, or a link says so, is its own blob.
    """
    content = _large(part)
    if content is not None:
        kind, raw = content
        if kind == "data":  # no later check sees it
            check_readable([ArtifactWritten(Artifact(parts=[part]))])
        return ToStore(Blob.of(raw, owner, kind, behind), raw, part.media_type)
    named = _named(part)
    is_foreign = named is None or named.owner.scope != owner.scope
    if is_foreign and part.url.startswith(f"{SCHEME}:"):
        raise InvalidArgumentError(FOREIGN)
    if named is None or is_foreign:  # the link of another owner is a URL as any other
        return None
    # A commit offloads what was offloaded before, and knows less of what stands before it.
    own = replace(named, owner=owner, behind=max(behind, named.behind))
    return ToStore(own, own if named.owner == owner else named, part.media_type)


FOREIGN: Final = f"A part has a URL of the scheme {SCHEME}:, which only this service writes."


def _large(part: Part) -> tuple[Kind, bytes] | None:
    """Return the kind and bytes of a content that is offloaded; None for a smaller one."""
    if part.ByteSize() <= OFFLOAD_BYTES:
        return None
    match part.WhichOneof("content"):
        case "raw":
            kind, content = "raw", part.raw
        case "text":
            kind, content = "text", part.text.encode()
        case "data":
            kind, content = "data", part.data.SerializeToString(deterministic=True)
        case _:
            return None
    return (cast("Kind", kind), content) if len(content) > OFFLOAD_BYTES else None


def _named(part: Part) -> Blob | None:
    return blob_of(part) or (linked_blob(part.url) if part.url else None)


def _blob(found: re.Match[str], kind: Kind, behind: int = 0) -> Blob:
    owner = BlobOwner(found["scope"], found["task"], found["incarnation"])
    return Blob(owner, found["digest"], int(found["size"]), kind, behind)


_NONE: Final = BlobOwner("", "", "")
_AT: Final = r"(?P<incarnation>[A-Za-z0-9_-]{12})/(?P<digest>[0-9a-f]{64})\.(?P<size>\d{1,15})"
_PLACE: Final = re.compile(_AT)
_KEY: Final = rf"(?P<scope>[A-Za-z0-9_-]{{32}})\.(?P<task>[A-Za-z0-9._:-]{{1,100}})/{_AT}"
_REFERENCE: Final = re.compile(
    rf"{SCHEME}:(?P<kind>raw|text|data)(?P<joins>[<>]{{0,2}})(?:\+(?P<behind>\d{{1,20}}))?:{_KEY}"
)
_LINK: Final = re.compile(rf"(?:https?:/)?/.+/{_KEY}")
