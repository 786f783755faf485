"""The hashed locks."""

import re
from pathlib import Path

import pytest
import yaml

PIN = re.compile(r"^(?P<name>[a-z0-9._-]+)==(?P<version>\S+)", re.MULTILINE)
TOOLS = ("tools/aws", "tools/sam", "tools/checkov", "tools/release", "tools/zensical")
LOCKS = ("runtime", "local", "worker", "dev", *TOOLS)
WRITTEN = "src/a2a_serverless_tools/scaffold/written"
WORKFLOWS = (".github/workflows/release.yml", f"{WRITTEN}/deploy.yml")
BUILDS = ("Makefile", f"{WRITTEN}/Makefile", *WORKFLOWS)


def pins(project: Path, lock: str) -> dict[str, str]:
    """Package names and versions of a lock."""
    return dict(PIN.findall((project / "requirements" / f"{lock}.txt").read_text(encoding="utf-8")))


def test_locks_name_no_index(project: Path) -> None:
    """A lock pins and hashes; where packages come from is the machine's affair."""
    for lock in LOCKS:
        text = (project / "requirements" / f"{lock}.txt").read_text(encoding="utf-8")
        assert "://" not in text, lock
        assert "--index" not in text, lock
        assert text.count("==") >= len(pins(project, lock)) > 0, lock
        assert "--hash=sha256:" in text, lock
    text = (project / "tests" / "emulators" / "package-lock.json").read_text(encoding="utf-8")
    assert '"resolved": "http' not in text


def test_what_ships_is_what_is_tested(project: Path) -> None:
    """Each package of the layer and of the local stack has the version of the development lock.

    The layer carries no SDK of AWS's: Lambda's runtime has it.
    """
    for lock in ("runtime", "local", "worker"):
        assert pins(project, lock).items() <= pins(project, "dev").items(), lock
    assert pins(project, "runtime").keys().isdisjoint({"boto3", "botocore", "s3transfer"})


def test_actions_are_commits(project: Path) -> None:
    """A workflow takes each action by its commit, never by a tag; its version stands beside it.

    The workflows of the repository and of a project agree on each action.
    """
    texts = [(project / name).read_text(encoding="utf-8") for name in WORKFLOWS]
    found = [re.findall(r"uses: (.*)", text) for text in texts]
    assert all(found)
    used = {line for each in found for line in each}
    commit = r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+"
    assert [each for each in used if not re.fullmatch(commit, each)] == []
    assert len({line.partition("@")[0] for line in used}) == len(used)


@pytest.mark.parametrize("name", BUILDS)
def test_build_tools_have_hashes(project: Path, name: str) -> None:
    """What builds, checks and deploys is installed from locks, by hash; nothing is resolved there.

    The exceptions build nothing that is deployed: the release tries what a user of the package
    does, without any right, and `make newest` what is newer than the locks.
    """
    lines = (project / name).read_text(encoding="utf-8").splitlines()
    installs = [each for each in lines if re.search(r"pip (install|sync)|uvx|tool run|pipx", each)]
    unhashed = [each for each in installs if "--require-hashes" not in each]
    own = [each for each in unhashed if "--no-deps --no-build-isolation --editable ." in each]
    tried = [each for each in unhashed if '"$(ls dist/*.whl)[local]"' in each]
    newest = [each for each in unhashed if "--python $(NEWEST) " in each]
    assert [each for each in unhashed if each not in {*own, *tried, *newest}] == []
    assert bool(tried) is (name == WORKFLOWS[0])
    for line in lines:
        if re.search(r"\$\(UV\) build ", line):
            assert "--no-build-isolation" in line  # the build backend is that of the lock


def test_a_tried_package_has_no_rights(project: Path) -> None:
    """The job that installs the package as users do may neither write nor ask for a token."""
    workflow = yaml.safe_load((project / WORKFLOWS[0]).read_text(encoding="utf-8"))
    assert workflow["permissions"] == {"contents": "read"}
    assert {name for name, job in workflow["jobs"].items() if "permissions" in job} == {"publish"}
