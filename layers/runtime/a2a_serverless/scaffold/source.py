"""Where the files are that projects are written from: the framework's own, of this version."""

from __future__ import annotations

from pathlib import Path
from typing import Final

TEMPLATE: Final = "template.yaml"
AGENT: Final = "functions/worker/agent.py"
CARD: Final = "functions/api/agent_card.json"
CARD_NAME: Final = "agent_card.json"
LAYER_LOCK: Final = "requirements/runtime.txt"


def source() -> Path:
    """Return the folder that has the top level of the framework's repository.

    In a checkout that is the repository itself. An installed package has a copy of what it needs,
    which `hatch_build.py` has put in.
    """
    packaged = Path(__file__).parent / "repository"
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[4]


def is_framework_template(path: Path) -> bool:
    """Return True if a file is the template of a project of this framework, edited or not."""
    try:
        return "\n  TaskTable:" in path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False


def project_around(folder: Path) -> Path | None:
    """Return the nearest folder from `folder` upwards that has a template of the framework."""
    for candidate in (folder, *folder.parents):
        if is_framework_template(candidate / TEMPLATE):
            return candidate
    return None
