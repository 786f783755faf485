"""Checks of the page `restore`, by its own commands: one task, and the whole table."""

from __future__ import annotations

import asyncio
from typing import Final

import httpx

from a2a_serverless_tools.cloud.door import opened
from a2a_serverless_tools.cloud.emulator import free_port
from a2a_serverless_tools.cloud.stack import PhaseError
from tests.cloud.deployment import Deployment
from tests.cloud.documented import shell
from tests.cloud.own import command, own, wrong_remains
from tests.live.subject import VERSION, Subject, artifact_text, require, state
from tests.support import commands, pages

NEW: Final = "restored-agent"


async def one(deployment: Deployment, subject: Subject) -> None:
    """Restore the table beside, delete a task, and put it back, once, as it was."""
    task_id = await subject.begin("file", size=100_000)
    task = await subject.ended(task_id)
    beside, back, away = map("\n".join, commands.blocks(pages.section("One task of yesterday")))
    await shell(deployment, beside)
    try:
        await command(deployment, "tasks", "delete", task_id, "--yes")
        gone = await subject.http.get(f"/tasks/{task_id}", headers=VERSION)
        require(gone.status_code == httpx.codes.NOT_FOUND, f"deleted: {gone.status_code}")
        said = await shell(deployment, back.replace(" ID ", f" {task_id} --yes "))
        require("It can be done. Files that are gone: 1 of 1" in said, f"the preview said {said}")
        require("It is back, completed since" in said, f"it said {said}")
        after = await subject.task(task_id)
        require(state(after) == "COMPLETED", f"the task is {state(after)}")
        require(after["id"] == task["id"] and after["status"] == task["status"], "it has changed")
        await command(deployment, "tasks", "restore", task_id, "--from", "yesterday", "--yes")
    except PhaseError as refused:
        require("nothing is put over it" in str(refused), f"the second time: {refused}")
    else:
        require(False, "a task was put over itself")  # noqa: FBT003
    finally:
        await shell(deployment, away)


async def whole(deployment: Deployment, subject: Subject) -> None:
    """Restore the table, import it into a new stack, deploy the rest, and ask for a task there."""
    task_id = await subject.begin("file", size=100_000)
    task = await subject.ended(task_id)
    folder = deployment.door.folder / NEW
    await asyncio.to_thread(folder.mkdir)
    async with opened(deployment.emulator, deployment.build, folder, free_port()) as door:
        other = Deployment(
            emulator=deployment.emulator, door=door, build=deployment.build, name=NEW
        )
        found = commands.blocks(pages.section("The whole table"))
        await shell(deployment, "\n".join(it for block in found for it in block))
        stack = await other.stack()
        require(stack.resources["TaskTable"] == "restored", "the stack has another table")
        other.made.update(stack.resources)
        await door.show(stack.resources)
        headers = {**VERSION, "X-API-Key": subject.credential}
        async with httpx.AsyncClient(base_url=door.url, timeout=180) as http:
            answer = await http.get(f"/tasks/{task_id}", headers=headers)
        require(answer.is_success, f"the new stack answered {answer.status_code}")
        require(artifact_text(answer.json()) == artifact_text(task), "the task is another one")
        wrong = wrong_remains(await other.delete(deployment.made.values()))
        require(not wrong, f"of {NEW}: {'; '.join(wrong)}")


CHECKS: Final = (
    own("restore-task", "a deleted task comes back from a table restored beside", one),
    own("restore-table", "a restored table becomes that of a new stack, with its tasks", whole),
)
