"""Puts the files that projects are written from into the wheel: those of the repository itself."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SCAFFOLD = "src/a2a_serverless_tools/scaffold"


class RepositoryFiles(BuildHookInterface):  # type: ignore[type-arg]
    """A checkout is used as it is; a wheel gets a copy."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        root = Path(self.root)
        source = runpy.run_path(str(root / SCAFFOLD / "source.py"))
        for file in source["files"](root, source["PACKAGED_FILES"]):
            name = file.relative_to(root).as_posix()
            build_data["force_include"][str(file)] = (
                f"a2a_serverless_tools/scaffold/repository/{name}"
            )
