"""Runs the commands of the pages on deploying and operating, but for those that a page leaves out.

The page `cloud` has the table of what is left out, each with its reason.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Final

from a2a_serverless.tasks.identity import Scope
from a2a_serverless_tools.cloud.emulator import REGION
from a2a_serverless_tools.cloud.stack import PhaseError, run
from tests.cloud.deployment import ROOT, SAM, Deployment
from tests.cloud.own import command, own
from tests.cloud.preflight import SETTINGS
from tests.live.subject import Subject, require
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
    folder = deployment.build / "pages"
    folder.mkdir(exist_ok=True)
    (folder / "template.yaml").write_bytes((ROOT / "template.yaml").read_bytes())
    (folder / "samconfig.toml").write_text(
        SETTINGS.format(
            name=deployment.name,
            region=REGION,
            template=deployment.template,
            confirms="false",
        ),
        encoding="utf-8",
    )
    programs = [ROOT / ".venv/tools/aws/bin", ROOT / ".venv/bin", SAM.parent, os.environ["PATH"]]
    environment = {
        **os.environ,
        **deployment.emulator.environment(),
        **variables,
        "PATH": os.pathsep.join(map(str, programs)),
        "AWS_PAGER": "",
        "SAM_CLI_TELEMETRY": "0",
    }
    function = re.search(r"(?sm)^ {4}output\(\) \{.*?\}\n", pages.text("deploy"))
    assert function is not None
    whole = f"STACK={deployment.name}\n{function[0]}{script}"
    return await run(["bash", "-euc", whole], environment, within_s=PAGE_S, folder=folder)


async def documented(deployment: Deployment, subject: Subject) -> None:
    """Run the commands of each page in one shell, about a task that has failed."""
    call, stack = deployment.account.call, await deployment.stack()
    sent = await call(
        "sqs", "send_message", QueueUrl=stack.outputs["UndecodableQueue"], MessageBody="{}"
    )
    named = {"A2A_TABLE": stack.outputs["Table"], "A2A_QUEUE": stack.outputs["Queue"]}
    named["KEY"] = subject.credential  # read on the page before
    names = {
        "SCOPE": Scope.of("", "default").digest,
        "MESSAGE": sent["MessageId"],
        "NAME": deployment.name,
        "REGION": REGION,
        "ACCOUNT": "000000000000",
    }
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


CHECKS: Final = (
    own("documented", "the commands of Deploy and Operate run as the pages have them", documented),
)
