"""`upgrade`: three-way merges of a project's files over versions of the framework."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.scaffold.project import Project, write
from a2a_serverless.scaffold.source import PACKAGED_FILES, files
from a2a_serverless.scaffold.upgrade import Upgrade, plan

PARAMETER = """\
  {name}:
    Type: String
    Default: ""
    Description: New in this version

Rules:
"""


@pytest.fixture
def versions(tmp_path: Path, project: Path) -> dict[str, Path]:
    """The framework's top level as it is, and as two later versions change it."""
    found = {}
    for number, version in enumerate(("0.2.0", "0.3.0", "0.4.0")):
        root = tmp_path / "versions" / version
        names = [path.relative_to(project) for path in files(project, PACKAGED_FILES)]
        write(root, {name.as_posix(): (project / name).read_bytes() for name in names})
        template = (root / "template.yaml").read_text()
        for name in ("NewerParameter", "NewestParameter")[:number]:
            template = template.replace("Rules:\n", PARAMETER.format(name=name), 1)
        (root / "template.yaml").write_text(template)
        found[version] = root
    (found["0.4.0"] / "functions/extra").mkdir()
    (found["0.4.0"] / "functions/extra/extra.py").write_text("NEW = True\n")
    (found["0.4.0"] / "functions/push/push.py").unlink()
    return found


def made(folder: Path, repository: Path) -> Path:
    """A project as version 0.2.0 writes it."""
    project = Project(agent="worker", name="mine", version="0.2.0")
    rendered = project.render(repository)
    write(folder, rendered)
    project.record(folder, rendered)
    return folder


def upgraded(folder: Path, versions: dict[str, Path], version: str) -> Upgrade:
    """Upgrade a project to a version; its locks stay as they are."""
    upgrade = plan(folder, repository=versions[version], version=version)
    upgrade.apply()
    return upgrade


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def test_an_edited_project_over_two_versions(tmp_path: Path, versions: dict[str, Path]) -> None:
    """A project that is upgraded twice keeps its edits and gets the new parameters.

    Nothing else in it has changed, and a second project beside it is as it was.
    """
    first, second = (made(tmp_path / name, versions["0.2.0"]) for name in ("first", "second"))
    other = contents(second)
    template = first / "template.yaml"
    edited = template.read_text().replace("    Default: 1024\n", "    Default: 2048\n", 1)
    edited = edited.replace("Resources:\n", "Resources:\n  Bucket: {Type: AWS::S3::Bucket}\n\n", 1)
    template.write_text(edited)
    (first / "functions/worker/agent.py").write_text("agent = 'mine'\n")
    before = contents(first)

    steps = upgraded(first, versions, "0.3.0").steps
    assert [(step.name, step.change) for step in steps if step.change != "updated"] == [
        ("template.yaml", "merged")
    ]
    upgraded(first, versions, "0.4.0")

    wanted = edited
    for name in ("NewerParameter", "NewestParameter"):
        wanted = wanted.replace("Rules:\n", PARAMETER.format(name=name), 1)
    assert template.read_text() == wanted
    after = contents(first)
    same = {name for name in before if before[name] == after.get(name) and ".a2a" not in name}
    changed = {name for name in {*before, *after} - same if ".a2a-serverless/" not in name}
    assert changed == {
        *("template.yaml", "functions/extra/extra.py", "functions/push/push.py"),
        "requirements/dev.in",  # names the framework's version
    }
    assert "functions/push/push.py" not in after
    assert Project.recorded_in(first).version == "0.4.0"
    assert contents(second) == other


def test_a_conflict_is_marked_and_listed(tmp_path: Path, versions: dict[str, Path]) -> None:
    """A line that both have changed is there twice, and the next upgrade waits for a decision."""
    folder = made(tmp_path / "mine", versions["0.2.0"])
    later = versions["0.3.0"] / "samconfig.toml"
    later.write_text(later.read_text().replace("parallel = true", "parallel = false"))
    mine = (folder / "samconfig.toml").read_text()
    (folder / "samconfig.toml").write_text(mine.replace("parallel = true", "parallel = true # me"))

    upgrade = upgraded(folder, versions, "0.3.0")

    (conflict,) = upgrade.conflicts
    assert str(conflict) == "conflict  samconfig.toml: 1 to decide, marked with <<<<<<<"
    text = (folder / "samconfig.toml").read_text()
    assert "<<<<<<< yours\nparallel = true # me\n" in text
    assert "=======\nparallel = false\n>>>>>>> new version\n" in text
    with pytest.raises(ConfigurationError, match=r"samconfig\.toml has places .* not decided"):
        plan(folder, repository=versions["0.4.0"], version="0.4.0")


def test_removed_files_stay_removed(tmp_path: Path, versions: dict[str, Path]) -> None:
    """A file that the owner has removed stays away, and a file that the owner has edited stays."""
    folder = made(tmp_path / "mine", versions["0.2.0"])
    (folder / "template.yaml").unlink()
    (folder / "functions/push/push.py").write_text("EDITED = True\n")

    steps = {step.name: step.change for step in upgraded(folder, versions, "0.4.0").steps}

    assert steps["template.yaml"] == steps["functions/push/push.py"] == "kept"
    assert not (folder / "template.yaml").exists()
    assert (folder / "functions/push/push.py").read_text() == "EDITED = True\n"


def test_a_plan_changes_nothing(tmp_path: Path, versions: dict[str, Path]) -> None:
    """`--check` merges in memory; of the same version there is nothing to do."""
    folder = made(tmp_path / "mine", versions["0.2.0"])
    before = contents(folder)

    assert plan(folder, repository=versions["0.3.0"], version="0.3.0").steps
    assert not plan(folder, repository=versions["0.2.0"], version="0.2.0").steps
    assert contents(folder) == before


def test_without_git_the_way_out_is_named(
    tmp_path: Path, versions: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The merge is git's: a machine without it is told so, and nothing is changed."""
    folder = made(tmp_path / "mine", versions["0.2.0"])
    with (folder / "template.yaml").open("a") as file:
        file.write("# mine\n")
    monkeypatch.setattr(shutil, "which", lambda _: None)

    with pytest.raises(ConfigurationError, match="git is missing"):
        plan(folder, repository=versions["0.3.0"], version="0.3.0")
