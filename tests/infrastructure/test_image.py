"""The worker's image, made without Docker: its layers, its architecture and its configuration.

The long form (`make image`) installs all packages for arm64, and leaves the layout in build/image.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tests.support import oci
from tests.support.image import ARM64, build_stage
from tests.support.oci import Image

IS_LONG = os.environ.get("A2A_IMAGE") == "long"

WITHOUT_PACKAGES = """\
#!/bin/sh
case "$2" in pip | compileall) exit 0 ;; esac
exit 1
"""
"""A Python that installs nothing: what else the Dockerfile does is done."""


@pytest.fixture(scope="module")
def layout(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The image of this project without the packages of others."""
    root = tmp_path_factory.mktemp("root")
    python = tmp_path_factory.mktemp("bin") / "python"
    python.write_text(WITHOUT_PACKAGES)
    python.chmod(0o755)
    build_stage(project, root, python)
    folder = tmp_path_factory.mktemp("image") / "layout"
    oci.write(project, root, folder)
    return folder


@pytest.fixture(scope="module")
def image(layout: Path) -> Image:
    return oci.read(layout)


def test_the_image_is_what_the_dockerfile_says(image: Image, project: Path) -> None:
    """It is for arm64, its user is not root, and SIGTERM reaches the worker, its first process."""
    assert oci.faults(image, project) == []
    config = image.config["config"]
    assert config["Entrypoint"][:4] == ["python", "-m", "a2a_serverless_tools.cli", "worker"]
    assert config["User"] == "10001"
    assert config["StopSignal"] == "SIGTERM"
    assert config["WorkingDir"] == "/app"


def test_its_layers_hold_framework_and_agent(image: Image, project: Path) -> None:
    """One layer has the framework, the other one the agent, without what only Lambda needs."""
    assert oci.copied(project) == ["/site", "/app"]
    for place, name in (
        ("src", "a2a_serverless_tools/cli/processes.py"),
        ("layers/runtime", "a2a_serverless/worker/adapter.py"),
    ):
        assert image.contents[f"site/{name}"] == (project / place / name).read_bytes()
    agent = (project / "functions/worker/agent.py").read_bytes()
    assert image.contents["app/agent.py"] == agent
    left_out = {"Makefile", "worker.py", "requirements.in", "requirements.txt", "wheels", ".env"}
    assert not {path for path in image.files if path.removeprefix("app/") in left_out}


@pytest.mark.skipif(not IS_LONG, reason="installs fifty packages for arm64: `make image`")
@pytest.mark.timeout(900)
def test_the_whole_image(project: Path, tmp_path: Path) -> None:
    """All packages of the lock are in it, for arm64, with their bytecode, and nothing twice."""
    root = tmp_path / "root"
    root.mkdir()
    build_stage(project, root, Path(sys.executable), pip_options=ARM64)
    folder = project / "build" / "image"
    shutil.rmtree(folder, ignore_errors=True)
    oci.write(project, root, folder)
    image = oci.read(folder)
    assert oci.faults(image, project) == []
    lock = (project / "requirements/worker.txt").read_text(encoding="utf-8")
    locked = [Requirement(line) for line in re.findall(r"^(\S+==.*?) \\$", lock, re.MULTILINE)]
    python = {"python_version": "3.13", "python_full_version": "3.13.0"}
    wanted = {one.name for one in locked if one.marker is None or one.marker.evaluate(python)}
    assert image.packages == {name.replace("_", "-").replace(".", "-") for name in wanted}
    machine_code = [path for path in image.contents if path.endswith(".so")]
    assert machine_code
    compiled = [path for path in image.contents if path.endswith(".cpython-313.pyc")]
    assert str(root).encode() not in image.contents[compiled[0]]
