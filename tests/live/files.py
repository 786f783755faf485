"""Files of every size in messages and artifacts: byte for byte, in one form in each reading."""

import hashlib
import io
import json
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

import httpx
from a2a.client import Client, ClientCallContext
from a2a.compat.v0_3 import conversions, types
from a2a.types import (
    GetTaskRequest,
    ListTasksRequest,
    Message,
    Part,
    Role,
    SendMessageRequest,
    StreamResponse,
    SubscribeToTaskRequest,
    Task,
    TaskPushNotificationConfig,
    TaskState,
)
from google.protobuf.json_format import MessageToJson, Parse, ParseDict

from a2a_serverless.client import upload
from a2a_serverless.settings import Settings
from a2a_serverless.tasks.entries import OFFLOAD_BYTES
from tests.live.operations import BINDINGS, VERSIONS, clients_of, named
from tests.live.subject import VERSION, BrokenError, Check, Subject, require
from tests.live.webhooks import WITHIN_S, receiver

UPLOADED_BYTES: Final = 10_000_000
"""More than a request or an answer can hold."""
INLINE_BYTES: Final = int(Settings.model_fields["inline_bytes"].default)
INLINE_ALL_BYTES: Final = int(Settings.model_fields["inline_all_bytes"].default)
SIZES: Final = (
    *(1_000, OFFLOAD_BYTES - 500, OFFLOAD_BYTES, OFFLOAD_BYTES + 1),
    *(INLINE_BYTES, INLINE_BYTES + 1, INLINE_BYTES, INLINE_BYTES),
)
"""Of the files that a message has itself: about each bound, the last one behind 1 MB of others."""
TYPE: Final = "image/png"
ORDER: Final = Part(text=json.dumps({"do": "echo"}))

Reading: TypeAlias = Mapping[str, Iterable[Part]]
"""The parts of the message that was `sent`, of the `artifact`, and of the last `message`."""


def files(binding: str, version: str) -> Check:
    async def run(subject: Subject) -> None:
        clients = clients_of(subject, await subject.card(), binding, version)
        called = _Called(subject, *clients, *await _parts(subject), version == "1.0")
        await called.sent()
        await called.streamed()

    proves = f"files of each size are the same in all that A2A {version} over {binding} reads"
    return Check(named("files", binding, version), proves, run)


