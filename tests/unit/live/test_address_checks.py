"""Checks that need an address alone: each passes on the local stack, and fails on a broken way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from a2a.types import Task
from google.protobuf.json_format import ParseDict

from a2a_serverless.http.operations import _MAX_ANSWER_BYTES, _sent_bytes
from a2a_serverless.settings import Settings
from tests.live import files, messages, streams
from tests.live.checks import CHECKS
from tests.live.findings import Check, Outcome
from tests.live.messages import ANSWERED_BYTES, SENT_BYTES
from tests.live.subject import ordered
from tests.unit.live.ways import finding

Open = Callable[..., Any]

WAYS = [check.name for check in CHECKS if check.name.startswith("operations-")]
FILES = [check.name for check in CHECKS if check.name.startswith("files-")]


def check(name: str) -> Check:
    return next(one for one in CHECKS if one.name == name)


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let streams and messages be as short as their checks can bear."""
    monkeypatch.setattr(streams, "STEPS", 4)
    monkeypatch.setattr(streams, "LATE_S", 0.7)
    monkeypatch.setattr(messages, "SENT_BYTES", 100_000)
    monkeypatch.setattr(messages, "ANSWERED_BYTES", 100_000)
    monkeypatch.setattr(messages, "FILE_BYTES", 3_000_000)


@pytest.mark.long(one_in=5)
@pytest.mark.parametrize(
    "name",
    [
        "one-origin",
        *WAYS,
        "stream-python",
        "large-messages",
        "file",
        "forged-link",
        "upload",
        "other-uploads",
        "too-large",
        "cancel",
        "webhook",
        "encoded-colon",
    ],
)
async def test_it_passes_on_the_local_stack(subject_at: Open, name: str) -> None:
    """Each check passes on the local stack, with figures."""
    found = await finding(await subject_at(), check(name))
    assert (found.outcome, found.says) == (Outcome.PASSED, "")
    assert found.figures


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", FILES)
async def test_files_are_the_same_in_each_reading(
    subject_at: Open, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1 KB to 100 MB, in messages, artifacts, links and webhooks."""
    monkeypatch.setattr(files, "UPLOADED_BYTES", 100_000_000)
    found = await finding(await subject_at(slack=5), check(name))
    assert (found.outcome, found.says) == (Outcome.PASSED, "")
    read = ["GetTask", "replay"] if "0.3" in name else ["GetTask", "ListTasks", "replay"]
    assert found.figures == {
        "sent": ["send", "webhook", *read],
        "streamed": ["stream", *read],
        "pushed": ["artifact", "message"],
    }


async def test_javascript_needs_node(subject_at: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Node.js the check says so, and does not fail."""
    monkeypatch.setattr("tests.live.streams.shutil.which", lambda _: None)
    found = await finding(await subject_at(), check("stream-javascript"))
    assert (found.outcome, found.says) == (Outcome.NOT_POSSIBLE, "node is missing")


def test_large_messages_are_as_large_as_they_may_be() -> None:
    """The large messages and answers are just within the server's own limits."""
    long = ordered("digest", "y" * SENT_BYTES, answer_bytes=ANSWERED_BYTES)
    task = ParseDict({"id": "1" * 36, "contextId": "1" * 36, "history": [long]}, Task())
    assert task.history[0].ByteSize() <= Settings(auth="none").max_part_bytes
    task.artifacts.add().parts.add().text = "x" * ANSWERED_BYTES
    assert 0.9 * _MAX_ANSWER_BYTES < _sent_bytes(task) < _MAX_ANSWER_BYTES - 10_000


async def test_what_needs_aws_says_so(subject_at: Open) -> None:
    """An address alone is no stack: nothing is made up."""
    needing = [
        "timeout-kill",
        "roles-simulated",
        "role-refused",
        "fifo-early-delete",
        "renamed-header",
        "throttled",
        "busy",
        "bad-version",
        "stream-release",
        "rollout",
        "second-deploy",
        "auth-move",
        "bill",
    ]
    subject = await subject_at()
    for name in needing:
        found = await finding(subject, check(name))
        assert (found.outcome, found.says) == (
            Outcome.NOT_POSSIBLE,
            "needs a stack on AWS, and was given an address alone",
        )
    assert subject.requests == 0
