"""The agent's packages beside those of the layer, out of wheels that the tests make."""

from __future__ import annotations

import os
import re
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, Response
from starlette.routing import Route

from a2a_serverless import __version__
from a2a_serverless.errors import ConfigurationError
from a2a_serverless_tools.cli import main
from a2a_serverless_tools.local.http_server import HttpServer
from a2a_serverless_tools.local.sockets import bind
from a2a_serverless_tools.scaffold import sizes
from a2a_serverless_tools.scaffold.dependencies import DEVELOPMENT, DEVELOPMENT_LOCK, Dependencies
from a2a_serverless_tools.scaffold.source import (
    AGENT_LOCK,
    LAYER_LOCK,
    REQUIREMENTS,
    WORKER_LOCK,
    source,
)
from tests.support.wheels import make_wheel

LAYER = """\
pydantic==2.13.5 \\
    --hash=sha256:00
protobuf==7.36.2 ; python_full_version < '3.15' \\
    --hash=sha256:00
a2a-sdk==1.3.0
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a layer, and wheels of its own in place of an index."""
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.delenv("UV_FIND_LINKS", raising=False)
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements/runtime.txt").write_text(LAYER)
    (tmp_path / "layers/runtime/a2a_serverless").mkdir(parents=True)
    wheels(
        tmp_path,
        *(("pydantic", "2.13.5"), ("protobuf", "7.36.2"), ("a2a_sdk", "1.3.0", "pydantic>=2")),
        *(("framework", "1.0", "pydantic>=2.1", "helper"), ("helper", "3.1")),
        ("outdated", "1.0", "helper", "pydantic<2"),
    )
    return tmp_path


def asks(folder: Path, *lines: str) -> Dependencies:
    """The dependencies of the project with these lines in requirements.in."""
    (folder / REQUIREMENTS).write_text("\n".join(["# What the agent imports.", *lines, ""]))
    return Dependencies(folder)


def locked(folder: Path, *lines: str) -> Dependencies:
    """The same, with their locks."""
    project = asks(folder, *lines)
    project.lock()
    return project


def refusal(call: Callable[[], object]) -> str:
    """The sentence with which a call is refused."""
    with pytest.raises(ConfigurationError) as refused:
        call()
    return str(refused.value)


def wheels(folder: Path, *packages: tuple[str, ...], **options: Any) -> None:
    """Put wheels into the project: name, version, and what they need."""
    for package in packages:
        make_wheel(folder / "functions/worker/wheels", *package, **options)


def bundled(project: Dependencies, folder: Path) -> list[str]:
    """The modules that the worker's function gets."""
    target = folder / "built"
    target.mkdir()
    project.bundle(target, python_version="3.13", python_platform="aarch64-manylinux_2_34")
    return sorted(path.name for path in target.glob("*/__init__.py") for path in [path.parent])


@pytest.mark.long
def test_what_the_layer_has_is_not_packaged_again(folder: Path) -> None:
    """The function gets what the agent asks for, with hashes, and nothing that the layer has."""
    project = locked(folder, "framework>=1  # ours", "a2a-sdk")

    lock = (folder / AGENT_LOCK).read_text()
    assert "framework==1.0 \\\n    --hash=sha256:" in lock
    assert "helper==3.1" in lock
    assert "pydantic" not in lock
    assert str(folder) not in lock
    assert bundled(project, folder) == ["framework", "helper"]


