"""The template and the image of external workers; the image is made without Docker.

The long form (`make image`) installs all packages for arm64.
"""

import os
import re
import sys
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from a2a_serverless.settings import CHOSEN, Observed, Settings, variable
from a2a_serverless.wiring import INDEXES_OF_WORKER
from a2a_serverless.worker.adapter import PULL_LIMIT_S
from a2a_serverless_tools.cli import main
from tests.infrastructure.test_address import refused
from tests.infrastructure.test_permissions import BOUNDARY
from tests.support.image import ARM64, build_stage, configuration, instructions, sent, stages
from tests.support.template import of_type, read

Json = dict[str, Any]


@pytest.fixture(scope="module")
def fargate(project: Path) -> Json:
    return read(project / "fargate.yaml")


@pytest.fixture(scope="module")
def container(fargate: Json) -> Json:
    (found,) = fargate["Resources"]["Worker"]["Properties"]["ContainerDefinitions"]
    return dict(found)


def own_statements(fargate: Json) -> list[Json]:
    """The statements of the worker's role, also those that a condition leaves out."""
    policies = fargate["Resources"]["TaskRole"]["Properties"]["Policies"]
    written = [p["Fn::If"][1] if "Fn::If" in p else p for p in policies]
    return [s for policy in written for s in policy["PolicyDocument"]["Statement"]]


def statements(role: Json) -> list[tuple[str, str, set[str]]]:
    """Sid, effect and actions of each statement of a role's own policy `worker`."""
    (policy,) = [p for p in role["Properties"]["Policies"] if p.get("PolicyName") == "worker"]
    found = policy["PolicyDocument"]["Statement"]
    acts = [s["Action"] if isinstance(s["Action"], list) else [s["Action"]] for s in found]
    return [(s["Sid"], s["Effect"], {*act}) for s, act in zip(found, acts, strict=True)]


SIDS = (*("Tasks", "ConsumeOperations", "Line", "Files", "FindFiles"), "SendOperations")


def test_a_worker_may_do_what_the_function_may(document: Json, fargate: Json) -> None:
    """The comparison of calls with permissions, made for the function, holds for the worker too.

    It may also set aside what it cannot read, and must not publish keys.
    """
    own = [s for s in statements(fargate["Resources"]["TaskRole"]) if s[1] == "Allow"]
    its = statements(document["Resources"]["WorkerRole"])
    assert [s for s in own if s[0] != "KeepUndecodable"] == its
    assert {s[0] for s in its} == set(SIDS)


def test_a_worker_reaches_what_the_function_reaches(document: Json, fargate: Json) -> None:
    """Table, index and queue of a statement are those of the function, but for the quarantine."""
    policies = document["Resources"]["WorkerRole"]["Properties"]["Policies"]
    functions = [s for p in policies for s in p.get("PolicyDocument", {}).get("Statement", [])]
    for sid in SIDS:
        its = str([s for s in functions if s["Sid"] == sid])
        (own,) = [str(s["Resource"]) for s in own_statements(fargate) if s["Sid"] == sid]
        assert ("/index/by-line" in own) is ("/index/by-line" in its), sid
        assert ("Ref': 'Queue'" in own) is ("OperationsQueue" in its), sid
        assert ("Table" in own) is ("TaskTable" in its), sid
        assert ("${Blobs}" in own) is ("BlobBucket" in its), sid


def test_workers_without_any_capacity_are_refused(fargate: Json) -> None:
    """Two weights of 0, with which ECS starts nothing, are named before anything is made."""
    (said,) = refused(fargate, OnDemandWeight="0", SpotWeight="0")
    assert said.startswith("SpotWeight 0 needs an OnDemandWeight")
    assert not refused(fargate, OnDemandWeight="1", SpotWeight="0")
    assert not refused(fargate, OnDemandWeight="0", SpotWeight="1")


def test_a_worker_cannot_publish_keys(document: Json, fargate: Json) -> None:
    """The Deny of the function's role is in the worker's too: webhooks trust what is written.

    The check at a worker's start asks for the indexes that its role may query, and no others.
    """
    policy = document["Resources"]["PublishedKeysPolicy"]["Properties"]["PolicyDocument"]
    [denied] = policy["Statement"]
    [tasks] = [s for s in own_statements(fargate) if s["Sid"] == "Tasks"]
    [own] = [s for s in own_statements(fargate) if s["Effect"] == "Deny"]
    assert own == {**denied, "Resource": tasks["Resource"]}
    resources = str([s["Resource"] for s in own_statements(fargate)])
    assert set(re.findall("/index/([a-z-]+)", resources)) == set(INDEXES_OF_WORKER)


