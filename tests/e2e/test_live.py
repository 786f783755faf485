"""The live checks, against a stack of one's own machine on the emulators."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from a2a_serverless_tools.local.sockets import bind
from tests.e2e.commands import environment, running
from tests.live import __main__ as live
from tests.live import agent, streams

pytestmark = pytest.mark.emulators

AGENT = Path(agent.__file__)


LATE_S = 3.0
"""A step may be late on a machine that is busy; one that is buffered is 3.5 s off."""


@pytest.mark.timeout(300)
def test_what_needs_no_account_passes(
    own_queues: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On real HTTP, DynamoDB and SQS no check fails; only AWS's own ones are not possible."""
    monkeypatch.setattr(streams, "LATE_S", LATE_S)
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
        code = live.main(["--endpoint", url, "--reports", str(tmp_path / "reports")])
    (report,) = (tmp_path / "reports").glob("*/report.json")
    findings = json.loads(report.read_text(encoding="utf-8"))["findings"]
    failed = [(one["name"], one["says"]) for one in findings if one["outcome"] == "failed"]
    assert (failed, code) == ([], 0)
    reasons = Counter(one["says"] for one in findings if one["outcome"] != "passed")
    reasons.pop("node is missing", None)
    assert reasons == {"needs a stack on AWS, and was given an address alone": 12}
