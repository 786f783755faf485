"""The package: its metadata, its archives, its locks, and what a release needs."""

import email
import hashlib
import re
import sys
import tarfile
import tomllib
import zipfile
from functools import cache
from importlib.metadata import distributions as installed
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
from release import checks
from release.__main__ import versions
from tests.e2e.installed import UV, built, run

PACKAGE = "a2a_serverless"
TOOLS = "a2a_serverless_tools"
ADAPTERS = f"{PACKAGE}.frameworks"
"""Each module there imports its framework, which is an extra."""
BROUGHT_BY = dict.fromkeys(("protobuf", "sse-starlette", "starlette"), "a2a-sdk[http-server]")
BROUGHT_BY |= {"botocore": "boto3", "cryptography": "pyjwt[crypto]", "pydantic-core": "pydantic"}
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
    sha256 = "cfc7749b96f63bd31c3c42b5c471bf756814053e847c10f3eb003417bc523d30"
    assert hashlib.sha256(text).hexdigest() == sha256


def names(requirements: list[str]) -> set[str]:
    """Each requirement without its version, as `name` or `name[extra]`."""
    return {re.split("[<>=]", requirement)[0] for requirement in requirements}


@cache
def imported() -> dict[str, set[str]]:
    """The modules of both packages by what they import that is neither their own nor Python's.

    Adapters of frameworks are left out, and what the emulator's Python runs.
    """
    chosen: Any = {"include_external_packages": True, "exclude_type_checking_imports": True}
    graph = grimp.build_graph(PACKAGE, TOOLS, **chosen)
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
    own = {name for name in names if "/scaffold/repository/" in name}
    assert {f"{TOOLS}/scaffold/repository/{name}" for name in packaged} == own
    assert packaged <= sources
    assert not [name for name in names | sources if re.search(r"(^|/)(tests|benchmarks)/", name)]
    checks = {name for name in names | sources if re.search(r"/(test_\w+|conftest)\.py$", name)}
    assert all("/scaffold/written/checks/" in name for name in checks), "a project's, and no other"
    assert {f"{PACKAGE}/py.typed", f"{PACKAGE}/http/openapi.json"} <= names
    assert {f"{TOOLS}/py.typed", f"{TOOLS}/scaffold/written/Makefile"} <= names
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
    return re.findall(r'href="([^"]*)"', MarkdownIt("commonmark").enable("table").render(text))


@pytest.mark.long
def test_an_indexs_page_has_no_dead_link(archives: Path, tmp_path: Path, project: Path) -> None:
    """Without an address of the project the page names the package's own pages, and no address.

    With one, each link leads to the file of this version there.
    """
    readme = (project / "README.md").read_text(encoding="utf-8")
    own = [each for each in addresses(readme) if not each.startswith("https://")]
    (wheel,) = archives.glob("*.whl")
    metadata, _ = metadata_of(wheel)
    text = str(metadata.get_payload())
    specification = "A2A specification, https://a2a-protocol.org/latest/specification/"
    assert metadata.get_all("Project-URL") == [specification]
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
    jobs = yaml.safe_load((project / WORKFLOWS[0]).read_text(encoding="utf-8"))["jobs"]
    assert jobs["publish"]["needs"] == "try"
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["try"]["strategy"]["matrix"]["python"] == ["3.11", "3.12", "3.13", "3.14"]
    assert any("make release-check" in step.get("run", "") for step in jobs["build"]["steps"])


# -- locks --------------------------------------------------------------------------------------

PIN = re.compile(r"^(?P<name>[a-z0-9._-]+)==(?P<version>\S+)", re.MULTILINE)
LOCKS = (
    *("runtime", "local", "worker", "dev"),
    *(f"tools/{name}" for name in ("aws", "sam", "checkov", "release", "zensical")),
)
WRITTEN = "src/a2a_serverless_tools/scaffold/written"
WORKFLOWS = (".github/workflows/release.yml", f"{WRITTEN}/deploy.yml")
BUILDS = ("Makefile", f"{WRITTEN}/Makefile", *WORKFLOWS)


def pins(project: Path, lock: str) -> dict[str, str]:
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


# -- the release --------------------------------------------------------------------------------


def test_the_release_has_one_version(project: Path) -> None:
    """The package, its metadata, the changelog and the citation name the same, and one day."""
    version = checks.one_version(versions())
    citation = yaml.safe_load((project / "CITATION.cff").read_text(encoding="utf-8"))
    changelog = (project / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{version}] - {citation['date-released']}\n" in changelog


ACCEPTED = (
    *("MIT", "GPL-3.0-only OR MIT", "MPL-2.0 AND (Apache-2.0 OR GPL-3.0-only)"),
    "ISC License (ISCL)",
)
REFUSED = (
    *("GPL-3.0-only", "GPL-3.0-only AND MIT", "MPL-2.0 AND (Apache-2.0 AND GPL-3.0-only)"),
    *("Apache-2.0 WITH LLVM-exception", "Other/Proprietary License", ""),
)


def test_licences_that_are_not_listed_are_refused() -> None:
    """An AND needs all of its parts, an OR one; what is not listed, or has no name, is refused."""
    assert [it for it in (*ACCEPTED, *REFUSED) if checks.is_accepted(it)] == [*ACCEPTED]
    unnamed = email.message_from_string("Name: it\nVersion: 1\n")
    assert checks.unlicensed([unnamed]) == ["it 1 has the licence 'of no name'."]


def test_the_installed_packages_have_accepted_licences() -> None:
    """Nothing that the development lock brings to this machine has a licence that is not listed."""
    found = [it.metadata for it in installed()]
    assert checks.unlicensed(found) == []  # type: ignore[arg-type]  # a Message, by its interface
    assert len(found) > 100


def test_the_notice_names_what_others_have_written(project: Path) -> None:
    """Each minified file and each licence of the packages is named, and they are in the wheel."""
    notice = (project / "NOTICE").read_text(encoding="utf-8")
    packages = (project / "src", project / "layers")
    found = [
        path.relative_to(project).as_posix()
        for folder in packages
        for pattern in ("*.min.*", "*LICENSE*")
        for path in folder.rglob(pattern)
    ]
    assert found
    assert [path for path in found if path.rpartition("/")[2] not in notice] == []
    licences = {path for path in found if "LICENSE" in path}
    assert licences | {"LICENSE", "NOTICE"} == set(table(project)["license-files"])


def test_the_update_bot_looks_at_every_lock(project: Path) -> None:
    """Each folder with a lock of pip or npm, and the actions, are in the bot's file."""
    bot = yaml.safe_load((project / ".github/dependabot.yml").read_text(encoding="utf-8"))
    looked = {each["package-ecosystem"]: set(each["directories"]) for each in bot["updates"]}
    patterns = {
        "pip": (
            *("requirements/*.txt", "requirements/*/*.txt", "tests/foreign/*/requirements.txt"),
            "benchmarks/peers/requirements/*.txt",
        ),
        "npm": ("tests/*/package-lock.json",),
    }
    for ecosystem, named in patterns.items():
        paths = [path for pattern in named for path in project.glob(pattern)]
        folders = {path.parent.relative_to(project) for path in paths}
        assert folders
        assert [
            folder
            for folder in sorted(folders)
            if not any(folder.match(each.strip("/")) for each in looked[ecosystem] - {"/"})
        ] == []
    assert looked["github-actions"] == {"/"}
