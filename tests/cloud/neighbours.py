"""Checks of a second stack in the same account: a project of `init`, and one that is upgraded."""

import asyncio
import json
import os
import re
import shutil
import signal
import time
import uuid
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any, Final

import httpx

from a2a_serverless_tools.cloud.stack import PARAMETERS, PLATFORM, run
from a2a_serverless_tools.scaffold.project import KINDS
from a2a_serverless_tools.scaffold.source import CARD, CARD_NAME
from tests.cloud.deployment import ROOT, Deployment, build
from tests.cloud.own import Patient, beside, own, subject_of
from tests.e2e.releases import last_release, make_earlier
from tests.live.subject import (
    VERSION,
    Figures,
    Subject,
    answer_to,
    artifact_text,
    ordered,
    require,
    state,
    steps_of,
)

MAKE_S: Final = 300.0
UP_S: Final = 600.0
BIN: Final = ROOT / ".venv" / "bin"
IN_FLIGHT: Final = 8
STEPS: Final = 5
LAST_OUTPUT: Final = """\
  UndecodableQueue:
    Description: URL of the queue of undecodable messages
    Value: !Ref UndecodableQueue
"""


async def brought_up(deployment: Deployment, _: Subject) -> None:
    """Run `make cloud-up` in a project out of the wheel: its agent answers; Ctrl-C ends it."""
    folder = deployment.door.folder / "up"
    await _project(folder, ROOT)
    mine = ("MAKE", "MFLAGS", "CLOUD_ARGS")  # of this run
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(mine)}
    process = await asyncio.create_subprocess_exec(
        "make",
        "cloud-up",
        cwd=folder / "mine",
        env=inherited,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    said: list[str] = []
    try:
        async with asyncio.timeout(UP_S):
            while not (said and said[-1].startswith("Ctrl-C")):
                said.append((await process.stdout.readuntil()).decode())
        shown = "".join(said)
        found = re.search(r"Its agent: (\S+)\nA client's key: (\S+)", shown)
        require(found, f"it said {shown}")
        assert found is not None
        url, key = found.groups()
        message = {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "Two days in Oslo"}]}
        async with httpx.AsyncClient(base_url=url, timeout=180) as http:
            headers = {**VERSION, "X-API-Key": key}
            answer = await http.post("/message:send", json={"message": message}, headers=headers)
        require(state(answer.json()["task"]) == "COMPLETED", f"its agent answered {answer.text}")
    except asyncio.IncompleteReadError as ended:
        require(False, f"it ended: {''.join(said)}{ended.partial.decode()}")  # noqa: FBT003
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        rest = (await process.communicate())[0].decode()
    require("interrupted" in rest, f"after Ctrl-C it said {rest}")


async def of_each_kind(deployment: Deployment, subject: Subject) -> Figures:
    """Deploy a project of each kind out of the wheel, one after the other into one stack.

    This stack and the one beside it share no key and no task.
    The projects differ in their agent, its packages and its card, which replace those of the first
    one in what was built; each is then an update of the stack by SAM.
    """
    folder = deployment.door.folder / "kinds"
    await asyncio.to_thread(folder.mkdir)
    wheels = await _wheel(folder, ROOT)
    seconds: dict[str, float] = {}
    async with AsyncExitStack() as stack:
        other: Deployment | None = None
        for kind in KINDS:
            began = time.monotonic()
            project, built = folder / f"a-{kind}", folder / f"built-{kind}"
            arguments = ["init", project.name, "--agent", kind, "--find-links", wheels]
            await _command(arguments, folder)
            if other is None:
                await build(built, live_agent=False, project=project)
                parameters = {**PARAMETERS, "Conversations": "serial"}  # as adapters need it
                own = beside(deployment, "a2a-kinds", build=built, parameters=parameters)
                other = await stack.enter_async_context(own)
            else:
                await _worker_of(project, built, other.build)
                other.take(built)
                await other.deploy()
            card = json.loads((project / CARD).read_text(encoding="utf-8"))
            async with subject_of(other, subject.made, subject.run) as there:
                await _apart(subject, there)
                shown = (await there.anonymous.get("/.well-known/agent-card.json")).json()
                require(shown["name"] == card["name"], f"{kind} shows the card of {shown['name']}")
                client, text = Patient(there), card["skills"][0]["examples"][0]
                said = {"messageId": uuid.uuid4().hex, "role": "ROLE_USER"}
                task = await client.ended(await client.sent({**said, "parts": [{"text": text}]}))
            require(state(task) == "COMPLETED", f"{kind}: its task ended as {state(task)}")
            require(task.get("artifacts"), f"{kind}: its task has no answer")
            seconds[kind] = round(time.monotonic() - began, 1)
    return seconds


async def _apart(subject: Subject, there: Subject) -> None:
    """Ask the stack beside for a task of this one, and with this one's key."""
    path = f"/tasks/{await subject.begin('say')}"
    alien = await there.http.get(path, headers=VERSION)
    require(alien.status_code == httpx.codes.NOT_FOUND, "it shows the neighbour's task")
    key = {"X-API-Key": subject.credential}
    refused = await there.anonymous.get(path, headers={**VERSION, **key})
    require(refused.status_code == httpx.codes.UNAUTHORIZED, "it takes another's key")


