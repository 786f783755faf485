"""What is offloaded from a message, and what stands for it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from a2a.types import (
    Artifact,
    Message,
    Part,
    SendMessageRequest,
    Task,
    TaskArtifactUpdateEvent,
    TaskStatus,
    TaskStatusUpdateEvent,
)
from google.protobuf.message import Message as AnyMessage
from google.protobuf.struct_pb2 import ListValue, Value

from a2a_serverless.errors import InvalidArgumentError
from a2a_serverless.tasks import blobs
from a2a_serverless.tasks.blobs import Blob, BlobOwner, blob_of, linked_blob, offload
from a2a_serverless.tasks.entries import OFFLOAD_BYTES, contents_of
from a2a_serverless.tasks.rules import content_digest
from tests.support.present import present

OWNER = BlobOwner("s" * 32, "task:1.a", "i" * 12)
OTHER_TASK = OWNER._replace(task_id="task-2")
OTHER_SCOPE = OWNER._replace(scope="t" * 32)
LARGE = b"x" * (OFFLOAD_BYTES + 1)


def message(*parts: Part) -> Message:
    return Message(message_id="m", parts=parts)


def link_to(blob: Blob) -> str:
    return f"https://bucket.s3.eu-central-1.amazonaws.com/{blob.key}?X-Amz-Signature=abc"


@pytest.mark.parametrize(
    "part",
    [
        Part(raw=LARGE, media_type="image/png", filename="a.png", metadata={"page": 1}),
        Part(text="ä" * OFFLOAD_BYTES, media_type="text/plain"),
        Part(data=Value(string_value="x" * OFFLOAD_BYTES), filename="d.json"),
    ],
    ids=["raw", "text", "data"],
)
def test_a_large_part_comes_back_as_it_was(part: Part) -> None:
    """Its type, name and metadata stay with the reference, and its content fills it again."""
    offloaded, (stored,) = offload(message(Part(text="small"), part), OWNER)
    reference = offloaded.parts[1]
    assert (offloaded.parts[0].text, blob_of(reference)) == ("small", stored.blob)
    assert reference.ByteSize() < 600
    assert isinstance(stored.content, bytes)
    blobs.filled(reference, stored.blob, stored.content)
    assert reference == part


def test_what_is_small_stays() -> None:
    """At the threshold nothing changes: the message itself is returned."""
    small = message(Part(raw=b"x" * OFFLOAD_BYTES), Part(url="https://example.com/a.png"))
    assert offload(small, OWNER) == (small, [])
    assert offload(message(Part(text="small")), OWNER) == (message(Part(text="small")), ())


def test_what_is_offloaded_stays_so() -> None:
    """What has references is stored as it is, also as the artifact's next chunk, and not twice."""
    once, _ = offload(message(Part(raw=LARGE), Part(raw=LARGE)), OWNER, behind=7)
    assert offload(once, OWNER) == (once, [])


@pytest.mark.parametrize(
    "wrapped",
    [
        lambda said: SendMessageRequest(message=said),
        lambda said: TaskStatus(message=said),
        lambda said: TaskStatusUpdateEvent(status=TaskStatus(message=said)),
        lambda said: TaskArtifactUpdateEvent(artifact=Artifact(parts=said.parts)),
        lambda said: Task(history=[said]),
        lambda said: Task(status=TaskStatus(message=said)),
        lambda said: Task(artifacts=[Artifact(parts=said.parts)]),
    ],
    ids=["request", "status", "status event", "artifact event", "history", "asked", "artifact"],
)
def test_parts_are_found_wherever_they_are(wrapped: Callable[[Message], AnyMessage]) -> None:
    """Each message of the protocol that shows parts has its large ones offloaded."""
    offloaded, stored = offload(wrapped(message(Part(raw=LARGE))), OWNER)
    assert len(stored) == 1
    assert [blob_of(p) for c in contents_of(offloaded) for p in c.parts] == [stored[0].blob]


