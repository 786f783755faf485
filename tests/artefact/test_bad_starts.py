"""Built functions that cannot work end at their start, with one sentence."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.artefact.deployment import Deployment
from tests.artefact.environment import Function, StartError

pytestmark = pytest.mark.emulators


WRONG = [
    ("WorkerFunction", "A2A_TABLE", "", "A2A_TABLE is not set: it names the table."),
    (
        *("SweeperFunction", "A2A_UNDECODABLE_QUEUE", ""),
        "A2A_UNDECODABLE_QUEUE is not set: it names the queue for unreadable messages.",
    ),
    (
        *("PushFunction", "A2A_PUSH_DEAD_LETTER_QUEUE", ""),
        (
            "A2A_PUSH_DEAD_LETTER_QUEUE is not set: "
            "it names the queue for notifications that were given up."
        ),
    ),
    (
        *("ApiFunction", "A2A_AUTH", "prod"),
        "A2A_AUTH: Input should be '', 'api-key', 'oidc', 'api-key+oidc' or 'none'.",
    ),
    (
        *("ApiFunction", "A2A_API_KEYS_SECRET", "other"),
        "The secret other cannot be read: ResourceNotFoundException.",
    ),
]


@pytest.mark.parametrize(("function", "name", "value", "sentence"), WRONG)
def test_a_wrong_setting_stops_the_cold_start(
    deployment: Deployment, tmp_path: Path, function: str, name: str, value: str, sentence: str
) -> None:
    """Lambda is told one sentence that names the setting, before any event is taken."""
    said = start_error(deployment.functions[function], tmp_path, **{name: value})
    assert said == ("ConfigurationError", sentence)


def start_error(function: Function, tmp_path: Path, **variables: str) -> tuple[str, str]:
    """The class and the sentence of the error with which a function does not start."""
    with pytest.raises(StartError) as refused, function.started(tmp_path / "log", **variables):
        pass
    return refused.value.kind, refused.value.sentence


def test_a_card_that_is_no_card_stops_the_cold_start(
    deployment: Deployment, tmp_path: Path
) -> None:
    """The sentence names the card's file."""
    built = deployment.functions["ApiFunction"]
    folder = tmp_path / "function"
    shutil.copytree(built.folder, folder)
    (folder / "agent_card.json").write_text("{")
    kind, sentence = start_error(replace(built, folder=folder), tmp_path)
    assert kind == "ConfigurationError"
    assert sentence.startswith(f"The agent card {folder / 'agent_card.json'} is not a card: ")