async def _parts(subject: Subject) -> tuple[list[Part], dict[str, str]]:
    """The parts of a message, and the digests of its files by their names.

    They are long text and data, files of each size, and one that is uploaded.
    """
    long = "ä long text. " * 4_000
    contents = [bytes([n]) + bytes(range(250)) * (s // 250 + 1) for n, s in enumerate(SIZES)]
    parts = [
        Part(raw=content[:size], media_type=TYPE, filename=f"{number}.bin")
        for number, (content, size) in enumerate(zip(contents, SIZES, strict=True))
    ]
    parts.append(ParseDict({"data": {"long": long, "number": 1}}, Part()))
    content = bytes(range(256)) * (UPLOADED_BYTES // 256)
    file = io.BytesIO(content)
    async with subject.connect() as http:
        card = await subject.card()
        parts.append(await upload(http, card, file, media_type=TYPE, filename="uploaded.bin"))
    digests = {part.filename: hashlib.sha256(part.raw or content).hexdigest() for part in parts}
    return [Part(text=long), *parts], digests


@dataclass(frozen=True)
class _Called:
    """A message with files, sent in one binding and version, and what is read of its task."""

    subject: Subject
    client: Client
    streaming: Client
    parts: list[Part]
    digests: Mapping[str, str]
    lists: bool

    async def sent(self) -> None:
        """Send it with a webhook, and compare what is read and what the webhook is told."""
        request, pushed = self._request(), dict[str, list[Part]]()
        async with receiver(self.subject) as hook:
            config = TaskPushNotificationConfig(url=hook.url)
            request.configuration.task_push_notification_config.CopyFrom(config)
            (answer,) = [event async for event in self.client.send_message(request)]
            await self.subject.ended(answer.task.id, within_s=120)

            async def look() -> dict[str, list[Part]] | None:
                found = _of_bodies([one.body for one in await hook.take()])
                return found if "message" in found else None

            if self.subject.is_here:  # a queue of AWS cannot hold such a notification
                pushed = await self.subject.until("its end", look, within_s=WITHIN_S, every_s=1)
        is_done = answer.task.status.state == TaskState.TASK_STATE_COMPLETED
        readings = {"send": _of_task(answer.task)} if is_done else {}
        readings |= {"webhook": pushed} | await self._found(answer.task.id)
        await self._compare(readings)

    async def streamed(self) -> None:
        """Send it by a stream, and compare what is read."""
        events = [event async for event in self.streaming.send_message(self._request())]
        readings = {"stream": _of_events(events)} | await self._found(events[0].task.id)
        await self._compare(readings)

    def _request(self) -> SendMessageRequest:
        message = Message(message_id=uuid.uuid4().hex, role=Role.ROLE_USER, parts=[ORDER])
        message.parts.extend(self.parts)
        return SendMessageRequest(message=message)

    async def _found(self, task_id: str) -> dict[str, Reading]:
        """Read a task that has ended in all ways that send nothing."""
        got = await self.client.get_task(GetTaskRequest(id=task_id))
        readings: dict[str, Reading] = {"GetTask": _of_task(got)}
        if self.lists:  # of which 0.3 has none
            asked = ListTasksRequest(context_id=got.context_id, include_artifacts=True)
            (listed,) = (await self.client.list_tasks(asked)).tasks
            readings["ListTasks"] = _of_task(listed)
        # Of an ended task a stream gives what is behind an event: here behind the first one.
        behind = {"Last-Event-ID": f"1.0.{await self._mark(task_id)}"}
        context = ClientCallContext(service_parameters=behind)
        events = self.streaming.subscribe(SubscribeToTaskRequest(id=task_id), context=context)
        readings["replay"] = _of_events([event async for event in events])
        return readings

    async def _mark(self, task_id: str) -> str:
        """The end of the ids of a task's events, from a stream behind an event of another task."""
        headers = {**VERSION, "Last-Event-ID": "1.0.aaaaaa"}
        path = f"/tasks/{task_id}:subscribe"
        async with self.subject.http.stream("POST", path, headers=headers) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("id:"):
                    return line.rpartition(".")[2]
        raise BrokenError("a stream of a task that has ended had no event")

    async def _compare(self, readings: Mapping[str, Reading]) -> None:
        """Hold each reading of one task against what was sent, and fetch what its links name."""
        expected, links = _expected(self.parts), dict[str, tuple[str, str]]()
        for name, reading in readings.items():
            is_whole = {"artifact", "message"} <= {*reading} or name == "webhook"
            require(is_whole, f"{name}: there is no more than {[*reading]}")
            for place, parts in reading.items():
                shown = [_shown(part) for part in parts if part != ORDER]
                wrong = [pair for pair in zip(shown, expected, strict=False) if len({*pair}) > 1]
                what = f"{name}: the {place}"
                require(not wrong, f"{what} has {wrong[:1]}, the second of which is right")
                require(len(shown) == len(expected), f"{what} has {len(shown)} parts")
                links |= {part.url: (part.filename, what) for part in parts if part.url}
        fetched: dict[str, str] = {}
        async with httpx.AsyncClient(timeout=60 * self.subject.slack) as anyone:
            for url, (name, what) in links.items():
                path, _, signature = url.partition("?")
                require(signature, f"{what} has a link that is not signed")
                # The whole of a file once, and of each other link to it one byte.
                sha, only = hashlib.sha256(), {"Range": "bytes=0-0"} if path in fetched else {}
                async with anyone.stream("GET", url, headers=only) as got:
                    async for chunk in got.aiter_bytes():
                        sha.update(chunk)
                status = 206 if only else 200
                require(got.status_code == status, f"{what} has a link: {got.status_code}")
                told = [got.headers["content-type"], got.headers["content-disposition"]]
                require(told[0] == TYPE and told[1].endswith(name), f"{what} has a link to {told}")
                is_same = only or sha.hexdigest() == self.digests[name]
                require(is_same, f"{what} has a link to other bytes of {name}")
                for wrong_url in () if only else (path, f"{url}0"):
                    got = await anyone.get(wrong_url)
                    require(got.status_code == 403, f"an unsigned link: {got.status_code}")
                fetched[path] = name
        # The links of one file differ in their query alone.
        require(len(fetched) == len({*fetched.values()}), f"files are in two places: {fetched}")


def _of_task(task: Task) -> Reading:
    (own,) = [each for each in task.history if each.role == Role.ROLE_USER]
    (artifact,) = task.artifacts
    parts = {"sent": own.parts, "artifact": artifact.parts}
    return parts | {"message": task.status.message.parts}


def _of_bodies(bodies: Sequence[str | bytes]) -> dict[str, list[Part]]:
    """Return what a webhook was told: events, and in 0.3 the task, of which the last one counts."""
    tasks = [one for one in map(json.loads, bodies) if one.get("kind") == "task"]
    if not tasks:
        return _of_events([Parse(one, StreamResponse()) for one in bodies])
    task = conversions.to_core_task(types.Task.model_validate(tasks[-1]))
    is_done = task.status.state == TaskState.TASK_STATE_COMPLETED
    read = _of_task(task).items() if is_done else ()
    return {name: list(parts) for name, parts in read if name != "sent"}


def _of_events(events: Iterable[StreamResponse]) -> dict[str, list[Part]]:
    read: dict[str, list[Part]] = {}
    for event in events:
        if event.HasField("artifact_update"):
            read.setdefault("artifact", []).extend(event.artifact_update.artifact.parts)
        elif event.status_update.status.state == TaskState.TASK_STATE_COMPLETED:
            read["message"] = list(event.status_update.status.message.parts)
    return read


def _shown(part: Part) -> tuple[str, ...]:
    """What a reader sees of a part; of a link, that it is one."""
    kind = part.WhichOneof("content") or ""
    content = "" if kind == "url" else MessageToJson(part, sort_keys=True)
    return kind, part.media_type, part.filename, hashlib.sha256(content.encode()).hexdigest()


def _expected(parts: Iterable[Part]) -> list[tuple[str, ...]]:
    """What a reader has to see, by the sizes of the files alone."""
    behind, expected = 0, []
    for part in parts:
        size = len(part.raw) or UPLOADED_BYTES * (part.url != "")
        behind += size
        is_link = size > INLINE_BYTES or behind > INLINE_ALL_BYTES
        own = Part(url="link", media_type=part.media_type, filename=part.filename)
        expected.append(_shown(own if size and is_link else part))
    return expected


CHECKS: Final = tuple(files(binding, version) for version in VERSIONS for binding in BINDINGS)