def test_a_worker_uses_the_stacks_key_as_a_function_does(document: Json, fargate: Json) -> None:
    """A worker has the functions' rights to the KMS key, for the key's own ARN alone."""
    key = document["Resources"]["KeyPolicy"]["Properties"]["PolicyDocument"]["Statement"]
    assert [s for s in own_statements(fargate) if s["Resource"] == {"Ref": "KmsKeyArn"}] == key
    pattern = document["Parameters"]["KmsKeyArn"]["AllowedPattern"]
    assert fargate["Parameters"]["KmsKeyArn"]["AllowedPattern"] == pattern


def test_its_variables_are_settings(document: Json, container: Json) -> None:
    """The runtime reads every `A2A_` variable; its metrics are those of the main stack's alarms."""
    known = {CHOSEN, *map(variable, Settings.model_fields), *Observed.model_fields}
    given = {each["Name"]: each["Value"] for each in container["Environment"]}
    assert {name for name in given if name.startswith("A2A_")} <= known
    assert {"A2A_TABLE", "A2A_QUEUE"} <= given.keys()
    assert given["POWERTOOLS_SERVICE_NAME"] == {"Ref": "Stack"}
    alarm = document["Resources"]["AgentNotLoadedAlarm"]["Properties"]
    assert given["POWERTOOLS_METRICS_NAMESPACE"] == alarm["Namespace"]


def test_a_worker_has_no_more_than_it_needs(fargate: Json, container: Json) -> None:
    """Arm64, not root, a root file system that is read-only, and two minutes to end.

    The drain leaves 20 s of the 120 that a spot instance has.
    """
    task = fargate["Resources"]["Worker"]["Properties"]
    assert task["RuntimePlatform"]["CpuArchitecture"] == "ARM64"
    assert container["ReadonlyRootFilesystem"] is True
    assert container["User"] not in {"0", "root"}
    assert container["StopTimeout"] == 120
    command = container["Command"]
    assert int(command[command.index("--drain") + 1]) + 20 <= 120


def test_an_agent_can_write_temporary_files(project: Path, fargate: Json, container: Json) -> None:
    """What is mounted for writing belongs to the image's user, or to everyone, as in the image.

    Fargate copies a folder's owner and mode to a volume only from an image that declares the very
    path as a VOLUME. It mounts any other volume as root's, with the mode 0755.
    """
    assert container["MountPoints"] == [{"ContainerPath": "/tmp", "SourceVolume": "tmp"}]  # noqa: S108
    assert fargate["Resources"]["Worker"]["Properties"]["Volumes"] == [{"Name": "tmp"}]
    assert configuration(project)["VOLUME"] == container["MountPoints"][0]["ContainerPath"]
    last = stages(project)[-1]
    after = last[last.index(("VOLUME", "/tmp")) :]  # noqa: S108
    assert not [words for name, words in after if name in {"RUN", "COPY"}]  # these are discarded