@pytest.mark.long
def test_a_package_that_fits_the_layer_up_to_a_python(folder: Path) -> None:
    """Where a newer one asks for another version of the layer's, it is locked for those before.

    Pydantic AI is such a one since `genai-prices` asks for pydantic 2.14 on Python 3.15.
    """
    wheels(
        folder,
        ("prices", "1.0", "pydantic>=2.14; python_version >= '3.15'"),
        ("later", "1.0", "helper", "pydantic>=2.14; python_version >= '3.14'"),
        ("model", "1.0", "pydantic", "prices"),
    )
    (folder / DEVELOPMENT).write_text("helper\n")
    project = locked(folder, "model", "framework; sys_platform != 'win32'")
    for name in (AGENT_LOCK, DEVELOPMENT_LOCK):
        assert "model==1.0 ; python_full_version < '3.15'" in (folder / name).read_text()
    assert "helper==3.1 \\" in (folder / DEVELOPMENT_LOCK).read_text(), "for each Python"
    assert bundled(project, folder) == ["framework", "helper", "model", "prices"]

    locked(folder, "model", "later")
    assert "model==1.0 ; python_full_version < '3.14'" in (folder / AGENT_LOCK).read_text()
    wheels(folder, ("soon", "1.0", "pydantic>=2.14; python_version >= '3.13'"))
    assert "cannot be had: No solution found" in refusal(asks(folder, "soon").lock)


def test_a_project_locks_the_framework_for_layer_and_image(folder: Path) -> None:
    """Both locks begin with the framework and its hash; the rest is the tested lock."""
    shutil.rmtree(folder / "layers")
    wheels(folder, ("a2a_serverless", __version__))
    (folder / LAYER_LOCK).unlink()
    asks(folder).lock()

    for lock in (LAYER_LOCK, WORKER_LOCK):
        own, tested = (folder / lock).read_text(), (source() / lock).read_text()
        assert own.startswith(f"a2a-serverless=={__version__} \\\n    --hash=sha256:")
        assert own.endswith(tested)
        assert own.count("a2a-serverless") == 1


def test_what_the_layer_lacks_on_lambda_is_packaged(folder: Path) -> None:
    """A package that the layer's lock has for older interpreters alone is the function's own.

    Its version there is no condition, either: the function has the agent's.
    """
    wheels(folder, ("sniffio", "1.2"), ("model", "1.0", "sniffio<1.3", "pydantic"))
    (folder / LAYER_LOCK).write_text(f"{LAYER}sniffio==1.3.1 ; python_full_version < '3.13'\n")
    project = locked(folder, "model")

    assert bundled(project, folder) == ["model", "sniffio"]


@pytest.mark.long
def test_a_lock_is_the_same_whichever_python_makes_it(folder: Path) -> None:
    """What older interpreters need is in each lock, with its marker, and not in the function."""
    wheels(folder, ("backport", "1.0"), ("model", "1.0", "backport ; python_version < '3.12'"))
    (folder / DEVELOPMENT).write_text("model\n")
    project = locked(folder, "model")

    for lock in (AGENT_LOCK, DEVELOPMENT_LOCK):
        assert "backport==1.0 ; python_full_version < '3.12'" in (folder / lock).read_text()
    assert bundled(project, folder) == ["model"]


@pytest.mark.long
def test_a_package_for_newer_interpreters_alone_needs_its_marker(folder: Path) -> None:
    """The sentence names the package, and the marker by which it is locked and deployed."""
    wheels(folder, ("modern", "1.0"), requires_python=">=3.12")
    said = refusal(asks(folder, "modern>=1").lock)
    way_out = re.search(r"such as `(.+?)`\.", said)
    assert way_out, said
    assert way_out[1] == 'modern; python_version >= "3.12"'

    project = locked(folder, way_out[1])
    assert bundled(project, folder) == ["modern"]


def test_a_requirement_for_other_machines_is_no_conflict(folder: Path) -> None:
    """What a marker keeps from Lambda is not compared with the layer."""
    asks(folder, 'protobuf<6; sys_platform == "win32"', 'pydantic<2; python_version < "3"').lock()
    with pytest.raises(ConfigurationError, match="line 2, asks for protobuf<6"):
        asks(folder, 'protobuf<6; sys_platform == "linux"').lock()


def test_the_framework_is_the_layers(folder: Path) -> None:
    """An agent may ask for an extra of the framework: its packages are the function's."""
    versions = (("99.0", "helper"), (__version__, "helper", "pydantic"))
    wheels(folder, *(("a2a_serverless", *version) for version in versions))
    project = locked(folder, "a2a-serverless[helpful]")

    assert bundled(project, folder) == ["helper"]