def test_a_part_knows_the_bytes_before_it() -> None:
    """They are counted in its own message or artifact, over small files and large ones."""
    files = [Part(raw=b"x" * 10), Part(raw=LARGE), Part(text="t"), Part(raw=LARGE + b"y")]
    task = Task(history=[message(*files)], artifacts=[Artifact(parts=files)])
    _, stored = offload(task, OWNER)
    assert [each.blob.behind for each in stored] == [10, 10 + len(LARGE)] * 2
    chunk, _ = offload(Artifact(parts=[Part(raw=LARGE)]), OWNER, behind=7)
    blob = present(blob_of(chunk.parts[0]))
    assert blob.behind == 7


def test_bytes_before_a_part_have_room() -> None:
    """A reference behind any number of bytes that a message can name is read as one."""
    huge = f"{blobs.SCHEME}:raw:{OWNER.prefix}{'a' * 64}.{'9' * 15}"
    offloaded, _ = offload(message(*[Part(url=huge)] * 30, Part(raw=LARGE)), OWNER)
    assert all(blob_of(part) is not None for part in offloaded.parts)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_data_that_json_does_not_have_is_refused(number: float) -> None:
    """It would be found when an answer shows it, which then has nothing of the task."""
    values = [Value(string_value="x" * OFFLOAD_BYTES), Value(number_value=number)]
    with pytest.raises(InvalidArgumentError, match="NaN or infinity"):
        offload(message(Part(data=Value(list_value=ListValue(values=values)))), OWNER)


def test_copies_of_a_message_have_one_digest() -> None:
    """Also where one has the content, one a reference, and one a link with another signature."""
    sent = message(Part(raw=LARGE, media_type="image/png"))
    offloaded, (stored,) = offload(sent, OWNER)
    linked = message(Part(url=link_to(stored.blob), media_type="image/png"))
    again = message(Part(url=link_to(stored.blob) + "2", media_type="image/png"))
    assert len({content_digest(each) for each in (sent, offloaded, linked, again)}) == 1
    assert content_digest(sent) != content_digest(message(Part(raw=LARGE, media_type="image/gif")))
    assert content_digest(sent) != content_digest(message(Part(raw=LARGE + b"y")))
    assert blobs.comparable(message(Part(text="x"))) == message(Part(text="x"))


def test_a_link_names_its_blob_in_any_form() -> None:
    """A link of S3 in either form of address, with a task id that a URL has to escape."""
    blob = Blob.of(LARGE, OWNER)
    escaped = blob.key.replace(":", "%3A")
    for address in ("https://b.s3.amazonaws.com", "http://127.0.0.1:4566/bucket"):
        assert linked_blob(f"{address}/{escaped}?X-Amz-Signature=a") == blob
    assert linked_blob("https://example.com/a.png") is None
    assert linked_blob(f"https://example.com/?to=/{blob.key}") is None


def test_a_link_that_comes_back_becomes_a_reference() -> None:
    """One to the task's own file is that file, if it has it; one to another's is copied to it."""
    own, other = Blob.of(LARGE, OWNER), Blob.of(LARGE, OTHER_TASK)
    offloaded, stored = offload(message(Part(url=link_to(own))), OWNER)
    assert (blob_of(offloaded.parts[0]), stored) == (own, [blobs.ToStore(own, own, "")])
    assert offload(offloaded, OWNER) == (offloaded, [])
    offloaded, (copying,) = offload(message(Part(url=link_to(other))), OWNER)
    assert (blob_of(offloaded.parts[0]), copying.blob, copying.content) == (own, own, other)


def test_what_belongs_to_another_is_not_reached() -> None:
    """Another caller's link stays a URL, and another caller's reference is refused."""
    foreign = Blob.of(LARGE, OTHER_SCOPE)
    linked = message(Part(url=link_to(foreign)))
    assert offload(linked, OWNER) == (linked, [])
    for url in (foreign.reference, "a2a-blob:raw:x", "a2a-blob:"):
        with pytest.raises(InvalidArgumentError, match="only this service writes"):
            offload(message(Part(url=url)), OWNER)
