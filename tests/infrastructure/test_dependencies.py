"""The agent's packages beside those of the layer, out of wheels that the tests make."""

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
from a2a_serverless_tools.scaffold import sizes, source
from a2a_serverless_tools.scaffold.dependencies import DEVELOPMENT, DEVELOPMENT_LOCK, Dependencies

HASH = "\\\n    --hash=sha256:"
LAYER = """\
pydantic==2.13.5 \\
    --hash=sha256:00
protobuf==7.36.2 ; python_full_version < '3.15' \\
    --hash=sha256:00
a2a-sdk==1.3.0
sniffio==1.3.1 ; python_full_version < '3.13'
"""


WHEELS = [
    *(("pydantic", "2.13.5"), ("protobuf", "7.36.2"), ("a2a_sdk", "1.3.0", "pydantic>=2")),
    *(("framework", "1.0", "pydantic>=2.1", "helper"), ("helper", "3.1")),
    ("outdated", "1.0", "helper", "pydantic<2"),
    *(("sniffio", "1.2"), ("lacks", "1.0", "sniffio<1.3", "pydantic")),
    *(("backport", "1.0"), ("older", "1.0", "backport ; python_version < '3.12'")),
    *(("boto3", "1.44.5", "botocore"), ("botocore", "1.44.5"), ("sdk", "1.0", "boto3>=1.40")),
    ("prices", "1.0", "pydantic>=2.14; python_version >= '3.15'"),
    ("later", "1.0", "helper", "pydantic>=2.14; python_version >= '3.14'"),
    ("soon", "1.0", "pydantic>=2.14; python_version >= '3.13'"),
    ("model", "1.0", "pydantic", "prices"),
]
"""Packages by name and version, with what they need; `sniffio` is the layer's on older Pythons."""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with a layer, and wheels of its own in place of an index; not to be edited."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "requirements").mkdir()
    (folder / source.LAYER_LOCK).write_text(LAYER)
    (folder / "layers/runtime/a2a_serverless").mkdir(parents=True)
    wheels(folder, *WHEELS)
    wheels(folder, ("modern", "1.0"), requires_python=">=3.12")
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UV_OFFLINE", "1")
    monkeypatch.setenv("UV_CACHE_DIR", str(made / "uv"))
    monkeypatch.delenv("UV_FIND_LINKS", raising=False)
    ignore = shutil.ignore_patterns("uv")
    return shutil.copytree(made, tmp_path, dirs_exist_ok=True, ignore=ignore)


def asks(folder: Path, *lines: str) -> Dependencies:
    """The dependencies of the project with these lines in requirements.in."""
    (folder / source.REQUIREMENTS).write_text("\n".join(["# What the agent imports.", *lines, ""]))
    return Dependencies(folder)


def locked(folder: Path, *lines: str) -> Dependencies:
    """The same, with their locks."""
    project = asks(folder, *lines)
    project.lock()
    return project


def refusal(call: Callable[[], object]) -> str:
    with pytest.raises(ConfigurationError) as refused:
        call()
    return str(refused.value)


def make_wheel(
    folder: Path,
    name: str,
    version: str,
    *requires: str,
    size: int = 0,
    requires_python: str = ">=3",
) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    info = f"{name}-{version}.dist-info"
    metadata = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}"]
    metadata.append(f"Requires-Python: {requires_python}")
    metadata += [f"Requires-Dist: {requirement}" for requirement in requires]
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{name}/__init__.py", "x" * size)
        archive.writestr(f"{info}/METADATA", "\n".join([*metadata, ""]))
        wheel = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{info}/WHEEL", wheel)
        archive.writestr(f"{info}/RECORD", "")


def wheels(folder: Path, *packages: tuple[str, ...], **options: Any) -> None:
    """Put wheels into the project: name, version, and what they need."""
    for package in packages:
        make_wheel(folder / "functions/worker/wheels", *package, **options)


def bundled(project: Dependencies, folder: Path) -> list[str]:
    """The modules that the worker's function gets."""
    target = folder / "built"
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    project.bundle(target, python_version="3.13", python_platform="aarch64-manylinux_2_34")
    return sorted(path.name for path in target.glob("*/__init__.py") for path in [path.parent])


