"""The package's metadata."""

import email
import hashlib
import re
import sys
import tarfile
import tomllib
import zipfile
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import grimp
import pytest
import yaml
from markdown_it import MarkdownIt

import a2a_serverless
from a2a_serverless_tools.scaffold.project import KINDS
from a2a_serverless_tools.scaffold.source import PACKAGED_FILES, PAGES, files
from tests.e2e.installed import UV, built, run

PACKAGE = "a2a_serverless"
TOOLS = "a2a_serverless_tools"
ADAPTERS = f"{PACKAGE}.frameworks"
"""Each module there imports its framework, which is an extra."""
BROUGHT_BY = {
    "botocore": "boto3",
    "cryptography": "pyjwt[crypto]",
    "protobuf": "a2a-sdk[http-server]",
    "pydantic-core": "pydantic",
    "sse-starlette": "a2a-sdk[http-server]",
    "starlette": "a2a-sdk[http-server]",
}
"""Packages that come with a dependency, whose interface they are a part of."""
IN_LAMBDA = {"boto3", "botocore"}
"""What Lambda's Python runtime brings itself."""
ON_THE_EMULATOR = {f"{TOOLS}.cloud.launch", f"{TOOLS}.cloud.template"}
"""What runs on the emulator's own Python, with the packages of requirements/tools/cloud.in."""


def table(project: Path) -> dict[str, Any]:
    """The table `project` of pyproject.toml."""
    text = (project / "pyproject.toml").read_text(encoding="utf-8")
    read: dict[str, Any] = tomllib.loads(text)["project"]
    return read


def test_the_license_is_the_text_of_the_one_it_names(project: Path) -> None:
    """LICENSE is Apache-2.0, byte for byte as apache.org and other packages have it."""
    assert table(project)["license"] == "Apache-2.0"
    text = (project / "LICENSE").read_bytes()
    assert hashlib.sha256(text).hexdigest() == (
        "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
    )


def names(requirements: list[str]) -> set[str]:
    """Each requirement without its version, as `name` or `name[extra]`."""
    return {re.split("[<>=]", requirement)[0] for requirement in requirements}


@cache
def imported() -> dict[str, set[str]]:
    """The modules of both packages by what they import that is neither their own nor Python's.

    Adapters of frameworks are left out, and what the emulator's Python runs.
    """
    graph = grimp.build_graph(
        PACKAGE, TOOLS, include_external_packages=True, exclude_type_checking_imports=True
    )
    own = {name for package in (PACKAGE, TOOLS) for name in graph.find_descendants(package)}
    outside = graph.modules - own - {PACKAGE, TOOLS}
    importers = {
        module: {
            importer
            for importer in graph.find_modules_that_directly_import(module)
            if not importer.startswith(ADAPTERS) and importer not in ON_THE_EMULATOR
        }
        for module in outside - sys.stdlib_module_names
    }
    return {module: found for module, found in importers.items() if found}


def distributions(modules: set[str]) -> set[str]:
    """Names of the packages that modules come from; `google` here is protobuf's alone."""
    homes = dict(packages_distributions()) | {"google": ["protobuf"]}
    return {homes[module][0].lower().replace("_", "-") for module in modules}


def undeclared(modules: set[str], requirements: list[str]) -> set[str]:
    """The packages of modules that no requirement names or brings."""
    declared = {name.partition("[")[0] for name in names(requirements)} | names(requirements)
    return {name for name in distributions(modules) if BROUGHT_BY.get(name, name) not in declared}


def test_what_is_imported_is_declared(project: Path) -> None:
    """Each package that the runtime imports is a dependency, or of the layer's extra `otel`.

    Commands and local stack import the extra `local` at most; the fixtures, `testing`.
    """
    modules = {
        module
        for module, importers in imported().items()
        if any(not importer.startswith(TOOLS) for importer in importers)
    }
    read = table(project)
    extras = read["optional-dependencies"]
    of_layer = read["dependencies"] + extras["otel"]
    assert undeclared(modules - IN_LAMBDA, of_layer) == set()
    assert undeclared(set(imported()), of_layer + extras["local"] + extras["testing"]) == set()


OWN_EXTRAS = {"local", "otel", "testing", "worker"}
"""Extras that no framework has given its name."""


