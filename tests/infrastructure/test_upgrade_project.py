"""`upgrade`: three-way merges of a project's files over versions of the framework."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from a2a_serverless import __version__
from a2a_serverless.errors import ConfigurationError
from a2a_serverless_tools.cli import main
from a2a_serverless_tools.scaffold import dependencies
from a2a_serverless_tools.scaffold.dependencies import DEVELOPMENT, DEVELOPMENT_LOCK
from a2a_serverless_tools.scaffold.project import BASE, Project, _Upgrade, _write, plan
from a2a_serverless_tools.scaffold.source import (
    AGENT_LOCK,
    LAYER_LOCK,
    PACKAGED_FILES,
    WORKER_LOCK,
    files,
)

Versions = dict[str, Path]
PARAMETER = """\
  {name}:
    Type: String
    Default: ""
    Description: New in this version

Rules:
"""


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory, project: Path) -> dict[str, Path]:
    """The framework's top level as it is, and as two later versions change it; not to be edited."""
    found, folder = {}, tmp_path_factory.mktemp("versions")
    names = [path.relative_to(project) for path in files(project, PACKAGED_FILES)]
    contents = {name.as_posix(): (project / name).read_bytes() for name in names}
    for number, version in enumerate(("0.2.0", "0.3.0", "0.4.0")):
        root = folder / version
        _write(root, contents)
        template = (root / "template.yaml").read_text()
        for name in ("NewerParameter", "NewestParameter")[:number]:
            template = template.replace("Rules:\n", PARAMETER.format(name=name), 1)
        (root / "template.yaml").write_text(template)
        if number:
            edited(root / "samconfig.toml", "parallel = true", "parallel = false")
        found[version] = root
    (found["0.4.0"] / "functions/extra").mkdir()
    (found["0.4.0"] / "functions/extra/extra.py").write_text("NEW = True\n")
    (found["0.4.0"] / "functions/push/push.py").unlink()
    (found["0.4.0"] / "docs/build/new-page.md").write_text("# A new page\n\n## What is new\n")
    return found


def made(folder: Path, repository: Path | None, version: str = "0.2.0") -> Path:
    project = Project(agent="worker", name="mine", version=version)
    rendered = project.render(repository)
    _write(folder, rendered)
    project.record(folder, rendered)
    return folder