@pytest.mark.long(but=1)
@pytest.mark.parametrize("form", ["path", "relative", "url"])
def test_wheels_of_folders_in_the_environment_are_hashed(
    folder: Path, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`make lock` names folders by UV_FIND_LINKS: their wheels have hashes, too."""
    there = folder / "my wheels"
    make_wheel(there, "beside", "1.0")
    links = {"path": str(there), "relative": there.name, "url": there.as_uri()}
    monkeypatch.setenv("UV_FIND_LINKS", links[form])
    project = locked(folder, "beside")

    assert "beside==1.0 \\\n    --hash=sha256:" in (folder / AGENT_LOCK).read_text()
    assert bundled(project, folder) == ["beside"]


def test_folders_are_named_from_the_current_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`--find-links` in a folder of the project means what the shell would mean."""
    make_wheel(folder / "tests/wheels", "beside", "1.0")
    monkeypatch.chdir(folder / "tests")
    asks(folder, "beside")
    Dependencies(folder, ["wheels"]).lock()
    assert "beside==1.0" in (folder / AGENT_LOCK).read_text()


@pytest.mark.long
def test_folders_are_remembered_for_make_and_later_calls(folder: Path, tmp_path: Path) -> None:
    """`init`, `lock` and `upgrade` add those that local.mk does not name, as words."""
    own, *given = [str(tmp_path / name) for name in ("mine", "a", "my wheels")]
    for link in (own, *given):
        make_wheel(Path(link), "beside", "1.0")
    (folder / "local.mk").write_text(f"WHEELS := {own}\n")
    asks(folder, "beside")
    for links in (given[:1], given, []):
        Dependencies(folder, links).lock()
    assert (folder / "local.mk").read_text() == (
        f"WHEELS := {own}\nWHEELS += {tmp_path}/a\nWHEELS += file://{tmp_path}/my%20wheels\n"
    )


def test_a_wheel_that_was_built_anew_is_explained(folder: Path) -> None:
    """The lock has the hash of the file before; the sentence names the package and the way out."""
    project = locked(folder, "helper")
    make_wheel(folder / "functions/worker/wheels", "helper", "3.1", size=7)

    assert refusal(lambda: bundled(project, folder)) == (
        "helper==3.1 is not the file that was locked: if you have built it anew, run"
        " `a2a-serverless lock`."
    )


def test_one_version_is_tested_and_deployed(folder: Path) -> None:
    """A lock by another version than that of requirements/dev.in is refused."""
    shutil.rmtree(folder / "layers")
    wheels(folder, ("a2a_serverless", __version__))
    development = folder / "requirements/dev.in"
    development.write_text("# tools\npytest>=8\na2a-serverless[local]==0.1.7\n")
    before = (folder / LAYER_LOCK).read_text()

    assert refusal(asks(folder).lock).startswith(
        "requirements/dev.in names a2a-serverless[local]==0.1.7, and this is a2a-serverless"
        f" {__version__}: run `make lock`"
    )
    assert (folder / LAYER_LOCK).read_text() == before


@pytest.mark.long
def test_folders_that_the_project_remembers_are_searched(folder: Path, tmp_path: Path) -> None:
    """`lock` and `upgrade` find what `make` finds: local.mk has the folders of this machine."""
    elsewhere = tmp_path / "else where"
    make_wheel(elsewhere, "remembered", "1.0")
    assert "remembered" in refusal(asks(folder, "remembered").lock)

    (folder / "local.mk").write_text(f"WHEELS := {elsewhere.as_uri()} # mine\n")
    locked(folder, "remembered")
    assert "remembered==1.0" in (folder / AGENT_LOCK).read_text()


@pytest.mark.long
def test_a_framework_that_no_index_has_is_named(folder: Path) -> None:
    """Of a release that is not published, the sentence says how its wheel is found."""
    shutil.rmtree(folder / "layers")
    for other in ((), (("a2a_serverless", "98.0"),)):
        wheels(folder, *other)
        said = refusal(asks(folder).lock)
        assert re.match(rf"a2a-serverless {__version__} is not in .* --find-links", said)


def test_a_file_of_windows_is_read(folder: Path) -> None:
    """Its mark of byte order and its line ends are no part of a requirement."""
    (folder / REQUIREMENTS).write_bytes(b"\xef\xbb\xbfhelper\r\n# more\r\n")
    project = Dependencies(folder)
    project.lock()
    asks(folder, "helper").check()


@pytest.mark.parametrize(
    ("asked", "has"),
    [
        ("protobuf<6", "protobuf==7.36.2"),
        ("a2a-sdk<1", "a2a-sdk==1.3.0"),
        ("Pydantic==2.14.3", "pydantic==2.13.5"),
    ],
)
def test_a_conflict_with_the_layer_stops_the_build(folder: Path, asked: str, has: str) -> None:
    """One sentence names both requirements, and the line, whether it was locked or not."""
    project = asks(folder, "helper", asked)

    for stopped in (lambda: bundled(project, folder), project.lock):
        assert refusal(stopped).startswith(
            f"{REQUIREMENTS}, line 3, asks for {asked}, and the layer of"
            f" a2a-serverless {__version__} has {has}: "
        )


@pytest.mark.long
def test_a_conflict_of_a_package_is_named_too(folder: Path) -> None:
    """If a package of the agent does not fit the layer, the error names that package."""
    project = asks(folder, "outdated")

    for stopped in (project.lock, project.check):
        who, _, rest = refusal(stopped).partition(" asks for pydantic<2")
        assert "outdated" in who
        assert "has pydantic==2.13.5: one process has one of them" in rest


@pytest.mark.long
def test_what_was_not_locked_is_not_built(folder: Path) -> None:
    """A line more, or another layer, asks for a new lock; a comment does not."""
    locked(folder, "helper")
    asks(folder, "# a remark", "helper").check()

    assert "run `a2a-serverless lock`" in refusal(asks(folder, "helper", "framework").check)
    (folder / "requirements/runtime.txt").write_text(LAYER.replace("7.36.2", "7.36.3"))
    assert "run `a2a-serverless lock`" in refusal(asks(folder, "helper").check)


@pytest.mark.parametrize(
    "line",
    [
        *("./wheels/helper-3.1-py3-none-any.whl", "helper @ file:///helper.whl", "-e ."),
        *("git+https://example.com/helper", "--index-url https://example.com"),
    ],
)
def test_a_requirement_is_a_name(folder: Path, line: str) -> None:
    """A wheel of one's own goes into its folder; the sentence says which, and names the line."""
    said = refusal(asks(folder, "helper", line).lock)
    assert f"{REQUIREMENTS}, line 3: '{line}' is not the name of a package" in said
    assert "functions/worker/wheels" in said


def test_a_package_without_a_wheel_is_explained(folder: Path) -> None:
    """A package that there is as source alone is named, with the way to a wheel."""
    (folder / "functions/worker/wheels/sourced-1.0.tar.gz").write_bytes(b"")
    said = refusal(asks(folder, "sourced").lock)
    assert re.search(r"sourced\S* has no wheel for any platform: build one", said)
    assert "pip wheel --no-deps -w functions/worker/wheels sourced" in said


@pytest.mark.long
def test_a_package_without_a_wheel_for_lambda_is_explained(folder: Path) -> None:
    """A package whose wheels are for another machine is named when it is built."""
    own = folder / "functions/worker/wheels"
    (own / "helper-3.1-py3-none-any.whl").rename(own / "helper-3.1-py3-none-win_amd64.whl")
    project = locked(folder, "helper")

    said = refusal(lambda: bundled(project, folder))
    assert re.search(r"helper\S* has no wheel for Lambda \(aarch64", said)


def test_a_package_that_does_not_exist_is_named(folder: Path) -> None:
    """The sentence is in one line and names the package."""
    said = refusal(asks(folder, "helpr").lock)
    assert re.search(r"cannot be had: .*helpr", said)
    assert "\n" not in said


def test_what_lambda_does_not_take_stops_the_build(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sizes are named, the largest first, and what is left beside the layer."""
    monkeypatch.setattr(sizes, "LIMIT_BYTES", sizes.LAYER_BYTES + 2_000_000)
    for name, size in (("small", 1_000), ("large", 5_000_000), ("larger", 7_000_000)):
        (tmp_path / name / "sub").mkdir(parents=True)
        (tmp_path / name / "sub/code.py").write_bytes(b"x" * size)
    (tmp_path / "data.bin").write_bytes(b"x" * 1_000_000)

    assert main(["bundle", "--measure", str(tmp_path)]) == 2

    assert capsys.readouterr().err == (
        "a2a-serverless: Agent and packages take 13 MB and Lambda leaves 2 MB beside the layer"
        " (larger 7 MB, large 5 MB, data.bin 1 MB): leave something out of"
        " functions/worker/requirements.in.\n"
    )
    monkeypatch.setattr(sizes, "LIMIT_BYTES", sizes.LAYER_BYTES + 14_000_000)
    assert main(["bundle", "--measure", str(tmp_path)]) == 0


def test_what_lambda_does_not_take_is_not_locked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The lock before stays, and the sentence names the largest; what fits is locked."""
    monkeypatch.setattr(sizes, "LIMIT_BYTES", sizes.LAYER_BYTES + 8_000_000)
    wheels(folder, ("large", "1.0", "larger"), size=3_000_000)
    wheels(folder, ("larger", "1.0"), size=5_000_000)
    locked(folder, "helper")
    before = (folder / AGENT_LOCK).read_bytes()

    assert refusal(asks(folder, "helper", "large").lock) == (
        "The packages take at least 8 MB and Lambda leaves 8 MB beside the layer (larger 5 MB,"
        " large 3 MB, helper 0 MB): leave something out of functions/worker/requirements.in."
    )
    assert (folder / AGENT_LOCK).read_bytes() == before
    locked(folder, "larger")


def test_a_wheel_is_as_large_as_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its directory is read from the index; where that gives no ranges, its own bytes count."""
    monkeypatch.setattr(sizes, "LIMIT_BYTES", sizes.LAYER_BYTES + 12_000_000)
    noise = os.urandom(2_000_000)
    with zipfile.ZipFile(tmp_path / "w.whl", "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr("noise", noise)
        wheel.writestr("zeros", b"0" * 11_000_000)
    size = (tmp_path / "w.whl").stat().st_size
    asked: list[str] = []

    async def ranged(request: Request) -> Response:
        asked.append(request.headers["range"])
        return FileResponse(tmp_path / "w.whl")

    async def whole(_: Request) -> Response:
        return Response(b"")

    def lock(url: str) -> str:
        wheel = f'{{ url = "{url}", size = {size}, hashes = {{}} }}'
        return f'[[packages]]\nname = "w"\nwheels = [{wheel}]\n'

    app = Starlette(routes=[Route("/w.whl", ranged), Route("/whole.whl", whole)])
    with HttpServer(app, bind(0)) as index:
        said = refusal(lambda: sizes.check_wheels(lock(f"{index.url}/w.whl")))
        sizes.check_wheels(lock(f"{index.url}/whole.whl"))
    sizes.check_wheels(lock("http://127.0.0.1:1/w.whl"))
    assert "at least 13 MB and Lambda leaves 12 MB beside the layer (w 13 MB)" in said
    assert len(asked) <= 4


@pytest.mark.long
def test_boto3_is_lambdas_unless_it_is_asked_for(folder: Path) -> None:
    """An agent whose SDK needs boto3 has that of the runtime; one that names it, its own."""
    boto3 = ("boto3", "1.44.5", "botocore")
    wheels(folder, boto3, ("botocore", "1.44.5"), ("sdk", "1.0", "boto3>=1.40"))
    asks(folder, "sdk").lock()
    assert "boto" not in (folder / AGENT_LOCK).read_text()

    asks(folder, "sdk", "boto3>=1.44").lock()
    lock = (folder / AGENT_LOCK).read_text()
    assert "boto3==1.44.5" in lock
    assert "botocore==1.44.5" in lock


def test_the_frameworks_own_lock_is_new(project: Path) -> None:
    """The repository's top level is a project whose build does not stop."""
    Dependencies(project).check()
