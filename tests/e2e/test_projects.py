"""Projects of `init` out of the installed wheel: run, tested, built.

The suite installs the wheel and runs `demo`. `make long` does what a newcomer does with the project
of a plain Worker, tests and upgrades it; `make projects` does all of it with each kind and on each
Python, and adds `sam validate`, `sam build` and what was built.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from a2a_serverless_tools.scaffold.project import KINDS
from a2a_serverless_tools.scaffold.sizes import LAYER_BYTES
from a2a_serverless_tools.scaffold.source import AGENT_LOCK
from tests.e2e.installed import ROOT, UV, built, installed, pythons, run, this_machine
from tests.e2e.newcomer import Matrix, Newcomer
from tests.e2e.releases import NoReleaseError, last_release, make_earlier, unpack_files
from tests.support.image import build_stage
from tests.support.wheels import make_wheel

PROJECTS = os.environ.get("A2A_PROJECTS")
IS_LONG = PROJECTS == "long"
KINDS_HERE = list(KINDS) if IS_LONG else ["worker"]
BEFORE = "67e9fdcf0dce36e42561327fc825eeb679e8d0b9"
"""As long as no release is tagged, the commit before `dev`, `send` and `docs` were as they are."""
TABLE = ROOT / "build" / "newcomers.md"
PYTHONS_HERE = pythons() if IS_LONG else [""]
CONFLICTS = {"protobuf<6": "protobuf==", "a2a-sdk<1": "a2a-sdk==", "pydantic<2.5": "pydantic=="}

IMPORTS = """\
import json, sys
import agent, a2a, google.protobuf, pydantic, a2a_serverless
found = [m.__file__ for m in (a2a, google.protobuf, pydantic, a2a_serverless)]
print(json.dumps([name or "namespace" for name in found] + [agent.__file__]))
"""

pytestmark = [pytest.mark.timeout(1800), pytest.mark.long]
installs_a_project = pytest.mark.skipif(
    PROJECTS not in {"one", "long"}, reason="`make long`: it installs a project"
)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built out of the source archive."""
    return built(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def program(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`a2a-serverless` in an environment with the wheel alone."""
    return installed(wheel, tmp_path_factory.mktemp("env") / "env") / "a2a-serverless"


@installs_a_project
@pytest.mark.parametrize("python", PYTHONS_HERE)
def test_demo_runs_in_an_empty_folder(
    python: str, wheel: Path, program: Path, tmp_path: Path
) -> None:
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


@pytest.fixture(scope="module")
def matrix() -> Iterator[Matrix]:
    """What newcomers have done; the long forms write its table at the end, for `make` to print."""
    matrix = Matrix()
    yield matrix
    if PROJECTS:
        TABLE.parent.mkdir(exist_ok=True)
        TABLE.write_text(matrix.text(), encoding="utf-8")


@installs_a_project
@pytest.mark.parametrize("kind", KINDS_HERE)
def test_a_project_of_each_kind(
    kind: str, wheel: Path, program: Path, tmp_path: Path, matrix: Matrix
) -> None:
    """From the wheel, in an empty folder: its tests pass, its image starts, its agent is replaced.

    The long form builds it for Lambda, too.
    """
    project = tmp_path / "mine"
    newcomer = Newcomer(kind, project, wheel.parent, matrix)
    newcomer.make(program)
    with matrix.timed("`make test`: six tests", kind):
        assert "6 passed" in run(["make", "test"], cwd=project)
    assert not [path for path in project.glob("requirements/*.txt") if "://" in path.read_text()]
    shutil.copytree(project, tmp_path / "context", ignore=shutil.ignore_patterns(".venv"))
    _image(tmp_path / "context", wheel)
    if IS_LONG:
        _build(project)
        _conflicts(project)
    newcomer.lives()


@installs_a_project
@pytest.mark.parametrize("kind", ["worker", "langgraph"] if IS_LONG else ["worker"])
def test_a_project_of_an_older_version(
    kind: str, wheel: Path, program: Path, tmp_path: Path, matrix: Matrix
) -> None:
    """It is upgraded with its owner's edits, has what is new, and answers."""
    older, wheels = tmp_path / "older", tmp_path / "wheels"
    try:
        unpack_files(last_release() or BEFORE, older)
    except NoReleaseError:  # a clone without its history: this code, under an earlier version
        unpack_files("HEAD", older)
        make_earlier(older)
    newcomer = Newcomer(kind, tmp_path / "mine", wheels, Matrix())
    newcomer.init(installed(built(wheels, older), tmp_path / "env") / "a2a-serverless")
    makefile, project = newcomer.folder / "Makefile", newcomer.folder
    makefile.write_text(f"{makefile.read_text()}\n# mine\n")
    shutil.rmtree(wheels)
    shutil.copytree(wheel.parent, wheels)

    with matrix.timed("`upgrade`, the new environment, and an answer", kind):
        run([program, "upgrade"], cwd=project)
        run(["make", ".venv/.stamp"], cwd=project)
        with newcomer.dev() as dev:
            assert newcomer.answers(dev)
    assert makefile.read_text().endswith("# mine\n")
    assert "\nsend: " in makefile.read_text(), "which the older version did not write"


@installs_a_project
@pytest.mark.parametrize("python", PYTHONS_HERE)
def test_a_lock_is_for_each_python(python: str, wheel: Path, program: Path, tmp_path: Path) -> None:
    """A project that the suite's Python has made runs on another one, which locks it the same."""
    links = ["--find-links", wheel.parent]
    run([program, "init", "mine", *links], cwd=tmp_path)
    project = tmp_path / "mine"
    run([UV, "venv", "--quiet", "--python", python or pythons()[0], ".venv"], cwd=project)
    sync = [UV, "pip", "sync", "--quiet", "--python", ".venv/bin/python", "--require-hashes"]
    run([*sync, *links, "requirements/dev.txt"], cwd=project)

    own = project / ".venv/bin/a2a-serverless"
    assert "2 of the card's examples were answered." in run([own, "demo"], cwd=project)
    locks = {path: path.read_bytes() for path in project.glob("requirements/*.txt")}
    locks[project / AGENT_LOCK] = (project / AGENT_LOCK).read_bytes()
    assert len(locks) == 4
    run([own, "lock", *links], cwd=project)
    assert {path: path.read_bytes() for path in locks} == locks


@pytest.mark.skipif(not IS_LONG, reason="`make projects`: it asks an index four times")
def test_folders_with_spaces_and_wheels_of_ones_own(
    wheel: Path, program: Path, tmp_path: Path
) -> None:
    """A project in `my agent` finds the framework in `my wheels` and a package in its folder."""
    wheels = tmp_path / "my wheels"
    wheels.mkdir()
    shutil.copy(wheel, wheels)
    run([program, "init", "my agent", "--find-links", wheels], cwd=tmp_path)
    project = tmp_path / "my agent"
    own = project / "functions/worker/wheels"
    own.mkdir()
    make_wheel(own, "phrasebook", "1.0")
    (project / "functions/worker/bin").mkdir()
    (project / "functions/worker/bin/tool").write_text("#!/bin/sh\n")
    agent = project / "functions/worker/agent.py"
    agent.write_text(agent.read_text().replace("import os\n", "import os\nimport phrasebook\n", 1))
    (project / "functions/worker/requirements.in").write_text("phrasebook\n")

    run(["make", "lock"], cwd=project)
    assert "6 passed" in run(["make", "test"], cwd=project)
    _build(project)

    worker = project / ".aws-sam/build/WorkerFunction"
    assert (worker / "phrasebook/__init__.py").is_file()
    assert (worker / "bin/tool").is_file()


def _build(project: Path) -> None:
    """Validate and build it, and import what was built as Lambda does."""
    run(["make", "validate"], cwd=project)
    linter = Path(sys.executable).with_name("cfn-lint")
    run(
        [linter, "template.yaml", "fargate.yaml", "--append-rules", "cfn_lint_serverless.rules"],
        cwd=project,
    )
    made = run(["make", "build"], cwd=project, **this_machine())
    assert "Build Succeeded" in made
    worker = project / ".aws-sam/build/WorkerFunction"
    layer = project / ".aws-sam/build/RuntimeLayer/python"
    assert (layer / "a2a_serverless/worker").is_dir()
    assert not (layer / "a2a_serverless/cli").exists()
    assert sum(path.stat().st_size for path in layer.rglob("*") if path.is_file()) < LAYER_BYTES
    assert not _packages(worker) & _packages(layer)
    assert not {"requirements.in", "requirements.txt", "Makefile"} & {
        p.name for p in worker.iterdir()
    }

    site = next((project / ".venv/lib").glob("python3.*")) / "site-packages"
    runtime = project / "runtime"  # what Lambda's own Python brings
    for name in ("boto3", "botocore", "s3transfer", "jmespath", "dateutil", "urllib3", "six.py"):
        (runtime / name).parent.mkdir(exist_ok=True)
        (runtime / name).symlink_to(site / name)
    path = os.pathsep.join(map(str, (worker, layer, runtime)))
    command = [project / ".venv/bin/python", "-S", "-c", IMPORTS]
    said = run(command, cwd=project, PYTHONPATH=path, PYTHONWARNINGS="ignore")
    *of_layer, agent = json.loads(said.splitlines()[-1])
    assert all(name == "namespace" or name.startswith(str(layer)) for name in of_layer), of_layer
    assert agent.startswith(str(worker))


def _image(context: Path, wheel: Path) -> None:
    """Run the build stage of the project's Dockerfile, and start what the image starts."""
    (context / "functions/worker/.env").write_text("MODEL_API_KEY=secret")
    wheels = context / "functions/worker/wheels"
    wheels.mkdir(exist_ok=True)
    shutil.copy(wheel, wheels)
    run([sys.executable, "-m", "venv", "pip"], cwd=context.parent)
    python = context.parent / "pip/bin/python"
    root = context.parent / "root"
    root.mkdir()
    build_stage(context, root, python)
    assert not list(root.rglob(".env"))
    assert not _packages(root / "app") & _packages(root / "site")
    path = {"PYTHONPATH": f"{root}/app:{root}/site", "PYTHONWARNINGS": "ignore"}
    said = run([sys.executable, "-S", "-c", IMPORTS], cwd=root / "app", **path)
    *of_image, agent = json.loads(said.splitlines()[-1])
    assert all(name == "namespace" or name.startswith(f"{root}/site") for name in of_image)
    assert agent == f"{root}/app/agent.py"
    worker = ["a2a_serverless_tools.cli", "worker", "--agent", f"{agent}:agent"]
    command = [sys.executable, "-S", "-m", *worker]
    path["A2A_CONVERSATIONS"] = "serial"  # some kinds keep a state, and start with this alone
    with pytest.raises(AssertionError, match="A2A_TABLE is not set"):
        run(command, cwd=root / "app", **path)


def _packages(folder: Path) -> set[str]:
    """The names of the packages that are installed in a folder."""
    return {path.name.rpartition("-")[0] for path in folder.glob("*.dist-info")}


def _conflicts(project: Path) -> None:
    """What does not fit the layer stops the build with one sentence that names both."""
    requirements = project / "functions/worker/requirements.in"
    before = requirements.read_text()
    bundle = [project / ".venv/bin/a2a-serverless", "bundle", project / "none"]
    for number, (asked, has) in enumerate(CONFLICTS.items()):
        requirements.write_text(f"{before}\n{asked}\n")
        with pytest.raises(AssertionError) as stopped:
            run(bundle if number else ["make", "build"], cwd=project, **this_machine())
        assert re.search(rf"asks for {asked}, and the layer of .* has {has}", str(stopped.value))
    requirements.write_text(before)
    shutil.rmtree(project / ".aws-sam")


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
