"""`api`, `worker`, `sweep` and `push` in one process, on one file."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.settings import Settings
from a2a_serverless_tools.local.stack import GATEWAY_HEADER_BYTES, Options, Stack
from tests.support.a2a_calls import Caller

ROOT = Path(__file__).parents[3]
AGENT = f"{ROOT / 'functions' / 'worker' / 'agent.py'}:agent"
CARD = ROOT / "functions" / "api" / "agent_card.json"
MEETING = f"{Path(__file__).parent / 'meeting_agent.py'}:agent"
TURNS = 3
KEY = "a-key-of-twenty-characters"
FOREIGN = {"Origin": "https://elsewhere.example"}


@pytest.mark.parametrize("auth", ["none", "api-key"])
def test_pages_are_refused_where_callers_are_not_known(auth: str) -> None:
    """Without keys a request of another origin's page gets 403; with a key it is answered."""
    settings = Settings.model_validate({"auth": auth, "api_keys": SecretStr(f"ann={KEY}")})
    options = Options(agent=AGENT, card=CARD)
    with Stack(settings, options) as stack, httpx.Client(trust_env=False) as http:
        headers = {"A2A-Version": "1.0", "X-API-Key": KEY}
        assert http.get(f"{stack.url}/tasks", headers=headers).status_code == 200
        foreign = http.get(f"{stack.url}/tasks", headers=headers | FOREIGN)
    assert foreign.status_code == (403 if auth == "none" else 200)


def test_turns_share_a_local_worker() -> None:
    """One worker runs as many turns at a time as a deployed one."""
    settings = Settings(auth="none", worker_turns=5, turn_limit_s=60)
    options = Options(agent=MEETING, card=CARD, concurrency=1)
    with Stack(settings, options) as stack, Caller(stack.url) as caller:
        for task in [caller.send(waits=False) for _ in range(TURNS)]:
            caller.until("COMPLETED", task["id"])


EDITED = """
import asyncio
from pathlib import Path
from a2a_serverless.worker import Worker

class Agent(Worker):
    async def handle(self, ctx):
        while ctx.user_text == "hold" and not Path("GATE").exists():
            await asyncio.sleep(0.02)
        await ctx.complete("first")

agent = Agent
"""


def test_an_edit_reaches_a_turn_beside_one_that_runs(tmp_path: Path) -> None:
    """Turns that share one worker: each ends with the code that it began with."""
    source, gate = tmp_path / "agent.py", tmp_path / "gate"
    source.write_text(EDITED.replace("GATE", str(gate)))
    settings = Settings(auth="none", worker_turns=5, turn_limit_s=60)
    options = Options(agent=f"{source}:agent", card=CARD, concurrency=1, loads="changed")
    with Stack(settings, options) as stack, Caller(stack.url) as caller:
        held = caller.send("hold", waits=False)["id"]
        caller.until("WORKING", held)
        source.write_text(source.read_text().replace("first", "edited"))
        quick = caller.send("quick")
        gate.touch()
        ended = caller.until("COMPLETED", held)
    answers = [task["artifacts"][0]["parts"][0]["text"] for task in (ended, quick)]
    assert answers == ["first", "edited"]


def test_a_stack_with_turns_that_do_not_fit_does_not_start() -> None:
    """The start says which setting is missing, and not the first task."""
    options = Options(agent=MEETING, card=CARD)
    with (
        pytest.raises(ConfigurationError, match="A2A_TURN_LIMIT_S"),
        Stack(Settings(auth="none", worker_turns=5), options),
    ):
        pass


def test_headers_that_api_gateway_refuses_are_refused() -> None:
    """An author learns of the limit before the deployment."""
    with (
        Stack(Settings(auth="none"), Options(agent=AGENT, card=CARD)) as stack,
        httpx.Client(trust_env=False) as http,
    ):
        headers = {"A2A-Version": "1.0", "X-Long": "x" * GATEWAY_HEADER_BYTES}
        assert http.get(f"{stack.url}/tasks", headers=headers).status_code == 431


def test_an_agent_that_blocks_holds_up_no_other_turn(tmp_path: Path) -> None:
    """Each worker has a thread, and an instance of the agent."""
    source, gate = tmp_path / "agent.py", tmp_path / "gate"
    source.write_text(BLOCKING.replace("GATE", str(gate)))
    options = Options(agent=f"{source}:agent", card=CARD, concurrency=2)
    settings = Settings(auth="none", blocking_limit_s=20)
    with Stack(settings, options) as stack, Caller(stack.url) as caller:
        caller.send("block", waits=False)
        assert caller.send("quick")["status"]["state"] == "TASK_STATE_COMPLETED"
        gate.touch()


BLOCKING = """
import time
from pathlib import Path
from a2a_serverless.worker import Worker

class Agent(Worker):
    async def handle(self, ctx):
        while ctx.user_text == "block" and not Path("GATE").exists():
            time.sleep(0.02)
        await ctx.complete("done")

agent = Agent
"""
