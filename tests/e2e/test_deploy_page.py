"""The first call of the page `deploy`, run as it stands there, on a stack of this process."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest
from pydantic import SecretStr

from a2a_serverless.settings import Settings
from a2a_serverless_tools.local.stack import Options, Stack
from tests.e2e.commands import COMMAND, environment, ran
from tests.support import pages

ROOT = Path(__file__).parents[2]
AGENT = Options(
    agent=f"{ROOT / 'functions/worker/agent.py'}:agent", card=ROOT / "functions/api/agent_card.json"
)
KEY = "a-key-of-twenty-characters"
AWS = """
set -eu
aws() {{
    case "$*" in
        *describe-stacks*a2a-serverless*ApiKeys*) echo arn:of-the-secret ;;
        *describe-stacks*a2a-serverless*Endpoint*) echo {url}/ ;;
        *get-secret-value*arn:of-the-secret*) echo '{{"default": "{key}"}}' ;;
        *) return 1 ;;
    esac
}}
a2a-serverless() {{ "{python}" -m {command} "$@"; }}
"""
"""The command line of AWS, as far as the section asks it, and ours."""


@pytest.mark.long
def test_the_first_call_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key comes out of the stack's secret, and curl and our command get the agent's plan."""
    shell = shutil.which("bash")
    assert shell is not None
    monkeypatch.setenv("AGENT_CHUNK_DELAY_S", "0")
    section = pages.section("The first call")
    commands = "".join(re.findall(r"^(?:    .*)?\n", section, re.MULTILINE))
    assert all(word in commands for word in ("KEY=$(aws", "curl ", "A2A_API_KEY=$KEY")), commands
    settings = Settings.model_validate({"auth": "api-key", "api_keys": SecretStr(f"default={KEY}")})
    with Stack(settings, AGENT) as stack:
        aws = AWS.format(url=stack.url, key=KEY, python=sys.executable, command=COMMAND)
        typed = aws + re.sub("^    ", "", commands, flags=re.MULTILINE)
        done = ran([shell], input=typed, env=environment(no_proxy="*"))
    assert done.returncode == 0, done.stderr
    assert '"state":"TASK_STATE_COMPLETED"' in done.stdout.replace(": ", ":")
    assert done.stdout.count("# Lisbon in 2 days") == 2
