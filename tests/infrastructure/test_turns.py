"""The parameters of turns, beside the worker's settings."""

from __future__ import annotations

from typing import Any

import pytest

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.settings import SHARED_SPARE_S, load_settings
from tests.infrastructure.test_address import refused

Json = dict[str, Any]


def test_every_pair_of_timeouts_is_decided(document: Json) -> None:
    """A turn's limit is at least 75 s below its worker's, here and at the function's start."""
    parameters = document["Parameters"]
    for worker in parameters["WorkerTimeout"]["AllowedValues"]:
        for turn in parameters["TurnTimeout"]["AllowedValues"]:
            chosen = {"WorkerTimeout": worker, "TurnTimeout": turn, "WorkerTurns": "2"}
            fits = bool(turn) and int(turn) + SHARED_SPARE_S <= int(worker)
            assert (refused(document, **chosen) == []) is fits, chosen
            settings = load_settings(
                {
                    "A2A_WORKER_TURNS": "2",
                    "A2A_RUN_LIMIT_S": worker,
                    **({"A2A_TURN_LIMIT_S": turn} if turn else {}),
                }
            )
            if fits:
                settings.check_sharing()
            else:
                with pytest.raises(ConfigurationError, match="A2A_TURN_LIMIT_S"):
                    settings.check_sharing()


def test_the_bounds_of_turns_are_those_of_the_setting(document: Json) -> None:
    """Defaults agree, and a value beyond the bounds is refused in both places."""
    parameter = document["Parameters"]["WorkerTurns"]
    assert load_settings({}).worker_turns == parameter["Default"]
    for value in (parameter["MinValue"] - 1, parameter["MaxValue"] + 1):
        with pytest.raises(ConfigurationError, match="A2A_WORKER_TURNS"):
            load_settings({"A2A_WORKER_TURNS": str(value)})