HASHED = f"framework==1.0 {HASH}"
MODEL, ELSEWHERE = "model==1.0 ; python_full_version", "framework; sys_platform != 'win32'"
LOCKED = [
    # lines of requirements.in, texts that the lock has, modules that the function gets
    (["framework>=1  # ours", "a2a-sdk"], [HASHED, "helper==3.1"], "framework helper"),
    (["lacks"], [], "lacks sniffio"),
    (["a2a-serverless[helpful]"], [], "helper"),
    (["older"], ["backport==1.0 ; python_full_version < '3.12'"], "older"),
    (["sdk"], [], "sdk"),
    (["sdk", "boto3>=1.44"], ["boto3==1.44.5", "botocore==1.44.5"], "boto3 botocore sdk"),
    (["model", "later"], [f"{MODEL} < '3.14'"], "helper later model prices"),
    (["model", ELSEWHERE], [f"{MODEL} < '3.15'"], "framework helper model prices"),
]


@pytest.mark.long(but=3)
@pytest.mark.parametrize(("lines", "has", "modules"), LOCKED)
def test_what_the_layer_lacks(folder: Path, lines: list[str], has: list[str], modules: str) -> None:
    """The function gets what the agent asks for, with hashes, and nothing that the layer has.

    A package that the layer has for older interpreters alone is the function's own. What an
    interpreter needs is in the lock with its marker, whichever one makes it. boto3 is Lambda's
    unless it is asked for by name. Where a newer interpreter asks for another version of the
    layer's, the package is locked for those before.
    """
    versions = (("99.0", "helper"), (__version__, "helper", "pydantic"))
    wheels(folder, *(("a2a_serverless", *version) for version in versions))
    project = locked(folder, *lines)
    lock = (folder / source.AGENT_LOCK).read_text()
    assert [text for text in has if text not in lock] == []
    names = {line.partition("==")[0] for line in lock.splitlines() if "==" in line}
    assert names.isdisjoint({"pydantic", "protobuf", "a2a-sdk", "a2a-serverless"})
    assert ("boto" in lock) is ("boto" in modules)
    assert str(folder) not in lock
    assert bundled(project, folder) == modules.split()


@pytest.mark.long
def test_the_tools_lock_is_for_each_python(folder: Path) -> None:
    """What is developed with has the agent's packages too, and its own for each interpreter."""
    (folder / DEVELOPMENT).write_text("helper\n")
    locked(folder, "model", "older")
    lock = (folder / DEVELOPMENT_LOCK).read_text()
    assert "model==1.0 ; python_full_version < '3.15'" in lock
    assert "backport==1.0 ; python_full_version < '3.12'" in lock
    assert "helper==3.1 \\" in lock


def test_a_project_locks_the_framework_for_layer_and_image(folder: Path) -> None:
    """Both locks begin with the framework and its hash; the rest is the tested lock."""
    shutil.rmtree(folder / "layers")
    wheels(folder, ("a2a_serverless", __version__))
    (folder / source.LAYER_LOCK).unlink()
    asks(folder).lock()

    for lock in (source.LAYER_LOCK, source.WORKER_LOCK):
        own, tested = (folder / lock).read_text(), (source.source() / lock).read_text()
        assert own.startswith(f"a2a-serverless=={__version__} \\\n    --hash=sha256:")
        assert own.endswith(tested)
        assert own.count("a2a-serverless") == 1


def test_a_requirement_for_other_machines_is_no_conflict(folder: Path) -> None:
    """What a marker keeps from Lambda is not compared with the layer."""
    asks(folder, 'protobuf<6; sys_platform == "win32"', 'pydantic<2; python_version < "3"').lock()