@pytest.fixture(scope="module")
def first(versions: Versions, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project as the first version writes it; not to be edited."""
    return made(tmp_path_factory.mktemp("first") / "mine", versions["0.2.0"])


@pytest.fixture
def folder(first: Path, tmp_path: Path) -> Path:
    return shutil.copytree(first, tmp_path / "mine")


def planned(folder: Path, versions: Versions, version: str) -> _Upgrade:
    return plan(folder, repository=versions[version], version=version)


def upgraded(folder: Path, versions: Versions, version: str) -> _Upgrade:
    """Upgrade a project to a version; its locks stay as they are."""
    upgrade = planned(folder, versions, version)
    upgrade.apply()
    return upgrade


def edited(path: Path, before: str, after: str) -> bytes:
    """Replace a text of a file, once; return the file's content."""
    content = path.read_bytes().replace(before.encode(), after.encode(), 1)
    path.write_bytes(content)
    return content


def contents(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def test_an_upgrade_brings_what_assistants_read(folder: Path, versions: Versions) -> None:
    """A project from before gets both files; edits stay; a version's new page joins the list."""
    for name in ("AGENTS.md", "llms.txt"):
        (folder / name).unlink()
        (folder / BASE / "written" / name).unlink()
    changes = {step.name: step.change for step in upgraded(folder, versions, "0.3.0").steps}
    assert (changes["AGENTS.md"], changes["llms.txt"]) == ("new", "new")
    edited(folder / "AGENTS.md", "## Pages", "Never touch `prices.py`.\n\n## Pages")
    upgraded(folder, versions, "0.4.0")
    assert "Never touch `prices.py`." in (folder / "AGENTS.md").read_text()
    listed = "- [A new page](docs/build/new-page.md): What is new\n"
    assert listed in (folder / "llms.txt").read_text()


def test_an_edited_project_over_two_versions(folder: Path, versions: Versions) -> None:
    """A project that is upgraded twice keeps its edits and gets the new parameters.

    Nothing else in it has changed, and a second project beside it is as it was.
    """
    first, second = folder, shutil.copytree(folder, folder.parent / "second")
    other = contents(second)
    template = first / "template.yaml"
    edited(template, "    Default: 1024\n", "    Default: 2048\n")
    mine = edited(template, "Resources:\n", "Resources:\n  Bucket: {Type: AWS::S3::Bucket}\n\n")
    (first / "functions/worker/agent.py").write_text("agent = 'mine'\n")
    edited(first / DEVELOPMENT, "pytest>=8\n", "mypy\npytest>=9\nruff\n")
    before = contents(first)

    steps = upgraded(first, versions, "0.3.0").steps
    merged = {step.name: step.change for step in steps if step.change != "updated"}
    assert merged == {"template.yaml": "merged", DEVELOPMENT: "merged"}
    upgraded(first, versions, "0.4.0")

    wanted = mine.decode()
    for name in ("NewerParameter", "NewestParameter"):
        wanted = wanted.replace("Rules:\n", PARAMETER.format(name=name), 1)
    assert template.read_text() == wanted
    after = contents(first)
    same = {name for name in before if before[name] == after.get(name) and ".a2a" not in name}
    changed = {name for name in {*before, *after} - same if ".a2a-serverless/" not in name}
    assert changed == {
        *("template.yaml", "functions/extra/extra.py", "functions/push/push.py"),
        *("samconfig.toml", "llms.txt"),
        "requirements/dev.in",  # names the framework's version
    }
    assert "functions/push/push.py" not in after
    assert Project.recorded_in(first).version == "0.4.0"
    assert contents(second) == other
    tools = (first / DEVELOPMENT).read_text()
    assert "mypy\npytest>=9\nruff\n" in tools
    assert "a2a-serverless[local]==0.4.0\n" in tools


def test_a_conflict_is_marked_and_listed(folder: Path, versions: Versions) -> None:
    """A line that both have changed is there twice, and the next upgrade waits for a decision."""
    edited(folder / "samconfig.toml", "parallel = true", "parallel = true # me")

    upgrade = upgraded(folder, versions, "0.3.0")

    (conflict,) = upgrade.conflicts
    assert str(conflict) == "conflict  samconfig.toml: 1 to decide, marked with <<<<<<<"
    text = (folder / "samconfig.toml").read_text()
    assert "<<<<<<< yours\nparallel = true # me\n" in text
    assert "=======\nparallel = false\n>>>>>>> new version\n" in text
    with pytest.raises(ConfigurationError, match=r"samconfig\.toml has places .* not decided"):
        planned(folder, versions, "0.4.0")


def test_removed_files_stay_removed(folder: Path, versions: Versions) -> None:
    """A file that the owner has removed stays away, and a file that the owner has edited stays."""
    (folder / "template.yaml").unlink()
    (folder / "functions/push/push.py").write_text("EDITED = True\n")

    steps = {step.name: step.change for step in upgraded(folder, versions, "0.4.0").steps}

    assert steps["template.yaml"] == steps["functions/push/push.py"] == "kept"
    assert not (folder / "template.yaml").exists()
    assert (folder / "functions/push/push.py").read_text() == "EDITED = True\n"


def test_a_plan_changes_nothing(folder: Path, versions: Versions) -> None:
    """`--check` merges in memory; of the same version there is nothing to do.

    A colleague's project of a later version is not merged back; both versions are named.
    """
    before = contents(folder)
    assert planned(folder, versions, "0.3.0").steps
    assert not planned(folder, versions, "0.2.0").steps
    assert contents(folder) == before
    upgraded(folder, versions, "0.3.0")
    later = contents(folder)
    with pytest.raises(ConfigurationError, match=r"is of a2a-serverless 0\.3\.0, and this is 0\.2"):
        planned(folder, versions, "0.2.0")
    assert contents(folder) == later


def test_without_git_the_way_out_is_named(
    folder: Path, versions: Versions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The merge is git's: a machine without it is told so."""
    edited(folder / "template.yaml", "Resources:\n", "# mine\nResources:\n")
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(ConfigurationError, match="git is missing"):
        planned(folder, versions, "0.3.0")


def test_line_ends_of_windows_are_no_edits(folder: Path, versions: Versions) -> None:
    """An editor's or git's CR LF stays in a file, and hides no edit and no conflict.

    Here git has given it to the files as they were written, too.
    """
    for path in (folder / "template.yaml", folder / "samconfig.toml", *folder.glob(f"{BASE}/**/*")):
        if path.is_file():
            path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    template = folder / "template.yaml"
    mine = edited(template, "    Default: 1024\r\n", "    Default: 2048\r\n")
    assert planned(folder, versions, "0.2.0").steps == ()
    edited(folder / "samconfig.toml", "parallel = true", "parallel = 1")

    steps = {step.name: step.change for step in upgraded(folder, versions, "0.3.0").steps}

    assert steps["template.yaml"] == "merged"
    parameter = PARAMETER.format(name="NewerParameter").replace("\n", "\r\n").encode()
    assert template.read_bytes() == mine.replace(b"Rules:\r\n", parameter, 1)
    assert steps["samconfig.toml"] == "conflict"
    with pytest.raises(ConfigurationError, match=r"samconfig\.toml has places .* not decided"):
        planned(folder, versions, "0.4.0")


def test_locks_that_could_not_be_made_are_made_by_the_next_upgrade(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The files are merged, and the index does not answer: what is left to do is not forgotten."""
    folder = made(tmp_path / "mine", None, __version__)
    _write(folder, {LAYER_LOCK: b"a2a-serverless==0.0.1\n"})
    monkeypatch.chdir(folder)

    def unlocked(_: dependencies.Dependencies) -> None:
        raise ConfigurationError("no index")

    def locked(_: dependencies.Dependencies) -> None:
        for lock in (LAYER_LOCK, WORKER_LOCK, DEVELOPMENT_LOCK):
            (folder / lock).write_text(f"a2a-serverless=={__version__} \\\n    --hash=sha256:00\n")

    monkeypatch.setattr(dependencies.Dependencies, "lock", unlocked)
    assert main(["upgrade"]) == 2
    assert main(["upgrade", "--check"]) == 1
    assert capsys.readouterr().err.endswith("to upgrade: the locks\n")
    monkeypatch.setattr(dependencies.Dependencies, "lock", locked)
    assert main(["upgrade"]) == 0
    assert main(["upgrade", "--check"]) == 0
    assert capsys.readouterr().err.endswith("nothing to upgrade\n")


def test_locks_wait_for_a_decision_about_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where the framework's own line is in conflict, nothing is resolved from both versions."""
    folder = made(tmp_path / "mine", None, "0.0.1")
    asked = (folder / DEVELOPMENT).read_text()
    (folder / DEVELOPMENT).write_text(asked.replace("==0.0.1", "==0.0.2"))
    monkeypatch.chdir(folder)
    locked: list[str] = []
    monkeypatch.setattr(dependencies.Dependencies, "lock", lambda _: locked.append(""))

    assert main(["upgrade"]) == 1
    said = capsys.readouterr()
    assert f"conflict  {DEVELOPMENT}: 1 to decide" in said.out
    assert "then upgrade again" in said.err
    assert not locked
    assert main(["upgrade"]) == 2  # not decided
    (folder / DEVELOPMENT).write_text(asked.replace("==0.0.1", f"=={__version__}"))
    assert main(["upgrade"]) == 0
    assert locked == [""]


def outside(path: Path, elsewhere: Path) -> None:
    """Replace a file or a folder of a project by a link to one that is not of the project."""
    shutil.move(path, elsewhere)
    path.symlink_to(elsewhere, target_is_directory=elsewhere.is_dir())


LINKS = ("template.yaml", "functions/push", BASE, "requirements", DEVELOPMENT_LOCK, AGENT_LOCK)


def test_links_out_are_not_followed(tmp_path: Path, folder: Path, versions: Versions) -> None:
    """The sentence names the link, and neither the project nor what it leads to has changed."""
    for lock in (DEVELOPMENT_LOCK, LAYER_LOCK, AGENT_LOCK):
        (folder / lock).write_text("")
    for name in LINKS:
        outside(folder / name, tmp_path / "elsewhere")
        before = contents(tmp_path)
        with pytest.raises(ConfigurationError) as refused:
            upgraded(folder, versions, "0.4.0")
        assert f"{folder / name} leads out of the project" in str(refused.value)
        assert contents(tmp_path) == before
        (folder / name).unlink()
        shutil.move(tmp_path / "elsewhere", folder / name)


def test_a_lock_is_not_written_through_a_link_out_of_the_project(tmp_path: Path) -> None:
    """`lock` refuses as `upgrade` does."""
    (tmp_path / "mine/layers/runtime/a2a_serverless").mkdir(parents=True)
    lock = tmp_path / "mine" / AGENT_LOCK
    lock.parent.mkdir(parents=True)
    lock.touch()
    outside(lock, tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="leads out of the project"):
        dependencies.Dependencies(tmp_path / "mine").lock()
    assert (tmp_path / "elsewhere").read_text() == ""


def test_a_link_within_is_followed(tmp_path: Path, folder: Path, versions: Versions) -> None:
    """The owner may keep a file elsewhere in the project, and the project behind a link."""
    (folder / "stacks").mkdir()
    outside(folder / "template.yaml", folder / "stacks/template.yaml")
    (tmp_path / "link").symlink_to(folder)
    upgraded(tmp_path / "link", versions, "0.3.0")
    assert (folder / "template.yaml").is_symlink()
    assert "NewerParameter" in (folder / "stacks/template.yaml").read_text()


NO_RECORDS: tuple[Any, ...] = (
    *({"agent": "crew"}, {"agent": []}, {"version": "x"}, {"name": None}),
    [],
)
NAMES = (
    *('mine"\nparameter_overrides = "Auth=none" #', "mine\n", "", "1st", "m" * 111),
    *("a b", "../up", "$(id)"),
)
RECORDS = [
    *((record, "project.json cannot be read") for record in NO_RECORDS),
    *(({"name": name}, f"The name {name!r} in ") for name in NAMES),
]
"""What a record has in place of what was written, and what is said of it."""


@pytest.mark.parametrize(("record", "words"), RECORDS)
def test_a_record_that_cannot_be_used_is_named(folder: Path, record: Any, words: str) -> None:
    """A kind that this version does not know, or a name that init would not take: one sentence."""
    path = folder / BASE / "project.json"
    written = json.loads(path.read_text())
    path.write_text(json.dumps({**written, **record} if isinstance(record, dict) else record))
    before = contents(folder)
    with pytest.raises(ConfigurationError) as refused:
        plan(folder).apply()
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)
    assert contents(folder) == before
