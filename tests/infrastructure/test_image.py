"""The worker's image, made without Docker: its files, its architecture and its configuration.

The long form (`make image`) installs all packages for arm64.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.image import ARM64, build_stage, configuration, stages

IS_LONG = os.environ.get("A2A_IMAGE") == "long"

WITHOUT_PACKAGES = """\
#!/bin/sh
case "$2" in pip | compileall) exit 0 ;; esac
exit 1
"""
"""A Python that installs nothing: what else the Dockerfile does is done."""

ELF_AARCH64 = 183
"""`e_machine` of the ELF header."""


@pytest.fixture(scope="module")
def root(project: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root of an image of this project without the packages of others."""
    root = tmp_path_factory.mktemp("root")
    python = tmp_path_factory.mktemp("bin") / "python"
    python.write_text(WITHOUT_PACKAGES)
    python.chmod(0o755)
    build_stage(project, root, python)
    return root


def contents(root: Path) -> dict[str, bytes]:
    """The files of an image by their paths, which are plain files without a secret, for arm64."""
    every = [path for folder in ("site", "app") for path in (root / folder).rglob("*")]
    assert not [path for path in every if path.is_symlink() or path.name == ".env"]
    found = {str(path.relative_to(root)): path.read_bytes() for path in every if path.is_file()}
    for path, content in found.items():
        assert not path.endswith((".pem", ".key")) or b" PRIVATE KEY-" not in content, path
        is_program = content.startswith(b"\x7fELF")
        assert not is_program or int.from_bytes(content[18:20], "little") == ELF_AARCH64, path
    return found


def test_the_image_is_what_the_worker_needs(root: Path, project: Path) -> None:
    """Its user is not root, and SIGTERM reaches the worker, its first process."""
    config, found = configuration(project), contents(root)
    assert config["ENTRYPOINT"][:4] == ["python", "-m", "a2a_serverless_tools.cli", "worker"]
    assert "site/a2a_serverless_tools/cli/__main__.py" in found
    agent = config["ENTRYPOINT"][config["ENTRYPOINT"].index("--agent") + 1]
    assert agent.partition(":")[0].strip("/") in found
    assert config["ENV"]["PYTHONPATH"] == "/app:/site"
    assert {name: config[name] for name in ("USER", "STOPSIGNAL", "WORKDIR", "VOLUME")} == {
        "USER": "10001",  # by a number it can be told that this is not root
        "STOPSIGNAL": "SIGTERM",
        "WORKDIR": "/app",
        "VOLUME": "/tmp",  # noqa: S108 - all that can be written where the root is read-only
    }


def test_its_folders_hold_framework_and_agent(root: Path, project: Path) -> None:
    """One has the framework, the other one the agent, without what only Lambda needs."""
    copies = [words for name, words in stages(project)[-1] if name == "COPY"]
    assert copies == ["--from=build /site /site", "--from=build /app /app"]
    found = contents(root)
    for place, name in (
        ("src", "a2a_serverless_tools/cli/processes.py"),
        ("layers/runtime", "a2a_serverless/worker/adapter.py"),
    ):
        assert found[f"site/{name}"] == (project / place / name).read_bytes()
    assert found["app/agent.py"] == (project / "functions/worker/agent.py").read_bytes()
    left_out = {"Makefile", "worker.py", "requirements.in", "requirements.txt"}
    assert not {path for path in found if path.removeprefix("app/") in left_out}
    assert not (root / "app/wheels").exists()


@pytest.mark.skipif(not IS_LONG, reason="installs fifty packages for arm64: `make image`")
@pytest.mark.timeout(900)
def test_the_whole_image(project: Path, tmp_path: Path) -> None:
    """All packages of the lock are in it, for arm64, with their bytecode, and nothing twice."""
    build_stage(project, tmp_path, Path(sys.executable), pip_options=ARM64)
    found = contents(tmp_path)
    lock = (project / "requirements/worker.txt").read_text(encoding="utf-8")
    locked = [Requirement(line) for line in re.findall(r"^(\S+==.*?) \\$", lock, re.MULTILINE)]
    python = {"python_version": "3.13", "python_full_version": "3.13.0"}
    wanted = {one.name for one in locked if one.marker is None or one.marker.evaluate(python)}
    infos = [path.name.split("-")[0] for path in (tmp_path / "site").glob("*.dist-info")]
    assert sorted(map(canonicalize_name, infos)) == sorted(map(canonicalize_name, wanted))
    assert [path for path in found if path.endswith(".so")]
    compiled = [path for path in found if path.endswith(".cpython-313.pyc")]
    assert str(tmp_path).encode() not in found[compiled[0]]
