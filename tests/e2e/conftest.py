"""What the end-to-end tests run against: processes, as a person would start them."""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.e2e.commands import environment, run, running
from tests.support.emulators import dynamodb_local, fauxqs

HERE = Path(__file__).parent
AGENT = f"{HERE / 'probe_agent.py'}:agent"
CARD = str(HERE / "probe_card.json")
ARGUMENTS: Mapping[str, tuple[str, ...]] = {
    "api": ("--card", CARD, "--port", "0"),
    "worker": ("--agent", AGENT),
    "push": (),
    "sweep": (),
}
"""Those of the commands of a deployment."""


@dataclass(frozen=True)
class Served:
    """A running agent: its URL, its folder, and the file of its `dev`."""

    url: str
    folder: Path
    file: Path = Path()

    def release(self, task_id: str) -> None:
        (self.folder / f"release-{task_id}").touch()


@pytest.fixture(scope="session")
def emulators(installed_emulators: None) -> Iterator[dict[str, str]]:
    """The variables that lead to DynamoDB Local and fauxqs, empty and of these tests alone.

    Of their own, because `provision` makes a streamed table, and a second one slows both.
    """
    with dynamodb_local() as dynamodb, fauxqs() as sqs:
        yield {**dynamodb.environment(), **sqs.environment()}


def names_of_queues() -> dict[str, str]:
    prefix = f"e2e-{uuid.uuid4().hex[:8]}"
    return {
        "A2A_QUEUE": f"{prefix}-operations.fifo",
        "A2A_QUARANTINE_QUEUE": f"{prefix}-quarantine.fifo",
        "A2A_DEAD_LETTER_QUEUE": f"{prefix}-dead-letters.fifo",
        "A2A_UNDECODABLE_QUEUE": f"{prefix}-undecodable",
    }


@pytest.fixture
def fresh_names() -> dict[str, str]:
    return {"A2A_TABLE": f"e2e-{uuid.uuid4().hex[:8]}-tasks", **names_of_queues()}


@pytest.fixture(scope="session")
def provisioned(emulators: dict[str, str]) -> dict[str, str]:
    """What `a2a-serverless provision` printed, beside the emulators' variables."""
    return provision(emulators)


@pytest.fixture(scope="module")
def own_queues(provisioned: dict[str, str]) -> dict[str, str]:
    """The same with queues that no worker has read from.

    A worker that was ended leaves a long poll behind, and the emulator does not see that its client
    is gone: a message that it hands over there comes again a minute later.
    """
    return provision({**provisioned, **names_of_queues()})


def provision(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables, and what `a2a-serverless provision` prints with them."""
    made = run("provision", env=environment(**variables))
    assert made.returncode == 0, made.stderr
    return {**variables, **dict(line.split("=", 1) for line in made.stdout.splitlines())}


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`a2a-serverless dev` with a blocking send of at most 2 s."""
    folder = tmp_path_factory.mktemp("dev")
    env = environment(PROBE_FOLDER=str(folder), A2A_BLOCKING_LIMIT_S="2")
    arguments = ("dev", "--agent", AGENT, "--card", CARD, "--port", "0")
    with running(*arguments, env=env, output=folder / "dev.log") as stack:
        yield Served(url=stack.url, folder=folder, file=folder / "dev.log.db")
        assert stack.end() == 0, stack.said()
