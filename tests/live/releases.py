"""Versions behind the functions' aliases, put there and taken away while turns and streams run."""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import httpx

from tests.live.streams import Arrival, arrivals, resumed
from tests.live.subject import (
    Check,
    Subject,
    answer_to,
    artifact_text,
    ordered,
    require,
    state,
    steps_of,
)
from tests.support.a2a_calls import JSONRPC, Agent

ALIAS: Final = "live"
BROKEN: Final = "LIVE_BROKEN"
"""The variable with which the live agent cannot be imported."""
STEPS: Final = 40
GAP_S: Final = 1.0
"""A turn of 40 s: the stack's worker has 60."""
NAP_S: Final = 60
"""The shortest sleep for which a turn leaves its worker."""


@dataclass(frozen=True, kw_only=True)
class Versions:
    """Versions of a function with other variables, beside the one behind its alias."""

    subject: Subject
    function: str
    former: str
    variables: Mapping[str, str]
    """Those of the function as it was."""
    made: list[str] = field(default_factory=list)

    async def publish(self, **more: str) -> str:
        """Publish one with more variables; return its number."""
        await self._give(**more)
        number = str((await self._call("publish_version"))["Version"])
        self.made.append(number)
        await self._until("State", "Active", Qualifier=number)
        return number

    async def point(self, number: str) -> None:
        """Put a version behind the alias."""
        # Without empty weights, those of a rollout stay.
        weights = {"AdditionalVersionWeights": dict[str, float]()}
        await self._call("update_alias", Name=ALIAS, FunctionVersion=number, RoutingConfig=weights)
        await self.subject.ground.settle()

    async def undo(self) -> None:
        """Put the former version behind the alias; make the function what it was."""
        await self.point(self.former)
        for number in {*self.made} - {self.former}:
            await self._call("delete_function", Qualifier=number)
        await self._give()

    async def _give(self, **more: str) -> None:
        variables = {"Variables": {**self.variables, **more}}
        await self._call("update_function_configuration", Environment=variables)
        # Lambda refuses the next change of the function until this one is done.
        await self._until("LastUpdateStatus", "Successful")

    async def _until(self, name: str, value: str, **qualifier: str) -> None:
        async def look() -> bool:
            found = await self._call("get_function_configuration", **qualifier)
            return bool(found.get(name) == value)

        await self.subject.until(f"{value} of {self.function}", look, within_s=120, every_s=1)

    async def _call(self, operation: str, **params: Any) -> Any:
        account, _ = self.subject.on_aws()
        return await account.call("lambda", operation, FunctionName=self.function, **params)


async def versions_of(subject: Subject, logical: str) -> Versions:
    """Return what publishes versions of a function."""
    account, stack = subject.on_aws()
    named = {"FunctionName": stack.resources[logical]}
    alias = await account.call("lambda", "get_alias", Name=ALIAS, **named)
    found = await account.call("lambda", "get_function_configuration", **named)
    return Versions(
        subject=subject,
        function=stack.resources[logical],
        former=alias["FunctionVersion"],
        variables=found["Environment"]["Variables"],
    )


async def _noted(subject: Subject, logical: str) -> Versions:
    """Return what publishes versions of a function, which gets back what is there afterwards."""
    subject.changeable()
    versions = await versions_of(subject, logical)
    was = f"{versions.function}, whose alias {ALIAS} had version {versions.former}"
    subject.made.note("versions and variables of", was, versions.undo)
    return versions


