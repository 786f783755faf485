"""Finds the files from which projects are written: the framework's own, of this version.

`hatch_build.py` runs this file before the package can be imported: it imports nothing of it.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

TEMPLATE: Final = "template.yaml"
AGENT: Final = "functions/worker/agent.py"
CARD: Final = "functions/api/agent_card.json"
CARD_NAME: Final = "agent_card.json"
REQUIREMENTS: Final = "functions/worker/requirements.in"
AGENT_LOCK: Final = "functions/worker/requirements.txt"
LAYER_LOCK: Final = "requirements/runtime.txt"
WORKER_LOCK: Final = "requirements/worker.txt"

PROJECT_FILES: Final = (
    "template.yaml",
    "fargate.yaml",
    "Dockerfile",
    ".dockerignore",
    "samconfig.toml",
    "functions/**/*",
    "layers/runtime/Makefile",
    "requirements/tools/cloud.txt",
    "requirements/tools/sam.txt",
)
"""Patterns of the files of the repository that a project has as well."""

PAGES: Final = ("docs/**/*.md",)
"""Patterns of the pages of the documentation."""
ORDER: Final = "docs/order.toml"
"""The file with the documentation's parts, and the order of their pages."""
SEARCH: Final = "docs/search.toml"
"""The file with the words that readers look for, by the page that answers them."""

PACKAGED_FILES: Final = (
    *PROJECT_FILES,
    *PAGES,
    ORDER,
    SEARCH,
    LAYER_LOCK,
    WORKER_LOCK,
    "examples/*/agent.py",
    "examples/*/agent_card.json",
    "examples/*/requirements.txt",
)
"""Patterns of the repository's files that `hatch_build.py` puts into the wheel."""


def source() -> Path:
    """Return the folder that has the top level of the framework's repository.

    In a checkout that is the repository itself; an installed package has a copy of what it needs.
    """
    packaged = Path(__file__).parent / "repository"
    return packaged if packaged.is_dir() else Path(__file__).resolve().parents[3]


def files(root: Path, patterns: tuple[str, ...]) -> list[Path]:
    """Return the files below `root` that match, without leftovers of runs or of a machine."""
    found = {path for pattern in patterns for path in root.glob(pattern) if path.is_file()}
    return sorted(path for path in found if not _is_left(path.relative_to(root)))


def page_order(root: Path) -> dict[str, list[str]]:
    """Return the names of the pages by the parts of the documentation, each in its order.

    `FOLDER/*` stands for the pages of a folder of docs/ that are not named, by their names.
    """
    order: dict[str, list[str]] = tomllib.loads((root / ORDER).read_text(encoding="utf-8"))
    named = {name for names in order.values() for name in names}
    return {part: [*_pages_of(root, names, named)] for part, names in order.items()}


def sought(root: Path) -> dict[str, str]:
    """Return the words that readers look for, each with the name of the page that answers it."""
    words: dict[str, list[str]] = tomllib.loads((root / SEARCH).read_text(encoding="utf-8"))
    return {each: page for page, listed in words.items() for each in listed}


def _pages_of(root: Path, names: list[str], named: set[str]) -> Iterator[str]:
    for name in names:
        if name.endswith("/*"):
            stems = (path.stem for path in (root / "docs").glob(f"{name}.md"))
            yield from sorted(stem for stem in stems if stem not in named)
        else:
            yield name


def _is_left(path: Path) -> bool:
    return "__pycache__" in path.parts or path.name == ".env" or path.suffix == ".whl"


def _is_framework_template(path: Path) -> bool:
    """Return True if a file is the template of a project of this framework, even if edited."""
    try:
        return "\n  TaskTable:" in path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return False


def project_around(folder: Path) -> Path | None:
    """Return the nearest folder from `folder` upwards that has a template of the framework."""
    for candidate in (folder, *folder.parents):
        if _is_framework_template(candidate / TEMPLATE):
            return candidate
    return None
