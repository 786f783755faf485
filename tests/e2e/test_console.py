"""`a2a-serverless console --stack` on emulators, beside an agent that asks for a key."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
from botocore.stub import Stubber
from pydantic import SecretStr

from a2a_serverless import aws
from a2a_serverless.push.jobs import PushDeadLetter, PushJob
from a2a_serverless.queues.sqs import SqsFifoQueue
from a2a_serverless.settings import Settings
from a2a_serverless.tasks.head import Operation
from a2a_serverless.tasks.rules import Timing
from a2a_serverless_tools import cli
from a2a_serverless_tools.local.stack import Options, Stack
from a2a_serverless_tools.operate import queues as letters
from tests.support.databases import dynamo_storage
from tests.support.messages import request

pytestmark = pytest.mark.emulators

ROOT = Path(__file__).parents[2]
AGENT = f"{ROOT / 'examples/echo_executor/agent.py'}:agent"
CARD = ROOT / "examples/echo_executor/agent_card.json"
KEY = "key-that-the-operator-gives"


@pytest.fixture
def environment(own_queues: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """This process's: it leads to the emulators, and names no table and no queue."""
    for name in own_queues:
        monkeypatch.delenv(name, raising=False)
    for name, value in own_queues.items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)
    monkeypatch.setattr(letters, "WAIT_S", 0)  # the emulator has one server
    aws.forget_clients()
    yield
    aws.forget_clients()


@pytest.fixture(scope="module")
def agent() -> Iterator[str]:
    """The URL of an agent that answers who has the key."""
    settings = Settings(auth="api-key", api_keys=SecretStr(f"ann={KEY}"))
    with Stack(settings, Options(agent=AGENT, card=CARD)) as stack:
        yield stack.url


@contextmanager
def described(outputs: dict[str, str]) -> Iterator[None]:
    """CloudFormation with one stack, of which there is no emulator here."""
    stack = {"StackName": "mine", "StackStatus": "CREATE_COMPLETE"} | {
        "CreationTime": datetime(2026, 11, 22, tzinfo=UTC),
        "Outputs": [{"OutputKey": key, "OutputValue": value} for key, value in outputs.items()],
    }
    with Stubber(aws.client("cloudformation")) as stub:
        stub.add_response("describe_stacks", {"Stacks": [stack]}, {"StackName": "mine"})
        yield


def set_aside(variables: dict[str, str]) -> None:
    """One message in each of the queues that no function reads."""
    unreadable = variables["A2A_UNDECODABLE_QUEUE"]
    operations = SqsFifoQueue(Operation, variables["A2A_QUEUE"], undecodable_queue=unreadable)
    letters = SqsFifoQueue(PushDeadLetter, variables["A2A_PUSH_DEAD_LETTER_QUEUE"])
    job = PushJob(scope="s", task_id="untold", incarnation="i", config_id="crm", version=2)
    why: dict[str, Any] = {"reason": "status 410", "attempts": 1, "failing_since": None}
    letter = PushDeadLetter(job=job, event_id="e", version=2, index=0, **why)

    async def send() -> None:
        assert await operations.keep_undecodable("<b>poison</b>", reason="no JSON", message_id="m")
        await letters.send(letter)

    asyncio.run(send())
    sqs = aws.client("sqs")
    dead = sqs.get_queue_url(QueueName=variables["A2A_DEAD_LETTER_QUEUE"].rpartition("/")[2])
    ids = {"MessageGroupId": "g", "MessageDeduplicationId": "d"}
    sqs.send_message(QueueUrl=dead["QueueUrl"], MessageBody="an operation", **ids)


def overdue(variables: dict[str, str]) -> None:
    storage = dynamo_storage(variables["A2A_TABLE"], timing=Timing(waiting_s=0, lease_s=1))
    asyncio.run(storage.open_task("c", request(), task_id="never-taken"))


Visit = Callable[[httpx.Client, str], None]


def console(visit: Visit, monkeypatch: pytest.MonkeyPatch, said: Callable[[], str]) -> None:
    """Run the command for the stack; `visit` gets a browser that has opened it, and its path."""

    @contextmanager
    def visited() -> Iterator[Any]:
        class Ended:
            def wait(self) -> None:
                url = re.findall(r"http://\S+", said())[0]
                with httpx.Client(trust_env=False, follow_redirects=True, timeout=60) as person:
                    person.get(url)
                    visit(person, url.partition("/open?")[0])

        yield Ended()

    monkeypatch.setattr("a2a_serverless_tools.cli.serving.until_signal", visited)
    assert cli.main(["console", "--stack", "mine", "--region", "us-east-1"]) == 0


def test_the_console_of_a_stack(
    own_queues: dict[str, str],
    environment: None,
    agent: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """What is due and what was set aside; the agent is called with the key that is given."""
    names = ("Table", "Queue", "UndecodableQueue", "DeadLetterQueue", "PushDeadLetterQueue")
    outputs = {name: own_queues["A2A" + re.sub("([A-Z])", r"_\1", name).upper()] for name in names}
    set_aside(own_queues)
    overdue(own_queues)

    def visit(person: httpx.Client, base: str) -> None:
        queues(person, base)
        chatting(person, base, agent)
        card = person.get(f"{base}/card").text
        assert f"<code>{agent}" in card
        assert "Nothing is wrong in it." in card

    with described({**outputs, "Endpoint": f"{agent}/"}):
        console(visit, monkeypatch, lambda: capsys.readouterr().err)


def queues(person: httpx.Client, base: str) -> None:
    """All three are shown as often as they are looked at."""
    for _ in range(2):
        text = person.get(f"{base}/queues").text
        for shown in ("never-taken", "&lt;b&gt;poison", "no JSON", "status 410", "an operation"):
            assert shown in text
        operations = "operations, which are turns and cancels</th>"
        assert re.search(rf'{operations}<td class="number">\d+</td>', text)
        assert "no worker for" in text


def chatting(person: httpx.Client, base: str, agent: str) -> None:
    """Without the key it is refused, with it answered; the page shows neither."""
    for key, status, shown in (("", "HTTP 401", "has refused it"), (KEY, "HTTP 200", "")):
        form = {"context": f"chat-{status[-3:]}", "text": "hello there", "key": key}
        own = {"Origin": base.removesuffix("/_console")}
        talk = person.post(f"{base}/chat", data=form, headers=own)
        wire = person.get(f"{base}/chat/wire", params={"context": form["context"]})
        while "The answer is complete." not in wire.text:  # the test has a limit
            time.sleep(0.02)
            wire = person.get(wire.url)
        assert f"POST {agent}/message:stream" in wire.text
        assert status in wire.text
        talk = person.get(talk.url)
        assert shown in talk.text
        assert KEY not in talk.text + wire.text