@pytest.mark.long(but=1)
@pytest.mark.parametrize("form", ["path", "relative", "url"])
def test_folder_wheels_are_hashed(folder: Path, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`make lock` names folders by UV_FIND_LINKS: their wheels have hashes, too."""
    there = folder / "my wheels"
    make_wheel(there, "beside", "1.0")
    links = {"path": str(there), "relative": there.name, "url": there.as_uri()}
    monkeypatch.setenv("UV_FIND_LINKS", links[form])
    project = locked(folder, "beside")

    assert "beside==1.0 \\\n    --hash=sha256:" in (folder / source.AGENT_LOCK).read_text()
    assert bundled(project, folder) == ["beside"]


def test_folders_are_named_from_here(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--find-links` in a folder of the project means what the shell would mean."""
    make_wheel(folder / "tests/wheels", "beside", "1.0")
    monkeypatch.chdir(folder / "tests")
    asks(folder, "beside")
    Dependencies(folder, ["wheels"]).lock()
    assert "beside==1.0" in (folder / source.AGENT_LOCK).read_text()


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
    before = (folder / source.LAYER_LOCK).read_text()

    assert refusal(asks(folder).lock).startswith(
        "requirements/dev.in names a2a-serverless[local]==0.1.7, and this is a2a-serverless"
        f" {__version__}: run `make lock`"
    )
    assert (folder / source.LAYER_LOCK).read_text() == before


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
    (folder / source.REQUIREMENTS).write_bytes(b"\xef\xbb\xbfhelper\r\n# more\r\n")
    project = Dependencies(folder)
    project.lock()
    asks(folder, "helper").check()


OURS = rf"{source.REQUIREMENTS}, line 3"
HAS = rf"and the layer of a2a-serverless {re.escape(__version__)} has"
NO_NAME = r"is not the name of a package.*functions/worker/wheels"
REFUSED = [
    # a requirement, and the sentence with which `lock` refuses it
    ("protobuf<6", rf"^{OURS}, asks for protobuf<6, {HAS} protobuf==7\.36\.2: "),
    ("a2a-sdk<1", rf"^{OURS}, asks for a2a-sdk<1, {HAS} a2a-sdk==1\.3\.0: "),
    ("Pydantic==2.14.3", rf"^{OURS}, asks for Pydantic==2\.14\.3, {HAS} pydantic==2\.13\.5: "),
    ('protobuf<6; sys_platform == "linux"', rf"^{OURS}, asks for protobuf<6"),
    ("outdated", r"outdated.* asks for pydantic<2.*has pydantic==2\.13\.5: one process has one of"),
    ("soon", "cannot be had: No solution found"),
    ("helpr", r"cannot be had: .*helpr"),
    ("sourced", r"sourced\S* has no wheel for any platform: build one.*-w functions/worker/wheels"),
    ("modern>=1", r"such as `modern; python_version >= \"3\.12\"`\."),
    *((line, rf"{OURS}: '{re.escape(line)}' {NO_NAME}") for line in ("-e .", "./wheels/h-3.1.whl")),
    ("helper @ file:///helper.whl", NO_NAME),
    ("git+https://example.com/helper", NO_NAME),
    ("--index-url https://example.com", NO_NAME),
]


@pytest.mark.parametrize(("asked", "says"), REFUSED)
def test_what_cannot_be_locked_is_named(folder: Path, asked: str, says: str) -> None:
    """One sentence names the requirement, where it is, what it conflicts with, and the way out."""
    (folder / "functions/worker/wheels/sourced-1.0.tar.gz").write_bytes(b"")
    said = refusal(asks(folder, "helper", asked).lock)
    assert re.search(says, said), said
    assert "\n" not in said


@pytest.mark.long
def test_a_conflict_stops_the_build_too(folder: Path) -> None:
    """A conflict that was locked, a package of another machine, and what was not locked stop it."""
    conflict = asks(folder, "helper", "protobuf<6")
    assert refusal(lambda: bundled(conflict, folder)).startswith(f"{OURS}, asks for protobuf<6")
    assert "has pydantic==2.13.5" in refusal(asks(folder, "outdated").check)
    assert bundled(locked(folder, 'modern; python_version >= "3.12"'), folder) == ["modern"]
    own = folder / "functions/worker/wheels"
    (own / "helper-3.1-py3-none-any.whl").rename(own / "helper-3.1-py3-none-win_amd64.whl")
    project = locked(folder, "helper")
    said = refusal(lambda: bundled(project, folder))
    assert re.search(r"helper\S* has no wheel for Lambda \(aarch64", said)


@pytest.mark.long
def test_what_was_not_locked_is_not_built(folder: Path) -> None:
    """A line more, or another layer, asks for a new lock; a comment does not."""
    locked(folder, "helper")
    asks(folder, "# a remark", "helper").check()

    assert "run `a2a-serverless lock`" in refusal(asks(folder, "helper", "framework").check)
    (folder / "requirements/runtime.txt").write_text(LAYER.replace("7.36.2", "7.36.3"))
    assert "run `a2a-serverless lock`" in refusal(asks(folder, "helper").check)


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


def test_what_lambda_refuses_is_not_locked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock before stays, and the sentence names the largest; what fits is locked."""
    monkeypatch.setattr(sizes, "LIMIT_BYTES", sizes.LAYER_BYTES + 8_000_000)
    wheels(folder, ("large", "1.0", "larger"), size=3_000_000)
    wheels(folder, ("larger", "1.0"), size=5_000_000)
    locked(folder, "helper")
    before = (folder / source.AGENT_LOCK).read_bytes()

    assert refusal(asks(folder, "helper", "large").lock) == (
        "The packages take at least 8 MB and Lambda leaves 8 MB beside the layer (larger 5 MB,"
        " large 3 MB, helper 0 MB): leave something out of functions/worker/requirements.in."
    )
    assert (folder / source.AGENT_LOCK).read_bytes() == before
    locked(folder, "larger")


def test_a_wheel_is_as_large_as_unpacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_frameworks_own_lock_is_new(project: Path) -> None:
    """The repository's top level is a project whose build does not stop."""
    Dependencies(project).check()
