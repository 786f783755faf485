"""The live checks of files, on a folder beside DynamoDB and SQS (`unit/live` runs all, on S3)."""

from __future__ import annotations

import json
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from a2a_serverless_tools.local.sockets import bind
from tests.e2e.commands import environment, running
from tests.live import __main__ as live
from tests.live import agent, files

pytestmark = pytest.mark.emulators

AGENT = Path(agent.__file__)


def test_files_pass(own_queues: dict[str, str], tmp_path: Path) -> None:
    """On real HTTP and DynamoDB a folder gives back each size as it was sent, in each version."""
    with closing(bind(0)) as unused:
        port = str(unused.getsockname()[1])
    env = environment(
        **own_queues,
        A2A_AUTH="none",
        A2A_BLOBS=f"file:{tmp_path}/blobs",
        A2A_PUSH_ALLOWED_HOSTS="127.0.0.1,example.com",
        A2A_PUSH_ISSUER=f"http://127.0.0.1:{port}",
    )
    commands = {
        "worker": ("--agent", f"{AGENT}:agent"),
        "sweep": (),
        "push": (),
        "api": ("--card", str(AGENT.with_name("agent_card.json")), "--port", port),
    }
    with ExitStack() as stack:
        for name, arguments in commands.items():
            output = tmp_path / f"{name}.log"
            api = stack.enter_context(running(name, *arguments, env=env, output=output))
        url = api.wait_for(r"A2A at (\S+),")
        only = [word for check in files.CHECKS for word in ("--only", check.name)]
        code = live.main(["--endpoint", url, "--reports", str(tmp_path / "reports"), *only])
    (report,) = (tmp_path / "reports").glob("*/report.json")
    findings = json.loads(report.read_text(encoding="utf-8"))["findings"]
    assert [(one["name"], one["outcome"]) for one in findings] == [
        (check.name, "passed") for check in files.CHECKS
    ]
    assert code == 0
