"""Checks of a second stack in the same account: a project of `init`, and one that is upgraded."""

from __future__ import annotations

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any, Final

import httpx

from tests.cloud.deployment import Deployment, build, run
from tests.cloud.emulator import ROOT
from tests.cloud.own import Own, Patient, beside, subject_of
from tests.e2e.releases import last_release
from tests.live.findings import Figures, require
from tests.live.stack import first_key
from tests.live.subject import VERSION, Subject, artifact_text, ordered, state

MAKE_S: Final = 300.0
BIN: Final = ROOT / ".venv" / "bin"
IN_FLIGHT: Final = 8
STEPS: Final = 5


async def made(deployment: Deployment, subject: Subject) -> Figures:
    """Deploy a project that `init` has made out of the wheel, beside the stack; and delete it."""
    folder = deployment.door.folder / "project"
    await asyncio.to_thread(folder.mkdir)
    wheel = [BIN / "uv", "build", "--quiet", "--wheel", "--python", BIN / "python", "-o", folder]
    await run([*map(str, wheel)], os.environ, within_s=MAKE_S)
    init = [BIN / "a2a-serverless", "init", folder / "mine", "--find-links", folder]
    await run([*map(str, init)], os.environ, within_s=MAKE_S)
    await build(folder / "built", live_agent=False, project=folder / "mine")
    task_id = await subject.begin("say")
    async with beside(deployment, "a2a-mine", build=folder / "built") as other:
        key = await first_key(other.account, await other.stack())
        require(key != subject.credential, "both stacks have the same key")
        said = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "Two days in Oslo"}]}
        headers = {**VERSION, "X-API-Key": key}
        async with httpx.AsyncClient(base_url=other.door.url, timeout=180) as http:
            answer = await http.post("/message:send", json={"message": said}, headers=headers)
            require(answer.is_success, f"the project's agent answered {answer.status_code}")
            task = answer.json()["task"]
            require(state(task) == "COMPLETED", f"its task ended as {state(task)}")
            alien = await http.get(f"/tasks/{task_id}", headers=headers)
            require(alien.status_code == httpx.codes.NOT_FOUND, "it shows the neighbour's task")
            shown = {**VERSION, "X-API-Key": subject.credential}
            refused = await http.get(f"/tasks/{task['id']}", headers=shown)
            require(refused.status_code == httpx.codes.UNAUTHORIZED, "it takes another's key")
    after = await subject.ended(await subject.begin("say"), within_s=100)
    require(state(after) == "COMPLETED", "the first stack does not work after the other's end")
    return {"answered": artifact_text(task)[:60]}


async def upgraded(deployment: Deployment, subject: Subject) -> Figures:
    """Deploy an older release, begin tasks, and update the stack to this code meanwhile.

    The older one is that of `A2A_UPGRADE_FROM`, else of the last tag, else this code with one more
    file in each function and the layer, so that all of them are replaced.
    """
    release = last_release()
    old = await _older(deployment, release)
    async with (
        beside(deployment, "a2a-upgraded", build=old) as other,
        subject_of(other, subject.made, subject.run) as there,
    ):
        client = Patient(there)
        asking = [await client.sent(ordered("ask")) for _ in range(2)]
        asked = [await client.ended(task_id, "INPUT_REQUIRED") for task_id in asking]
        steps = {"count": STEPS, "gap_s": 2}
        ids = [await client.sent(ordered("steps", **steps)) for _ in range(IN_FLIGHT)]
        await client.ended(ids[0], "WORKING")
        other.take(deployment.build)
        updating = asyncio.ensure_future(other.deploy())
        while not updating.done():
            ids.append(await client.sent(ordered("steps", **steps)))
            await asyncio.wait([updating], timeout=5)
        await updating
        for task in asked:
            answer = {**ordered("steps", **steps), "taskId": task["id"]}
            await client.sent({**answer, "contextId": task["contextId"]})
        tasks = [await client.ended(task_id) for task_id in [*ids, *asking]]
        wrong = [it["id"] for it in tasks if not _is_whole(it)]
        require(not wrong, f"tasks that did not end whole: {wrong}")
    return {
        "from": release or "this code",
        "in flight": IN_FLIGHT,
        "sent meanwhile": len(ids) - IN_FLIGHT,
        "tasks": len(tasks),
    }


def _is_whole(task: dict[str, Any]) -> bool:
    numbers = [line.split()[0] for line in artifact_text(task).splitlines()]
    return state(task) == "COMPLETED" and numbers == [str(number) for number in range(STEPS)]


async def _older(deployment: Deployment, release: str) -> Path:
    """Build what is upgraded."""
    folder, target = deployment.door.folder / "older", deployment.door.folder / "older-built"
    if not release:
        await asyncio.to_thread(shutil.copytree, deployment.build, target, symlinks=True)
        for name in ("ApiFunction", "StreamFunction", "WorkerFunction", "RuntimeLayer"):
            (target / name / "older.txt").touch()
        return target
    await asyncio.to_thread(folder.mkdir)
    archive = ["sh", "-c", 'git archive --format=tar "$1" | tar -x -C "$2"', "sh"]
    await run([*archive, release, str(folder)], os.environ, within_s=MAKE_S)
    (folder / ".venv").symlink_to(ROOT / ".venv")
    await build(target, live_agent=True, project=folder)
    return target


CHECKS: Final = (
    Own("two-stacks", "a project of init is deployed beside the stack, and deleted", made),
    Own("upgrade", "tasks in flight end whole while their stack gets newer code", upgraded),
)