def test_the_command_is_one_of_the_worker(
    fargate: Json, container: Json, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The template and the image name options that the command has, and take its longest turn."""
    with pytest.raises(SystemExit):
        main(["worker", "--help"])
    known = set(re.findall(r"--[a-z-]+", capsys.readouterr().out))
    image = (project / "Dockerfile").read_text(encoding="utf-8")
    started = [line for line in image.splitlines() if line.startswith(("ENTRYPOINT", "CMD"))]
    used = {word for word in container["Command"] if str(word).startswith("--")}
    assert used | set(re.findall(r"--[a-z-]+", " ".join(started))) <= known
    limit = fargate["Parameters"]["TurnLimit"]
    assert limit["MaxValue"] == limit["Default"] == PULL_LIMIT_S


def test_every_pair_of_cpu_and_memory_is_decided(fargate: Json) -> None:
    """What Fargate does not have is refused before anything is made, in words that name the way."""
    has = {"256": (512, 2048), "512": (1024, 4096), "1024": (2048, 8192), "2048": (4096, 16384)}
    values = [fargate["Parameters"][name]["AllowedValues"] for name in ("Cpu", "Memory")]
    for cpu, memory in product(*values):
        least, most = has.get(cpu, (8192, 30720))
        said = refused(fargate, Cpu=cpu, Memory=memory)
        assert bool(said) is not (least <= int(memory) <= most), (cpu, memory)
        assert all(sentence.startswith(f"Cpu {cpu} needs a Memory of ") for sentence in said)
    assert refused(fargate) == []


def test_the_context_has_what_is_copied_and_no_key(project: Path) -> None:
    """An image is built from the agent, its wheels and the locks, and never from `.env`."""
    copied = [words.split()[:-1] for name, words in instructions(project) if name == "COPY"]
    sources = [source for each in copied for source in each]
    assert sources
    for source in sources:
        found = [path.relative_to(project).as_posix() for path in project.glob(source)]
        assert found, source
        assert all(sent(project, path) for path in found), source
    for name in ("functions/worker/agent.py", "functions/worker/wheels/own-1-py3-none-any.whl"):
        assert sent(project, name)
    for name in (".env", "functions/worker/.env", "requirements/dev.txt", "tests/test_agent.py"):
        assert not sent(project, name)


def test_an_image_installs_nothing_without_its_hash(project: Path) -> None:
    """Each pip takes a lock alone: neither a source archive nor a package that it does not name."""
    scripts = " ".join(words for name, words in instructions(project) if name == "RUN")
    installs = scripts.split("pip install")[1:]
    assert len(installs) == 2
    for arguments in installs:
        assert {"--require-hashes", "--no-deps", "--only-binary"} <= set(arguments.split())


def test_the_agents_parameters_are_those_of_the_stack(document: Json, fargate: Json) -> None:
    """Secret, policies, boundary and environment have one form and meaning in both templates."""
    agents = ("AgentSecretArn", "AgentPolicyArns", "AgentEnvironment", "Settings")
    for name in (*agents, "PermissionsBoundaryArn"):
        own, stacks = fargate["Parameters"][name], document["Parameters"][name]
        assert {**own, "Description": ""} == {**stacks, "Description": ""}
    assert {"VpcSubnetIds", "VpcSecurityGroupIds"} <= fargate["Parameters"].keys()
    roles = of_type(fargate["Resources"], "AWS::IAM::Role").values()
    assert [role["PermissionsBoundary"] for role in roles] == 2 * [BOUNDARY]


def test_the_agents_parameters_reach_it(document: Json, fargate: Json, container: Json) -> None:
    """The worker gets the same variables as the function, and alone may read the secret."""
    given = {each["Name"]: each["Value"] for each in container["Environment"]}
    function = document["Resources"]["WorkerFunction"]["Properties"]["Environment"]["Variables"]
    for name in ("A2A_AGENT_SECRET", "A2A_AGENT_ENVIRONMENT"):
        assert given[name] == function[name]
    roles, secret = fargate["Resources"], "secretsmanager:GetSecretValue"
    its = [name for name in ("TaskRole", "ExecutionRole") if secret in str(roles[name])]
    assert its == ["TaskRole"]
    chosen = ["HasAgentPolicies", {"Fn::Split": [",", {"Ref": "AgentPolicyArns"}]}]
    assert roles["TaskRole"]["Properties"]["ManagedPolicyArns"]["Fn::If"][:2] == chosen


def test_external_workers_leave_the_function_its_source(transformed: Json) -> None:
    """With Worker external the event source is disabled; function and queue stay."""
    for name in ("WorkerFunctionOperations", "WorkerFunction", "OperationsQueue"):
        assert "Condition" not in transformed[name]


# -- the image -------------------------------------------------------------------------------------

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
    """Its user is not root, and SIGTERM reaches the worker, its first process.

    One folder has the framework, the other one the agent, without what only Lambda needs.
    """
    config, found = configuration(project), contents(root)
    assert config["ENTRYPOINT"][:4] == ["python", "-m", "a2a_serverless_tools.cli", "worker"]
    assert "site/a2a_serverless_tools/cli/__main__.py" in found
    agent = config["ENTRYPOINT"][config["ENTRYPOINT"].index("--agent") + 1]
    assert agent.partition(":")[0].strip("/") in found
    assert config["ENV"]["PYTHONPATH"] == "/app:/site"
    # By a number a user can be told not to be root; all else than /tmp is read-only.
    wanted = {"USER": "10001", "STOPSIGNAL": "SIGTERM", "WORKDIR": "/app", "VOLUME": "/tmp"}  # noqa: S108
    assert wanted.items() <= config.items()
    copies = [words for name, words in stages(project)[-1] if name == "COPY"]
    assert copies == ["--from=build /site /site", "--from=build /app /app"]
    for place, name, path in (
        ("site", "a2a_serverless_tools/cli/processes.py", "src"),
        ("site", "a2a_serverless/worker/adapter.py", "layers/runtime"),
        ("app", "agent.py", "functions/worker"),
    ):
        assert found[f"{place}/{name}"] == (project / path / name).read_bytes()
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
