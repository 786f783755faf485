"""The places of a project's files, none of which is outside of the project."""

from __future__ import annotations

import os
from pathlib import Path

from a2a_serverless.errors import ConfigurationError


def own_place(project: Path, name: str) -> Path:
    """Return the place of a project's file that may be written.

    Raises:
        ConfigurationError: a link leads out of the project.
    """
    root, place = os.path.realpath(project), project
    for part in Path(name).parts:
        place /= part
        target = os.path.realpath(place)
        if os.path.commonpath([root, target]) != root:
            raise ConfigurationError(
                f"{place} leads out of the project, to {target}: replace the link by a file or a"
                " folder of the project's own."
            )
    return place
