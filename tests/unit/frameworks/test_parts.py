"""What a file part is, and what its translation is told."""

from __future__ import annotations

import pytest
from a2a.server.agent_execution import RequestContext
from a2a.server.context import ServerCallContext
from a2a.types import Part

from a2a_serverless.frameworks.parts import FORMATS, KINDS, File, PartRefusedError, Takes
from a2a_serverless.worker.context import UserTurn
from tests.support.workers import user_request

DOCX = next(media_type for media_type, name in FORMATS.items() if name == "docx")
ANY = Takes("any", None).by_url(*KINDS)


def turn(*parts: Part) -> UserTurn:
    return UserTurn(RequestContext(ServerCallContext(), request=user_request(*parts)))


def translated(part: Part, takes: Takes = ANY) -> File:
    empty = Part(text="")  # no content for a model
    made = takes.prompt(turn(empty, part), text=lambda _: File(""), file=lambda file: file)
    assert not isinstance(made, str)
    (file,) = made
    return file


@pytest.mark.parametrize(
    ("part", "media_type"),
    [
        (Part(raw=b"1", media_type="Image/PNG; charset=x", filename="a.pdf"), "image/png"),
        (Part(raw=b"1", media_type="image/jpg"), "image/jpeg"),
        (Part(raw=b"1", media_type="audio/x-wav"), "audio/wav"),
        (Part(raw=b"1", media_type="application/octet-stream", filename="A.DOCX"), DOCX),
        (Part(raw=b"1", filename="notes.md"), "text/markdown"),
        (Part(url="https://example.com/a.b/cat.webp?size=1.5#top.png"), "image/webp"),
        (Part(url="https://example.com/cat", filename="cat.gif"), "image/gif"),
    ],
)
def test_what_a_part_is(part: Part, media_type: str) -> None:
    """It is what its media type says, without parameters; else what its name or its URL ends in."""
    assert translated(part).media_type == media_type


@pytest.mark.parametrize(
    "part",
    [
        Part(raw=b"1"),
        Part(raw=b"1", filename="png"),
        Part(raw=b"1", media_type="binary/octet-stream", filename="a.unknown"),
        Part(url="https://example.com/cat"),
    ],
)
def test_a_part_that_says_nothing_is_refused(part: Part) -> None:
    """Bytes are not looked at: what they seem to be decides nothing."""
    with pytest.raises(PartRefusedError, match="nothing says what it is, so name its media type"):
        translated(part)


def test_a_url_that_is_the_file() -> None:
    """The bytes in a `data:` URL are the file's, for each adapter, whatever URLs it passes on."""
    part = Part(url="data:image/png;base64,aGk=", filename="a.png")
    for takes in (ANY, Takes("any", None)):
        assert translated(part, takes) == File("image/png", b"hi", filename="a.png")
    said = turn(part)
    ANY.check(said.parts)
    assert said.parts == (Part(raw=b"hi", media_type="image/png", filename="a.png"),)
    with pytest.raises(PartRefusedError, match="cannot be decoded"):
        translated(Part(url="data:image/png;base64,a"))


def test_a_file_has_a_name() -> None:
    """Its own, or one that says what it is."""
    assert [File(m).name for m in FORMATS] == [
        f"{File(m).kind}.{'3gp' if end == 'three_gp' else 'jpg' if end == 'jpeg' else end}"
        for m, end in FORMATS.items()
    ]
    assert File("application/pdf", filename="May.pdf").name == "May.pdf"
