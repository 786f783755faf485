"""Runs the commands of the pages on deploying and operating, but for those that a page leaves out.

The page `cloud` has the table of what is left out, each with its reason.
"""

import asyncio
import re
from collections.abc import Iterator
from typing import Final

import httpx

from a2a_serverless.tasks.identity import Scope
from a2a_serverless_tools.cloud.door import opened
from a2a_serverless_tools.cloud.emulator import REGION, free_port
from a2a_serverless_tools.cloud.stack import PhaseError, run
from tests.cloud.deployment import PROGRAM, ROOT, SAM, Deployment
from tests.cloud.own import command, own, wrong_remains
from tests.live.subject import VERSION, Subject, artifact_text, require, state
from tests.support import commands, pages

PAGE_S: Final = 600.0
PARTS: Final = ("deploy", "operate")
OF_OTHERS: Final = frozenset({"restore"})
"""The pages whose commands are a check of their own."""
ASKS: Final = re.compile(
    r"(a2a-serverless (?:tasks (?!.*--dry-run)|keys (?!list))\w+ .*?)(?=\s+#|$)"
)
"""A command that asks at a terminal."""
STATUS: Final = re.compile(r"(a2a-serverless status.*?)(?=\s+#|$)", re.MULTILINE)
"""A command that ends with 1 where tasks have failed."""


def scripts(**names: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each page with its commands, with values in the place of names such as `ID`."""
    left_out = commands.left_out()
    for page in (page for part in PARTS for page in sorted((pages.DOCS / part).glob("*.md"))):
        found = [it for block in commands.blocks(page.read_text(encoding="utf-8")) for it in block]
        kept = [it for it in found if not any(text in it for text in left_out)]
        for name, value in names.items():
            kept = [re.sub(rf"(?<=[ =]){name}(?![\w=])", value, it) for it in kept]
        if kept and page.stem not in OF_OTHERS:
            yield page.stem, kept


async def shell(deployment: Deployment, script: str, **variables: str) -> str:
    """Run commands of a page in bash, beside what was built; return what they said.

    Raises:
        PhaseError: one of them failed.
    """
    folder = deployment.project("pages", deployment.template, confirms=False)
    programs = (ROOT / ".venv/tools/aws/bin", PROGRAM.parent, SAM.parent)
    environment = deployment.environment(*programs, AWS_PAGER="", **variables)
    function = re.search(r"(?sm)^ {4}output\(\) \{.*?\}\n", pages.text("deploy"))
    assert function is not None
    whole = f"STACK={deployment.name}\n{function[0]}{script}"
    return await run(["bash", "-euc", whole], environment, within_s=PAGE_S, folder=folder)


async def documented(deployment: Deployment, subject: Subject) -> None:
    """Run the commands of each page in one shell, about a task that has failed."""
    call, stack = deployment.account.call, await deployment.stack()
    queue = stack.outputs["UndecodableQueue"]
    sent = await call("sqs", "send_message", QueueUrl=queue, MessageBody="{}")
    named = {"A2A_TABLE": stack.outputs["Table"], "A2A_QUEUE": stack.outputs["Queue"]}
    named["KEY"] = subject.credential  # read on the page before
    names = {"SCOPE": Scope.of("", "default").digest, "MESSAGE": sent["MessageId"]}
    names |= {"NAME": deployment.name, "REGION": REGION, "ACCOUNT": "000000000000"}
    await command(deployment, "keys", "add", "alice", "--yes")
    wrong: list[str] = []
    for page, found in scripts(**names):
        task_id = await subject.begin("what no word says")  # it fails at once
        await subject.ended(task_id)
        # A page has a shell of its own, and its reader another stack.
        script = "\n".join(ASKS.sub(r"\1 --yes", it) for it in found if not it.startswith("STACK="))
        for shown, meant in {
            " ID": f" {task_id}",
            "--logs": '--logs --stack "$STACK"',
            "--user alice": "--user default",
            '"$(output Endpoint)': f'"{subject.base}/',
            "Two days in Lisbon": r"{\"do\": \"say\"}",
        }.items():
            script = script.replace(shown, meant)
        script = STATUS.sub(r"\1 || test $? = 1", script)
        try:
            await shell(deployment, f"set -x\n{script}", **named)
        except PhaseError as error:
            wrong.append(f"{page}: {error}")
    require(not wrong, "; ".join(wrong))


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
        built = deployment.build
        other = Deployment(emulator=deployment.emulator, door=door, build=built, name=NEW)
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
    own("documented", "the commands of Deploy and Operate run as the pages have them", documented),
)
