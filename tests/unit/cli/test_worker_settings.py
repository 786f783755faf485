"""The settings of a worker in pull mode: its own visibility, and a limit that SQS can keep."""

from __future__ import annotations

from argparse import Namespace

import pytest

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.settings import load_settings
from a2a_serverless.worker.adapter import PULL_LIMIT_S
from a2a_serverless_tools.cli.processes import VISIBILITY_S, _settings


def test_a_dead_worker_is_replaced_after_half_a_minute(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker's visibility is the default, unless the variable sets it, even to the function's."""
    monkeypatch.delenv("A2A_VISIBILITY_S", raising=False)
    assert _settings(load_settings({}), Namespace(turn_limit=None)).visibility_s == VISIBILITY_S
    monkeypatch.setenv("A2A_VISIBILITY_S", "60")
    chosen = _settings(load_settings(), Namespace(turn_limit=None))
    assert chosen.visibility_s == 60


def test_the_option_comes_before_the_variable() -> None:
    """`--turn-limit` is the limit of a turn, else A2A_TURN_LIMIT_S is, else there is none."""
    settings = load_settings({"A2A_TURN_LIMIT_S": "60"})
    assert _settings(settings, Namespace(turn_limit=90.0)).turn_limit_s == 90
    assert _settings(settings, Namespace(turn_limit=None)).turn_limit_s == 60
    assert _settings(load_settings({}), Namespace(turn_limit=None)).turn_limit_s == 0


@pytest.mark.parametrize("named", ["--turn-limit", "A2A_TURN_LIMIT_S"])
def test_a_limit_beyond_the_queues_is_refused(named: str) -> None:
    """SQS keeps a message for twelve hours; one sentence says how long a turn may run."""
    too_long = PULL_LIMIT_S + 1
    variables = {} if named == "--turn-limit" else {named: str(too_long)}
    option = None if variables else too_long
    with pytest.raises(ConfigurationError, match=f"^{named} 41401 is too long.* 41400 s"):
        _settings(load_settings(variables), Namespace(turn_limit=option))
