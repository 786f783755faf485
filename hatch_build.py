"""Puts the files that projects are written from into the wheel: those of the repository itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGED = "a2a_serverless/scaffold/repository"
SOURCES = (
    "template.yaml",
    "samconfig.toml",
    "functions/**/*",
    "layers/runtime/Makefile",
    "requirements/runtime.txt",
    "examples/*/agent.py",
    "examples/*/agent_card.json",
    "examples/*/requirements.txt",
)


class RepositoryFiles(BuildHookInterface):  # type: ignore[type-arg]
    """A checkout is used as it is; a wheel gets a copy."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        root = Path(self.root)
        for file in sorted(path for pattern in SOURCES for path in root.glob(pattern)):
            if file.is_file() and "__pycache__" not in file.parts and file.name != ".env":
                name = file.relative_to(root).as_posix()
                build_data["force_include"][str(file)] = f"{PACKAGED}/{name}"