async def swapped(subject: Subject) -> None:
    """Put a version behind the worker's alias whose agent cannot be imported, and the former back.

    Before it there are a turn that runs, one that is streamed, one that sleeps without a worker and
    one that waits for its client. New turns fail on the bad version until the former one is back.
    """
    worker = await _noted(subject, "WorkerFunction")
    bad = await worker.publish(**{BROKEN: "1"})
    asked = await subject.reached(await subject.begin("ask"), "INPUT_REQUIRED")
    asleep = await subject.begin("nap", seconds=NAP_S)
    await subject.reached(asleep, "WORKING")
    running = await subject.begin("steps", count=STEPS, gap_s=GAP_S)
    await subject.reached(running, "WORKING")
    seen = list[Arrival]()
    streaming = asyncio.ensure_future(_read(subject, seen))

    async def told() -> str:
        return artifact_text(await subject.task(running))

    async def streamed() -> bool:
        return bool(_steps(seen)) or streaming.done()

    async def failed() -> bool:
        return state(await subject.ended(await subject.begin("say"))) == "FAILED"

    try:
        before = await subject.until("the first step", told, within_s=30)
        await subject.until("the first step of the stream", streamed, within_s=60)
        await worker.point(bad)
        await subject.until("a turn that fails on the bad version", failed, within_s=60)
        late = await subject.begin("say")  # its first attempt is the bad version's, or the next
        is_in_flight = state(await subject.task(running)) == "WORKING"
        await worker.point(worker.former)
        after = artifact_text(await subject.completed(running, within_s=100))
        await streaming
    finally:
        streaming.cancel()
    await subject.sent(answer_to(asked, "say"))
    for task_id in (late, asked["id"], asleep):
        await subject.completed(task_id, within_s=240)
    whole = [*range(STEPS)]
    require(steps_of(after) == whole, f"the steps of the turn that ran are {steps_of(after)}")
    require(after.startswith(before), "the turn that ran began again")
    require(is_in_flight, "the turn that ran had ended before the swap back: nothing is shown")
    require(_steps(seen) == whole, f"the steps of the stream are {_steps(seen)}")


async def streams_swapped(subject: Subject) -> None:
    """Put another version of StreamFunction behind its alias while two streams are open.

    One of them is read on, from the version that it began on. The other is cut as soon as requests
    reach the new version, which takes no message of two parts, and goes on there after its last
    event.
    """
    function = await _noted(subject, "StreamFunction")
    newer = await function.publish(A2A_MAX_PARTS="1")
    seen = list[Arrival](), list[Arrival]()
    reading = [asyncio.ensure_future(_read(subject, each)) for each in seen]

    async def told() -> bool:
        return all(len(each) > 2 for each in seen)

    async def is_newer() -> bool:
        with contextlib.suppress(httpx.HTTPError):  # of a process that was just ended
            params = {"message": ordered("say", "x"), "configuration": {"returnImmediately": True}}
            answer = await Agent(subject.http, JSONRPC).call("SendMessage", params)
            return "task" not in answer.result
        return False

    try:
        await subject.until("the first steps", told, within_s=30)
        await function.point(newer)
        await subject.until("the new version", is_newer, within_s=30)
        is_open = not any(each.done() for each in reading)
        require(is_open, "a stream had ended before the new version answered")
        reading[1].cancel()
        before = [*seen[1]]
        task_id = before[0].data["task"]["id"]
        after = [it async for it in resumed(subject, task_id, before[-1].id)]
        await reading[0]
    finally:
        for each in reading:
            each.cancel()
    # What a stream begins with is the task as its client has it: the rest are its own steps.
    parts = [*_steps(before), *_steps(it for it in after if "task" not in it.data)]
    whole = [*range(STEPS)]
    require(parts == whole, f"over the cut the steps are {parts}")
    require(_steps(seen[0]) == whole, f"the steps of the open stream are {_steps(seen[0])}")
    await subject.completed(task_id)


async def _read(subject: Subject, seen: list[Arrival]) -> None:
    async for each in arrivals(subject, "/message:stream", count=STEPS, gap_s=GAP_S):
        seen += [each]  # while it comes: others look at it


def _steps(seen: Iterable[Arrival]) -> list[int]:
    return [number for each in seen for number, _ in each.steps]


CHECKS: Final = (
    Check("bad-version", "turns in flight outlive a bad version and its way back", swapped),
    Check("stream-release", "streams outlive a release, open ones and cut ones", streams_swapped),
)
