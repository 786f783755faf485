"""Wheels that tests make, in place of those of an index."""

from __future__ import annotations

import zipfile
from pathlib import Path


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    *requires: str,
    size: int = 0,
    requires_python: str = ">=3",
) -> None:
    """Make a wheel with one module."""
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    metadata.append(f"Requires-Python: {requires_python}")
    metadata += [f"Requires-Dist: {requirement}" for requirement in requires]
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}/__init__.py", "x" * size)
        archive.writestr(f"{info}/METADATA", "\n".join([*metadata, ""]))
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