def test_each_adapter_is_an_extra(project: Path) -> None:
    """An extra, the example's packages, and those of its environment ask for one version."""
    extras = table(project)["optional-dependencies"]
    folder = project / "layers/runtime" / ADAPTERS.replace(".", "/")
    shared = {"__init__", "adapter", "conversation", "langgraph_interrupts"}
    shared |= {"options", "parts", "steps"}
    adapters = {path.stem for path in folder.glob("*.py")} - shared
    assert {name.replace("_", "-") for name in adapters} == set(extras) - OWN_EXTRAS
    for name in set(extras) - OWN_EXTRAS:
        packages = project / "examples" / KINDS[name] / "requirements.txt"
        assert packages.read_text(encoding="utf-8").split() == extras[name]
    for name in ("openai-agents", "strands"):
        asked = project / "tests/foreign" / name.replace("-", "_") / "requirements.in"
        assert asked.read_text(encoding="utf-8").split() == extras[name]


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the source archive, and the wheel that was built out of it."""
    folder = tmp_path_factory.mktemp("dist")
    built(folder)
    return folder


@pytest.mark.long
def test_the_archives_have_what_they_should(archives: Path, project: Path) -> None:
    """Source archive and wheel have package, template, functions and agents, and no test.

    The wheel is built out of the archive, as an index's users may do.
    """
    (wheel,), (archive,) = archives.glob("*.whl"), archives.glob("*.tar.gz")
    metadata, names = metadata_of(wheel)
    with tarfile.open(archive) as opened_archive:
        sources = {name.partition("/")[2] for name in opened_archive.getnames()}
    packaged = {path.relative_to(project).as_posix() for path in files(project, PACKAGED_FILES)}
    assert {f"{TOOLS}/scaffold/repository/{name}" for name in packaged} == {
        name for name in names if "/scaffold/repository/" in name
    }
    assert packaged <= sources
    assert not [name for name in names | sources if re.search(r"(^|/)(tests|benchmarks)/", name)]
    checks = {name for name in names | sources if re.search(r"/(test_\w+|conftest)\.py$", name)}
    assert all("/scaffold/written/checks/" in name for name in checks), "a project's, and no other"
    assert {
        f"{PACKAGE}/py.typed",
        f"{PACKAGE}/http/openapi.json",
        f"{TOOLS}/py.typed",
        f"{TOOLS}/scaffold/written/Makefile",
    } <= names
    assert metadata["Metadata-Version"] == "2.4", "the newest that twine uploads"
    assert metadata["Name"] == "a2a-serverless"
    assert metadata["License-Expression"] == "Apache-2.0"
    scripts = (f"src/{TOOLS}/console/static/{name}-LICENSE.txt" for name in ("htmx", "idiomorph"))
    assert set(metadata.get_all("License-File", [])) == {"LICENSE", "NOTICE", *scripts}
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Summary"]
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert "local" in metadata.get_all("Provides-Extra", [])


def metadata_of(wheel: Path) -> tuple[email.message.Message, set[str]]:
    """The metadata of a wheel, with the text that an index shows, and the names of its files."""
    with zipfile.ZipFile(wheel) as opened:
        names = set(opened.namelist())
        (own,) = (name for name in names if name.endswith("/METADATA"))
        return email.message_from_string(opened.read(own).decode()), names


def addresses(text: str) -> list[str]:
    """The links of a page, as a browser has them."""
    return re.findall(r'href="([^"]*)"', MarkdownIt("commonmark").enable("table").render(text))


@pytest.mark.long
def test_the_page_on_an_index_has_no_dead_link(
    archives: Path, tmp_path: Path, project: Path
) -> None:
    """Without an address of the project the page names the package's own pages, and no address.

    With one, each link leads to the file of this version there.
    """
    readme = (project / "README.md").read_text(encoding="utf-8")
    own = [each for each in addresses(readme) if not each.startswith("https://")]
    (wheel,) = archives.glob("*.whl")
    metadata, _ = metadata_of(wheel)
    text = str(metadata.get_payload())
    assert metadata.get_all("Project-URL") == [
        "A2A specification, https://a2a-protocol.org/latest/specification/"
    ]
    others = [each for each in addresses(readme) if each not in own]
    assert addresses(text) == others
    assert "<picture>" not in text
    named = set(re.findall(r"`a2a-serverless docs ([a-z-]+)`", text))
    linked = {Path(each.partition("#")[0]).stem for each in own if each.startswith("docs/")}
    assert named == linked <= {path.stem for path in files(project, PAGES)}

    (archive,) = archives.glob("*.tar.gz")
    with tarfile.open(archive) as opened:
        opened.extractall(tmp_path, filter="data")
    source = tmp_path / archive.name.removesuffix(".tar.gz")
    (source / "PKG-INFO").unlink()  # it is taken instead of what is made anew
    settings = source / "pyproject.toml"
    address = "https://code.example/team/a2a-serverless"
    edited = settings.read_text().replace('address = ""', f'address = "{address}/"')
    settings.write_text(edited)
    with (source / "README.md").open("a", encoding="utf-8") as file:
        file.write('\n<picture><img alt="a flow" src="docs/flow.svg"></picture>\n')
    run([UV, "build", "--quiet", "--wheel", "--python", sys.executable, "-o", "out"], cwd=source)
    (wheel,) = (source / "out").glob("*.whl")
    metadata, _ = metadata_of(wheel)
    text = str(metadata.get_payload())
    assert f'src="{address}/raw/v{a2a_serverless.__version__}/docs/flow.svg"' in text
    files_at = f"{address}/blob/v{a2a_serverless.__version__}/"
    assert f"Source, {address}" in metadata.get_all("Project-URL", [])
    assert addresses(text) == [
        each if each in others else files_at + ("README.md" * each.startswith("#")) + each
        for each in addresses(readme)
    ]


def test_the_release_workflow_publishes_without_a_stored_key(project: Path) -> None:
    """A tag is built, tried on each Python that is promised and the next one, then uploaded."""
    workflow = yaml.safe_load((project / ".github/workflows/release.yml").read_text())
    jobs = workflow["jobs"]
    assert jobs["publish"]["needs"] == "try"
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["try"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13", "3.14"]
    assert any("make release-check" in step.get("run", "") for step in jobs["build"]["steps"])
