"""Finds the developer's agent and card when the command line does not name them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from a2a_serverless.errors import ConfigurationError

_AGENT = Path("functions/worker/agent.py")
_CARD = Path("functions/api/agent_card.json")


def agent_spec(named: str | None) -> str:
    """Return the agent as `FILE.py:NAME`.

    The first of: the argument, `A2A_AGENT`, functions/worker/agent.py of the project, ./agent.py.

    Raises:
        ConfigurationError: the file does not exist.
    """
    spec = named or os.environ.get("A2A_AGENT") or f"{_found(_AGENT) or 'agent.py'}:agent"
    path, _, name = spec.rpartition(":")
    if not path or not name:
        raise ConfigurationError(f"--agent {spec} must have the form FILE.py:NAME.")
    if not Path(path).is_file():
        msg = f"There is no agent at {path}; name one with --agent FILE.py:NAME."
        raise ConfigurationError(msg)
    return spec


def card_path(named: str | None) -> Path:
    """Return the agent card's file.

    The first of: the argument, `A2A_CARD`, functions/api/agent_card.json of the project,
    ./agent_card.json.

    Raises:
        ConfigurationError: the file does not exist.
    """
    path = Path(named or os.environ.get("A2A_CARD") or _found(_CARD) or "agent_card.json")
    if not path.is_file():
        raise ConfigurationError(f"There is no agent card at {path}; name one with --card FILE.")
    return path


def _found(relative: Path) -> Path | None:
    """Return `relative` beside the nearest template.yaml that has it."""
    for folder in _folders():
        if (folder / "template.yaml").is_file() and (folder / relative).is_file():
            found = folder / relative
            is_below = found.is_relative_to(Path.cwd())
            return found.relative_to(Path.cwd()) if is_below else found
    return None


def _folders() -> Iterator[Path]:
    here = Path.cwd()
    yield here
    yield from here.parents
    yield from Path(__file__).resolve().parents
