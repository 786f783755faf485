"""The hashed locks."""

import re
from pathlib import Path

import pytest

PIN = re.compile(r"^(?P<name>[a-z0-9._-]+)==(?P<version>\S+)", re.MULTILINE)


def pins(project: Path, lock: str) -> dict[str, str]:
    """Package names and versions of a lock."""
    return dict(PIN.findall((project / "requirements" / f"{lock}.txt").read_text(encoding="utf-8")))


@pytest.mark.parametrize("lock", ["runtime", "local", "worker", "dev"])
def test_locks_name_no_index(project: Path, lock: str) -> None:
    """A lock pins and hashes; where packages come from is the machine's affair."""
    text = (project / "requirements" / f"{lock}.txt").read_text(encoding="utf-8")
    assert "://" not in text
    assert "--index" not in text
    assert text.count("==") >= len(pins(project, lock)) > 0
    assert "--hash=sha256:" in text


def test_layer_leaves_boto3_to_lambda(project: Path) -> None:
    """The layer carries no SDK of AWS's: Lambda's runtime has it."""
    assert pins(project, "runtime").keys().isdisjoint({"boto3", "botocore", "s3transfer"})


@pytest.mark.parametrize("lock", ["runtime", "local", "worker"])
def test_what_ships_is_what_is_tested(project: Path, lock: str) -> None:
    """Each package of the layer and of the local stack has the version of the development lock."""
    assert pins(project, lock).items() <= pins(project, "dev").items()


def test_npm_lock_names_no_registry(project: Path) -> None:
    """The emulators' lock records no download address."""
    text = (project / "tests" / "emulators" / "package-lock.json").read_text(encoding="utf-8")
    assert '"resolved": "http' not in text
