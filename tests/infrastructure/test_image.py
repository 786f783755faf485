"""The worker's image, made without Docker: its layers, its architecture and its configuration.

The long form (`make image`) installs all packages for arm64, and leaves the layout in build/image.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tarfile
from collections.abc import Callable
from dataclasses import replace
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


PRIVATE_KEY = b"-----BEGIN PRIVATE KEY-----"


def elf(machine: int) -> bytes:
    return b"\x7fELF" + bytes(14) + machine.to_bytes(2, "little")


def with_config(image: Image, **changed: object) -> Image:
    config = {**image.config["config"], **changed}
    return replace(image, config={**image.config, "config": config})


def with_file(image: Image, path: str, content: bytes = b"", mode: int = 0o644) -> Image:
    entry = tarfile.TarInfo(path)
    entry.mode = mode
    files, contents = {**image.files, path: entry}, {**image.contents, path: content}
    return replace(image, files=files, contents=contents)


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (lambda image: with_config(image, User="root"), "its user is root"),
        (lambda image: with_config(image, User="0:0"), "its user is root"),
        (lambda image: with_config(image, StopSignal="SIGKILL"), "not stopped by SIGTERM"),
        (lambda image: with_config(image, Volumes={}), "no temporary files"),
        (lambda image: with_config(image, Entrypoint=["/bin/sh", "-c"]), "gets no signal"),
        (lambda image: replace(image, platform={"architecture": "amd64"}), "not for arm64"),
        (lambda image: with_file(image, "site/x.so", elf(62)), "another architecture"),
        (lambda image: with_file(image, "app/.env"), "app/.env holds a secret"),
        (lambda image: with_file(image, "app/x.pem", PRIVATE_KEY), "app/x.pem holds a secret"),
        (lambda image: with_file(image, "app/open", mode=0o666), "changed by the worker"),
        (lambda image: with_file(image, "etc/passwd"), "not of the layer"),
        (lambda image: replace(image, contents={}), "app/agent.py is not there"),
    ],
)
def test_an_image_that_is_wrong_is_told(
    image: Image, project: Path, changed: Callable[[Image], Image], told: str
) -> None:
    """Each thing that is checked is found where it is not so."""
    found = oci.faults(changed(image), project)
    assert any(told in fault for fault in found), found


def test_machine_code_for_arm64_is_right(image: Image, project: Path) -> None:
    """The architecture is read from the files, not from their names."""
    assert oci.faults(with_file(image, "site/x86_64.so", elf(183)), project) == []


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
