"""Parts of A2A messages as content for a framework's model, and files that it makes as artifacts.

Each adapter says what it takes, and writes a file as its framework does. A part that it cannot
write refuses the message: no model answers one of which it has not seen all. A URL is passed on by
reference, or refused: nothing here fetches it.
"""

from __future__ import annotations

import json
import re
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from mimetypes import MimeTypes
from typing import Final, Literal, TypeAlias, TypeVar, get_args

from a2a.types import Part

from a2a_serverless.sources import inlined
from a2a_serverless.tasks.entries import json_of
from a2a_serverless.tasks.identity import digest
from a2a_serverless.worker import FinalError, TaskContext
from a2a_serverless.worker.context import UserTurn
from a2a_serverless.worker.services import refuses_content

T = TypeVar("T")
Kind: TypeAlias = Literal["image", "audio", "video", "document"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)

IMAGES: Final[Mapping[str, str]] = {
    f"image/{name}": name for name in ("gif", "jpeg", "png", "webp")
}
_OFFICE: Final = "application/vnd.openxmlformats-officedocument"
DOCUMENTS: Final[Mapping[str, str]] = {
    "application/msword": "doc",
    "application/pdf": "pdf",
    "application/vnd.ms-excel": "xls",
    f"{_OFFICE}.spreadsheetml.sheet": "xlsx",
    f"{_OFFICE}.wordprocessingml.document": "docx",
    "text/csv": "csv",
    "text/html": "html",
    "text/markdown": "md",
    "text/plain": "txt",
}
AUDIO: Final[Mapping[str, str]] = {
    "audio/aac": "aac",
    "audio/aiff": "aiff",
    "audio/flac": "flac",
    "audio/mpeg": "mp3",
    "audio/ogg": "ogg",
    "audio/wav": "wav",
}
VIDEO: Final[Mapping[str, str]] = {
    "video/3gpp": "three_gp",
    "video/mp4": "mp4",
    "video/mpeg": "mpeg",
    "video/quicktime": "mov",
    "video/webm": "webm",
    "video/x-flv": "flv",
    "video/x-matroska": "mkv",
    "video/x-ms-wmv": "wmv",
}
FORMATS: Final[Mapping[str, str]] = {**IMAGES, **DOCUMENTS, **AUDIO, **VIDEO}
"""The media types that models usually take, each with the name of its format."""

_SAME: Final = {
    "audio/mp3": "audio/mpeg",
    "audio/wave": "audio/wav",
    "audio/x-wav": "audio/wav",
    "image/jpg": "image/jpeg",
}
_UNKNOWN: Final = frozenset({"", "application/octet-stream", "binary/octet-stream"})
_BY_NAME: Final = MimeTypes()  # without those of the machine, which differ
for _media_type, _ending in FORMATS.items():
    _BY_NAME.add_type(_media_type, f".{_ending}".replace("three_gp", "3gp"))
_SHOWN: Final = 80
"""The most characters of a media type that are shown."""


@dataclass(frozen=True, slots=True)
class File:
    """A file by its bytes, or by its URL."""

    media_type: str
    data: bytes = b""
    url: str = ""
    filename: str = ""

    @property
    def kind(self) -> Kind:
        """Return what it is; all that is neither seen nor heard is a document."""
        family = self.media_type.partition("/")[0]
        return next((kind for kind in KINDS if kind == family), "document")

    @property
    def format(self) -> str:
        """Return the name of its format, such as `jpeg`; empty if it is not among `FORMATS`."""
        return FORMATS.get(self.media_type, "")

    @property
    def base64(self) -> str:
        return b64encode(self.data).decode()

    @property
    def reference(self) -> str:
        """Return its URL, or its bytes as a URL with the scheme `data`."""
        return self.url or f"data:{self.media_type};base64,{self.base64}"

    @property
    def name(self) -> str:
        """Return its name, or one that says what it is, such as `image.png`."""
        ending = _BY_NAME.guess_extension(self.media_type, strict=False) or ""
        return self.filename or f"{self.kind}{ending}"


class PartRefusedError(Exception):
    """A part of the user's message has no translation; its text is the client's sentence."""


