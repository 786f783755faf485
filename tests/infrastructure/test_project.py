"""Projects that `init` makes: their files, and what is refused before any is written."""

import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
from samtranslator.yaml_helper import yaml_parse

from a2a_serverless.errors import ConfigurationError
from a2a_serverless.http.card import load_card
from a2a_serverless.worker import TaskContext
from a2a_serverless_tools.cli import main
from a2a_serverless_tools.scaffold import project as project_module
from a2a_serverless_tools.scaffold.project import BASE, KINDS, Project, _write, checked_name, create
from a2a_serverless_tools.scaffold.source import AGENT, CARD, PAGES, files, source
from a2a_serverless_tools.testing.fixtures import MakeBench
from tests.support.permissions import granted, transform


@pytest.fixture
def unlocked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the resolution, which asks an index; other tests show it."""

    class Unlocked:
        def __init__(self, *_: object) -> None: ...

        def lock(self) -> None: ...

    monkeypatch.setattr(project_module, "Dependencies", Unlocked)


@pytest.mark.usefixtures("unlocked")
def test_a_project_has_what_its_owner_keeps(tmp_path: Path, project: Path) -> None:
    """A project has the owner's files, such as agent, card and template, and no framework code."""
    folder = tmp_path / "mine"
    create(folder, Project(agent="worker", name="my-agent"))

    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert {
        *(AGENT, CARD, "template.yaml", "samconfig.toml", "Makefile", "README.md", ".gitignore"),
        *("functions/api/api.py", "functions/worker/worker.py", "functions/push/push.py"),
        *("functions/worker/requirements.in", "layers/runtime/Makefile", "requirements/dev.in"),
        *("tests/test_agent.py", "tests/test_endpoint.py", ".github/workflows/deploy.yml"),
        *("fargate.yaml", "Dockerfile", ".dockerignore", "AGENTS.md", "llms.txt"),
    } <= names
    assert not [name for name in names if name.startswith("layers/runtime/a2a_serverless")]
    for name in ("template.yaml", "fargate.yaml", "Dockerfile", ".dockerignore"):
        assert (folder / name).read_bytes() == (project / name).read_bytes()
    assert (folder / "functions/api/stream.sh").stat().st_mode & 0o111
    written = [p.read_text() for p in folder.rglob("*") if p.is_file() and BASE not in p.parts]
    assert not [text for text in written if "@NAME@" in text or "@VERSION@" in text]
    # The functions may do what the framework's own may, which the suite compares.
    own, ours = (granted(transform(each / "template.yaml")) for each in (folder, project))
    assert own == ours
    pipeline = yaml_parse((folder / ".github/workflows/deploy.yml").read_text())
    assert pipeline["jobs"]["deploy"]["permissions"]["id-token"] == "write"


def for_assistants() -> dict[str, str]:
    """The texts of a project's AGENTS.md, llms.txt and README.md."""
    rendered = Project(agent="worker", name="my-agent").render()
    return {name: rendered[name].decode() for name in ("AGENTS.md", "llms.txt", "README.md")}


def test_the_pages_that_a_project_names_are_there() -> None:
    """AGENTS.md and README.md name pages of this version, and calls that an agent can make."""
    texts = for_assistants()
    topics = {path.stem for path in files(source(), PAGES)}
    last = texts["AGENTS.md"].rpartition("## Pages")[2]
    assert set(re.findall(r"`([a-z-]+)`", last)) <= topics
    assert set(re.findall(r"`docs ([a-z-]+)`", texts["AGENTS.md"])) <= topics
    steps = re.findall(r"\| `([a-z-]+)` \|$", texts["README.md"], re.MULTILINE)
    assert len(steps) == 6
    assert set(steps) <= topics
    called = set(re.findall(r"\bctx\.(\w+)", texts["AGENTS.md"]))
    assert len(called) > 10
    assert called <= set(dir(TaskContext))


def test_the_agent_of_the_rules_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agent_bench: MakeBench
) -> None:
    """The code of AGENTS.md runs as it stands there: its agent asks, and its own test passes."""
    agent, test = re.findall(r"```python\n(.*?)```", for_assistants()["AGENTS.md"], re.DOTALL)
    _write(tmp_path, {AGENT: agent.encode()})
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(test, names)  # noqa: S102 - it is what this version writes
    names["test_a_room_is_booked_once"](agent_bench)
    asked = agent_bench(f"{AGENT}:agent").send("")
    assert (asked.state, asked.text) == ("input_required", "Which city?")
    assert asked.reply("Oslo").state == "completed"


