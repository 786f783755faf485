from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.artefact.deployment import Deployment
from tests.artefact.environment import StartError

pytestmark = pytest.mark.emulators


@pytest.mark.parametrize(
    ("function", "variables", "sentence"),
    [
        ("WorkerFunction", {"A2A_TABLE": ""}, "A2A_TABLE is not set: it names the table."),
        (
            "SweeperFunction",
            {"A2A_UNDECODABLE_QUEUE": ""},
            "A2A_UNDECODABLE_QUEUE is not set: it names the queue for unreadable messages.",
        ),
        (
            "PushFunction",
            {"A2A_PUSH_DEAD_LETTER_QUEUE": ""},
            (
                "A2A_PUSH_DEAD_LETTER_QUEUE is not set: "
                "it names the queue for notifications that were given up."
            ),
        ),
        (
            "ApiFunction",
            {"A2A_AUTH": "prod"},
            "A2A_AUTH: Input should be '', 'api-key', 'oidc', 'api-key+oidc' or 'none'.",
        ),
        (
            "ApiFunction",
            {"A2A_API_KEYS_SECRET": "other"},
            "The secret other cannot be read: ResourceNotFoundException.",
        ),
    ],
)
def test_a_wrong_setting_stops_the_cold_start(
    deployment: Deployment,
    tmp_path: Path,
    function: str,
    variables: dict[str, str],
    sentence: str,
) -> None:
    """Lambda is told one sentence that names the setting, before any event is taken."""
    built = deployment.functions[function]
    with (
        pytest.raises(StartError) as refused,
        built.started(tmp_path / "start.log", **variables),
    ):
        pass
    assert refused.value.kind == "ConfigurationError"
    assert refused.value.sentence == sentence


def test_a_card_that_is_no_card_stops_the_cold_start(
    deployment: Deployment, tmp_path: Path
) -> None:
    """The sentence names the card's file."""
    built = deployment.functions["ApiFunction"]
    folder = tmp_path / "function"
    shutil.copytree(built.folder, folder)
    (folder / "agent_card.json").write_text("{")
    with (
        pytest.raises(StartError) as refused,
        replace(built, folder=folder).started(tmp_path / "start.log"),
    ):
        pass
    assert refused.value.kind == "ConfigurationError"
    assert refused.value.sentence.startswith(
        f"The agent card {folder / 'agent_card.json'} is not a card: "
    )
