"""Projects of `init` out of the installed wheel: run, tested, upgraded, built.

`make long` does what a newcomer does with the project of a plain Worker, tests and upgrades it;
`make projects` does it with each kind and on each Python, and adds `sam validate`, `sam build`, the
image and what was built.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from a2a_serverless_tools.scaffold.project import KINDS
from a2a_serverless_tools.scaffold.sizes import LAYER_BYTES
from a2a_serverless_tools.scaffold.source import AGENT_LOCK
from tests.e2e.installed import ROOT, UV, built, installed, pythons, run, this_machine
from tests.e2e.newcomer import Newcomer
from tests.e2e.releases import NoReleaseError, last_release, make_earlier, unpack_files
from tests.support.image import build_stage

PROJECTS = os.environ.get("A2A_PROJECTS")
IS_LONG = PROJECTS == "long"
KINDS_HERE = list(KINDS) if IS_LONG else ["worker"]
BEFORE = "67e9fdcf0dce36e42561327fc825eeb679e8d0b9"
"""As long as no release is tagged, the commit before `dev`, `send` and `docs` were as they are."""

IMPORTS = """\
import json, sys
import agent, a2a, google.protobuf, pydantic, a2a_serverless
found = [m.__file__ for m in (a2a, google.protobuf, pydantic, a2a_serverless)]
print(json.dumps([name or "namespace" for name in found] + [agent.__file__]))
"""

WHY = "`make long`: it installs a project"
ASKED = pytest.mark.skipif(PROJECTS not in {"one", "long"}, reason=WHY)
pytestmark = [pytest.mark.timeout(1800), pytest.mark.long, ASKED]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built out of the source archive."""
    return built(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`a2a-serverless` in an environment with the wheel alone."""
    return installed(wheel, tmp_path_factory.mktemp("env") / "env") / "a2a-serverless"


@pytest.mark.parametrize("python", pythons() if IS_LONG else [""])
def test_demo_in_an_empty_folder(python: str, wheel: Path, program: Path, tmp_path: Path) -> None:
    """Installed on each Python of the machine, the package needs nothing of the repository."""
    if python:
        program = installed(wheel, tmp_path / "env", python) / "a2a-serverless"
    empty = tmp_path / "empty"
    empty.mkdir()
    shown = run([program, "demo"], cwd=empty, AGENT_CHUNK_DELAY_S="0.02")
    assert "2 tasks completed: one streamed, one resumed after its question." in shown
    assert str(program.parents[1]) in shown, "the path of the agent that was taken"
    assert list(empty.iterdir()) == []
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    code = readme.partition("```python\n")[2].partition("```")[0]
    (empty / "agent.py").write_text(code, encoding="utf-8")
    shown = run([program, "demo"], cwd=empty)
    assert "card made of its class and docstring" in shown
    assert "Parrot, http:" in shown


@pytest.mark.parametrize("kind", KINDS_HERE)
def test_a_project_of_each_kind(kind: str, wheel: Path, program: Path, tmp_path: Path) -> None:
    """From the wheel, in an empty folder: its tests pass, other Pythons lock it the same, it lives.

    The long form builds it for Lambda and its image, too.
    """
    project = tmp_path / "mine"
    newcomer = Newcomer(kind, project, wheel.parent)
    newcomer.init(program)
    run(["make", ".venv/.stamp"], cwd=project)
    assert "6 passed" in run(["make", "test"], cwd=project)
    assert not [path for path in project.glob("requirements/*.txt") if "://" in path.read_text()]
    for python in pythons() if IS_LONG else pythons()[:1]:
        _locks_the_same(project, python, wheel.parent)
    if IS_LONG:
        shutil.copytree(project, tmp_path / "context", ignore=shutil.ignore_patterns(".venv"))
        _image(tmp_path / "context", wheel)
        _build(project)
    newcomer.lives()


def _locks_the_same(project: Path, python: str, wheels: Path) -> None:
    """Install the project's locks on a Python, and make them anew there."""
    programs, links = project.parent / f"env{Path(python).name}", ["--find-links", wheels]
    run([UV, "venv", "--quiet", "--python", python, programs], cwd=project)
    sync = [UV, "pip", "sync", "--quiet", "--python", programs / "bin/python", "--require-hashes"]
    run([*sync, *links, "requirements/dev.txt"], cwd=project)
    locks = {path: path.read_bytes() for path in project.glob("requirements/*.txt")}
    locks[project / AGENT_LOCK] = (project / AGENT_LOCK).read_bytes()
    assert len(locks) == 4
    run([programs / "bin/a2a-serverless", "lock", *links], cwd=project)
    assert {path: path.read_bytes() for path in locks} == locks


@pytest.mark.skipif(not IS_LONG, reason="`make projects`: the short form installs by uv alone")
def test_pip_and_uvx(wheel: Path, tmp_path: Path) -> None:
    """`pip install a2a-serverless[local]` and `uvx` find everything that they need."""
    run([pythons()[-1], "-m", "venv", "env"], cwd=tmp_path)
    pip = [tmp_path / "env/bin/python", "-m", "pip", "install", "--quiet"]
    run([*pip, "--find-links", wheel.parent, "a2a-serverless[local]"], cwd=tmp_path)
    assert "usage: a2a-serverless" in run([tmp_path / "env/bin/a2a-serverless", "-h"], cwd=tmp_path)
    uvx = [tmp_path / "env/bin/uvx", "--find-links", wheel.parent]
    told = run([*uvx, "--from", "a2a-serverless[local]", "a2a-serverless", "demo"], cwd=tmp_path)
    assert "2 tasks completed" in told


@pytest.mark.parametrize("kind", ["worker", "langgraph"] if IS_LONG else ["worker"])
def test_a_project_of_an_older_one(kind: str, wheel: Path, program: Path, tmp_path: Path) -> None:
    """It is upgraded with its owner's edits, has what is new, and answers."""
    older, wheels = tmp_path / "older", tmp_path / "wheels"
    try:
        unpack_files(last_release() or BEFORE, older)
    except NoReleaseError:  # a clone without its history: this code, under an earlier version
        unpack_files("HEAD", older)
        make_earlier(older)
    newcomer = Newcomer(kind, tmp_path / "mine", wheels)
    newcomer.init(installed(built(wheels, older), tmp_path / "env") / "a2a-serverless")
    makefile, project = newcomer.folder / "Makefile", newcomer.folder
    makefile.write_text(f"{makefile.read_text()}\n# mine\n")
    shutil.rmtree(wheels)
    shutil.copytree(wheel.parent, wheels)

    run([program, "upgrade"], cwd=project)
    run(["make", ".venv/.stamp"], cwd=project)
    with newcomer.dev() as dev:
        assert newcomer.answers(dev)
    assert makefile.read_text().endswith("# mine\n")
    assert "\nsend: " in makefile.read_text(), "which the older version did not write"


def _build(project: Path) -> None:
    """Validate and build it, and import what was built as Lambda does."""
    run(["make", "validate"], cwd=project)
    linter, rules = Path(sys.executable).with_name("cfn-lint"), "cfn_lint_serverless.rules"
    run([linter, "template.yaml", "fargate.yaml", "--append-rules", rules], cwd=project)
    assert "Build Succeeded" in run(["make", "build"], cwd=project, **this_machine())
    worker = project / ".aws-sam/build/WorkerFunction"
    layer = project / ".aws-sam/build/RuntimeLayer/python"
    assert (layer / "a2a_serverless/worker").is_dir()
    assert not (layer / "a2a_serverless/cli").exists()
    assert sum(path.stat().st_size for path in layer.rglob("*") if path.is_file()) < LAYER_BYTES
    assert not _packages(worker) & _packages(layer)
    for left_out in ("requirements.in", "requirements.txt", "Makefile"):
        assert not (worker / left_out).exists()
    site = next((project / ".venv/lib").glob("python3.*")) / "site-packages"
    runtime = project / "runtime"  # what Lambda's own Python brings
    runtime.mkdir()
    for name in ("boto3", "botocore", "s3transfer", "jmespath", "dateutil", "urllib3", "six.py"):
        (runtime / name).symlink_to(site / name)
    path = os.pathsep.join(map(str, (worker, layer, runtime)))
    python = project / ".venv/bin/python"
    _imports(python, project, {"PYTHONPATH": path}, of_layer=layer, of_agent=worker)
    shutil.rmtree(project / ".aws-sam")


def _imports(
    python: Path, cwd: Path, path: dict[str, str], *, of_layer: Path, of_agent: Path
) -> None:
    """Import packages and agent: each comes from where it was built."""
    said = run([python, "-S", "-c", IMPORTS], cwd=cwd, PYTHONWARNINGS="ignore", **path)
    *found, agent = json.loads(said.splitlines()[-1])
    assert all(name == "namespace" or name.startswith(str(of_layer)) for name in found), found
    assert agent.startswith(str(of_agent))


def _image(context: Path, wheel: Path) -> None:
    """Run the build stage of the project's Dockerfile, and start what the image starts."""
    (context / "functions/worker/.env").write_text("MODEL_API_KEY=secret")
    wheels = context / "functions/worker/wheels"
    wheels.mkdir(exist_ok=True)
    shutil.copy(wheel, wheels)
    run([sys.executable, "-m", "venv", "pip"], cwd=context.parent)
    root = context.parent / "root"
    root.mkdir()
    build_stage(context, root, context.parent / "pip/bin/python")
    assert not list(root.rglob(".env"))
    assert not _packages(root / "app") & _packages(root / "site")
    app, python = root / "app", Path(sys.executable)
    path = {"PYTHONPATH": f"{app}:{root}/site"}
    _imports(python, app, path, of_layer=root / "site", of_agent=app)
    command = ["a2a_serverless_tools.cli", "worker", "--agent", f"{app}/agent.py:agent"]
    path["A2A_CONVERSATIONS"] = "serial"  # some kinds keep a state, and start with this alone
    with pytest.raises(AssertionError, match="A2A_TABLE is not set"):
        run([python, "-S", "-m", *command], cwd=app, **path)


def _packages(folder: Path) -> set[str]:
    return {path.name.rpartition("-")[0] for path in folder.glob("*.dist-info")}