@pytest.mark.long
def test_all_pages_are_listed_for_assistants(capsys: pytest.CaptureFixture[str]) -> None:
    """llms.txt has the form of llmstxt.org, and the command prints the page of each link."""
    title, summary, *rest = for_assistants()["llms.txt"].split("\n\n")
    assert title == "# a2a-serverless"
    assert summary.startswith("> ")
    items = [line for block in rest for line in block.splitlines() if line.startswith("- ")]
    found = [re.fullmatch(r"- \[([^\]]+)\]\((\S+)\)(: .+)?", line) for line in items]
    links = [each[2] for each in found if each]
    assert links == [path.relative_to(source()).as_posix() for path in files(source(), PAGES)]
    assert len(links) == len(items)
    for link in links:
        assert main(["docs", link]) == 0
        assert capsys.readouterr().out == (source() / link).read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_agent_is_deployed_as_it_needs(kind: str, tmp_path: Path) -> None:
    """Each has its card; `default`, `ci` and `prod` are stacks; an adapter keeps conversations."""
    rendered = Project(agent=kind, name="my-agent").render()
    _write(tmp_path, {CARD: rendered[CARD]})
    assert load_card(tmp_path / CARD).name
    compile(rendered[AGENT], AGENT, "exec")
    settings = tomllib.loads(rendered["samconfig.toml"].decode())
    is_adapted = kind not in ("worker", "executor")
    for stack, suffix in (("default", ""), ("ci", "-ci"), ("prod", "-prod")):
        parameters = settings[stack]["deploy"]["parameters"]
        assert settings[stack]["global"]["parameters"]["stack_name"] == f"my-agent{suffix}"
        overrides = parameters.get("parameter_overrides", "")
        assert ("Conversations=serial" in overrides) is is_adapted
    alone = settings["ci"]["deploy"]["parameters"]
    assert alone["confirm_changeset"] is False
    assert "DeletionProtection=false" in alone["parameter_overrides"]


@pytest.mark.usefixtures("unlocked")
def test_a_folder_that_cannot_be_written_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A folder with files, a file, a place below it, or a link to nowhere: one sentence."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "dangling").symlink_to("nowhere")

    no_folder = r"(is no folder|cannot be written \(.+\))"
    told = dict.fromkeys(("notes.txt", "notes.txt/new", "dangling"), no_folder)
    for name, why in {**told, ".": "is not empty: nothing was written"}.items():
        assert main(["init", name, "--name", "mine"]) == 2
        said = capsys.readouterr().err
        assert re.match(rf"a2a-serverless: {re.escape(name)} {why}", said), said
        assert said.endswith("name another one.\n")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["dangling", "notes.txt"]
        assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.usefixtures("unlocked")
@pytest.mark.parametrize("before", ["empty", "missing"])
def test_half_a_project_goes(before: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full leaves the folder as it was."""
    folder = tmp_path / "mine"
    if before == "empty":
        folder.mkdir()

    def fills_up(source: Path, target: Path, **_: bool) -> None:
        _write(target, {"template.yaml": b"", "functions/api/api.py": b""})
        raise shutil.Error([(str(source), str(target), "[Errno 28] No space left on device")])

    monkeypatch.setattr(shutil, "copytree", fills_up)
    with pytest.raises(ConfigurationError, match=r"No space left .*: nothing was written"):
        create(folder, Project(agent="worker", name="mine"))
    assert folder.exists() == (before == "empty")
    assert not list(folder.glob("*"))


def test_what_init_refuses_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The sentence names a name and its rule, or a kind and the kinds; nothing is written."""
    assert main(["init", str(tmp_path / "new"), "--name=1st"]) == 2
    assert "--name 1st is no name for a stack of AWS" in capsys.readouterr().err
    assert main(["init", str(tmp_path / "new"), "--agent", "crew"]) == 2
    assert "--agent crew is none of worker, executor, langgraph" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()
    for name in ("", "my_agent", "-a", "a" * 111, "ä", "a b"):
        with pytest.raises(ConfigurationError, match="is no name for a stack of AWS"):
            checked_name(name, tmp_path)
    assert checked_name(None, tmp_path / "my_agent.v2") == "my-agent-v2"
    with pytest.raises(ConfigurationError, match=r"folder, 2nd, .* choose one with --name"):
        checked_name(None, tmp_path / "2nd")


def test_a_project_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project is there as a whole, or not at all."""
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_NO_CACHE", "1")

    with pytest.raises(ConfigurationError, match="is not in the index: name the folder"):
        create(tmp_path / "new", Project(agent="worker", name="mine"))

    assert not (tmp_path / "new").exists()


@pytest.mark.usefixtures("unlocked")
def test_what_the_owner_replaces_is_no_part_of_an_upgrade(tmp_path: Path) -> None:
    """The hidden folder has the files that are merged, and what the project was made as."""
    create(tmp_path / "mine", Project(agent="langgraph", name="mine"))

    kept = tmp_path / "mine" / BASE / "written"
    assert (kept / "template.yaml").is_file()
    assert not (kept / AGENT).exists()
    record = json.loads((tmp_path / "mine" / BASE / "project.json").read_text())
    assert (record["agent"], record["name"]) == ("langgraph", "mine")
    shutil.rmtree(tmp_path / "mine" / BASE)
    with pytest.raises(ConfigurationError, match="can be upgraded"):
        Project.recorded_in(tmp_path / "mine")
