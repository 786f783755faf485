"""Makes what a package has and the repository lacks: its page on an index, and copies of files.

The copies are those that projects are written from, and the pages of the documentation.
"""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.metadata.plugin.interface import MetadataHookInterface

SCAFFOLD = "src/a2a_serverless_tools/scaffold"
SPECIFICATION = "https://a2a-protocol.org/latest/specification/"

LINK = re.compile(r"\[([^\]]*)\]\((?!https:)([^)#]*)(#[^)]*)?\)")
"""A link to a file of the repository, or to a heading of the page itself."""
PICTURE = re.compile(r"<picture>.*?</picture>\s*", re.DOTALL)
"""A drawing of the repository, which the package lacks."""
PAGE = re.compile(r"docs/.*?([a-z-]+)\.md")


class Readme(MetadataHookInterface):
    """The README, and the addresses of the project, as an index shows them.

    `address` is where the repository is. While it is empty, a link to a page of the documentation
    becomes the command that prints it, one to another file becomes its text, and drawings go.
    """

    def update(self, metadata: dict[str, Any]) -> None:
        address = self.config["address"].rstrip("/")
        readme = Path(self.root, "README.md").read_text(encoding="utf-8")
        files = f"{address}/blob/v{metadata['version']}" if address else ""
        text = LINK.sub(lambda link: shown(files, *link.groups("")), readme)
        drawings = rf'\1="{address}/raw/v{metadata["version"]}/'
        text = PICTURE.sub(
            lambda it: re.sub(r'(src|srcset)="(?!https:)', drawings, it[0]) if address else "", text
        )
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
        metadata["urls"] = {"A2A specification": SPECIFICATION}
        if address:
            metadata["urls"] |= {"Source": address, "Changelog": f"{files}/CHANGELOG.md"}


def shown(files: str, text: str, path: str, heading: str) -> str:
    """Return what stands for a link: one with an address, or a command, or its text."""
    if files:
        return f"[{text}]({files}/{path or 'README.md'}{heading})"
    if not (page := PAGE.fullmatch(path)):
        return text
    command = f"`a2a-serverless docs {page[1]}`"
    return command if text.endswith(".md") else f"{text} ({command})"


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