@dataclass(frozen=True, slots=True)
class Takes:
    """What an adapter translates beside text and data."""

    adapter: str
    """The name of its framework, for sentences."""
    media_types: frozenset[str] | None
    """None: any that is named."""
    urls: frozenset[Kind] = frozenset()
    """The kinds of files that it passes on by https URLs, for the model's service to fetch."""

    def __contains__(self, media_type: str) -> bool:
        return self.media_types is None or media_type in self.media_types

    def by_url(self, *kinds: Kind) -> Takes:
        """Return the same, with URLs of some kinds of files."""
        return replace(self, urls=frozenset(kinds))

    @property
    def input_modes(self) -> list[str]:
        """Return what a card can name as `defaultInputModes`."""
        files = [media_type for media_type in FORMATS if media_type in self]
        return list(dict.fromkeys(["text/plain", "application/json", *files]))

    def prompt(
        self, turn: UserTurn, text: Callable[[str], T], file: Callable[[File], T]
    ) -> str | list[T]:
        """Return the user's message: its text if it has nothing else, or its parts in order.

        A data part is the text of its JSON. `text` and `file` write content as the framework does.

        Raises:
            PartRefusedError: the adapter cannot translate a part.
        """
        if all(part.HasField("text") for part in turn.parts):
            return turn.user_text
        made = []
        for number, part in enumerate(turn.parts):
            if part.HasField("data"):
                made.append(text(json.dumps(json_of(part.data), ensure_ascii=False)))
            elif not part.HasField("text"):
                made.append(file(self._file(number, part)))
            elif part.text:  # services refuse a text without characters
                made.append(text(part.text))
        return made

    def check(self, parts: Sequence[Part]) -> None:
        """Look at the files of a message of the user, and have each say what it is.

        For an adapter whose framework reads the message itself.

        Raises:
            PartRefusedError: the adapter cannot translate one.
        """
        for number, part in _files(parts):
            part.CopyFrom(inlined(part))
            part.media_type = self._file(number, part).media_type

    def _file(self, number: int, part: Part) -> File:
        part = inlined(part)
        file = File(_type_of(part), part.raw, part.url, part.filename)
        why = self._refusal(file, is_url=part.HasField("url"))
        if why:
            raise PartRefusedError(
                f"The {self.adapter} adapter cannot give the model {_named(number, part)}: {why}."
            )
        return file

    def _refusal(self, file: File, *, is_url: bool) -> str:
        """Return why a file has no translation, and the way out; empty if it has one."""
        if file.url.lower().startswith("data:"):
            return "its data: URL cannot be decoded, so send the file's bytes"
        if is_url and file.kind not in self.urls:
            return "it fetches no URLs, so send the file's bytes"
        if is_url and not file.url.lower().startswith("https://"):
            return "it passes on https URLs alone, so send one, or the file's bytes"
        if not is_url and not file.data:
            return "the part is empty, so send the file's bytes, or leave it out"
        if file.media_type in _UNKNOWN:
            return "nothing says what it is, so name its media type"
        if file.media_type not in self:
            known = [m for m in FORMATS if m in self and File(m).kind == file.kind]
            return f"send it as {' or '.join(known) or 'text'}, or have the agent's begin() read it"
        return ""

    @contextmanager
    def refusals(self, turn: UserTurn) -> Iterator[None]:
        """Name the message's files to the client if the model refuses what it was sent."""
        try:
            yield
        except Exception as error:
            named = [_named(number, part) for number, part in _files(turn.parts)]
            if not named or not refuses_content(error):
                raise
            text = (
                f"The model behind the {self.adapter} adapter has refused the message with"
                f" {', '.join(named)}: send it in another form, or without."
            )
            raise FinalError(f"{type(error).__name__}: {error}", client_text=text) from error


async def tell(ctx: TaskContext, refused: PartRefusedError) -> None:
    """End a turn whose message is refused: a new task is rejected; a waiting one waits on."""
    if ctx.history:
        await ctx.request_input(str(refused))
    else:
        await ctx.reject(str(refused))


def answer_refusal(parts: Sequence[Part], adapter: str) -> str:
    """Return why the parts of an answer, which is text or data, are none; empty if they are."""
    for number, part in _files(parts):
        return (
            f"The {adapter} adapter cannot give the model {_named(number, part)} as an answer:"
            " answer by text or data, or send the file in a new task."
        )
    return ""


async def give(ctx: TaskContext, file: File) -> None:
    """Send a file of the model as an artifact, whose id is the same in each attempt of the turn."""
    told = digest(ctx.message_id, file.media_type, file.reference)
    await ctx.emit_artifact(
        f"file-{told[:16]}",
        file_bytes=None if file.url else file.data,
        file_url=file.url or None,
        media_type=file.media_type,
        filename=file.name,
        last_chunk=True,
    )


def _files(parts: Sequence[Part]) -> Iterable[tuple[int, Part]]:
    return (
        (number, part)
        for number, part in enumerate(parts)
        if part.HasField("raw") or part.HasField("url")
    )


def _type_of(part: Part) -> str:
    """Return what a file is, by its media type or else by its name; empty if neither says it."""
    stated = part.media_type.partition(";")[0].strip().lower()
    if stated in _UNKNOWN:
        name = part.filename or re.split("[?#]", part.url)[0]
        _, dot, ending = name.rpartition(".")
        stated = _BY_NAME.guess_type(f"file{dot}{ending.lower()}", strict=False)[0] or stated
    return _SAME.get(stated, stated)


def _named(number: int, part: Part) -> str:
    size = "a URL" if part.HasField("url") else f"{len(part.raw):,} bytes"
    return f"parts[{number}] ({part.media_type[:_SHOWN] or 'of no media type'}, {size})"