async def _worker_of(project: Path, built: Path, before: Path) -> None:
    """Build a project's agent with its packages; take all else but its card as it was built."""
    ignored = shutil.ignore_patterns("WorkerFunction")
    await asyncio.to_thread(shutil.copytree, before, built, ignore=ignored)
    for function in ("ApiFunction", "StreamFunction"):
        shutil.copy(project / CARD, built / function / CARD_NAME)
    command = ["make", "-f", "functions/worker/Makefile", "build-WorkerFunction"]
    variables = {
        "ARTIFACTS_DIR": str(built / "WorkerFunction"),
        "A2A": str(BIN / "a2a-serverless"),
        "UV": str(BIN / "uv"),
        "LAMBDA_PLATFORM": PLATFORM,
    }
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("MAKE", "MFLAGS"))}
    (built / "WorkerFunction").mkdir()
    await run(command, {**inherited, **variables}, within_s=MAKE_S, folder=project)


async def upgraded(deployment: Deployment, subject: Subject) -> None:
    """Deploy a project of an older release, upgrade it, and deploy it again while tasks run.

    The older release is that of `A2A_UPGRADE_FROM`, else of the last tag, else this code under an
    earlier version, without an output of the template.
    """
    release = last_release()
    folder = deployment.door.folder / "older"
    await _project(folder, await _older(folder.with_name("older-source"), release))
    project = folder / "mine"
    await build(folder / "built", live_agent=True, project=project)
    async with (
        beside(deployment, "a2a-upgraded", build=folder / "built") as other,
        subject_of(other, subject.made, subject.run) as there,
    ):
        client = Patient(there)
        asking = [await client.sent(ordered("ask")) for _ in range(2)]
        asked = [await client.ended(task_id, "INPUT_REQUIRED") for task_id in asking]
        missing = (await deployment.stack()).outputs.keys() - (await other.stack()).outputs.keys()
        await _command(["upgrade", "--find-links", await _wheel(folder, ROOT)], project)
        await build(folder / "newer", live_agent=True, project=project)
        steps = {"count": STEPS, "gap_s": 2}
        ids = [await client.sent(ordered("steps", **steps)) for _ in range(IN_FLIGHT)]
        await client.ended(ids[0], "WORKING")
        other.take(folder / "newer")
        updating = asyncio.ensure_future(other.deploy())
        while not updating.done():
            ids.append(await client.sent(ordered("steps", **steps)))
            await asyncio.wait([updating], timeout=5)
        await updating
        for task in asked:
            await client.sent(answer_to(task, "steps", **steps))
        tasks = [await client.ended(task_id) for task_id in [*ids, *asking]]
        wrong = [it["id"] for it in tasks if not _is_whole(it)]
        require(not wrong, f"tasks that did not end whole: {wrong}")
        outputs = (await other.stack()).outputs.keys()
        require(release or missing, "the older stack has all outputs of the newer one")
        require(not missing - outputs, f"the upgraded stack has no {missing - outputs}")


def _is_whole(task: dict[str, Any]) -> bool:
    return state(task) == "COMPLETED" and steps_of(artifact_text(task)) == [*range(STEPS)]


async def _older(folder: Path, release: str) -> Path:
    """Return the source of what is upgraded."""
    await asyncio.to_thread(folder.mkdir)
    archive = ["sh", "-c", 'git archive --format=tar "$1" | tar -x -C "$2"', "sh"]
    await run([*archive, release or "HEAD", str(folder)], os.environ, within_s=MAKE_S, folder=ROOT)
    if not release:
        make_earlier(folder)
        _replace(folder / "template.yaml", LAST_OUTPUT, "")
    return folder


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    require(text.count(old) == 1, f"{path.name} does not have {old!r} once")
    path.write_text(text.replace(old, new), encoding="utf-8")


async def _project(folder: Path, source: Path) -> None:
    """Make a project by a source's `init`, `mine` in a new folder, out of the source's wheel."""
    await asyncio.to_thread(folder.mkdir)
    wheels = await _wheel(folder, source)
    await _command(["init", "mine", "--find-links", wheels], folder, source)


async def _wheel(folder: Path, source: Path) -> str:
    """Build a source's wheel into a folder; return that."""
    wheel = [BIN / "uv", "build", "--quiet", "--wheel", "--python", BIN / "python", "-o", folder]
    await run([*map(str, wheel)], os.environ, within_s=MAKE_S, folder=source)
    return str(folder)


async def _command(arguments: list[str], folder: Path, source: Path = ROOT) -> str:
    """Run a command of a source in a folder; return what it said."""
    path = os.pathsep.join(str(source / name) for name in ("layers/runtime", "src"))
    command = [str(BIN / "python"), "-m", "a2a_serverless_tools.cli", *arguments]
    return await run(command, {**os.environ, "PYTHONPATH": path}, within_s=MAKE_S, folder=folder)


CHECKS: Final = (
    own("cloud-up", "`make cloud-up` in a project of init: its agent answers", brought_up),
    own("kinds", "a project of each kind of init, beside the stack, answers", of_each_kind),
    own("upgrade", "tasks in flight end whole while their stack gets newer code", upgraded),
)
