"""The package's metadata."""

import re
import sys
import tomllib
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import grimp

import a2a_serverless

PACKAGE = "a2a_serverless"
BESIDE_THE_LAYER = (f"{PACKAGE}.cli", f"{PACKAGE}.local", f"{PACKAGE}.scaffold")
BROUGHT_BY = {
    "botocore": "boto3",
    "cryptography": "pyjwt[crypto]",
    "protobuf": "a2a-sdk[http-server]",
    "sse-starlette": "a2a-sdk[http-server]",
    "starlette": "a2a-sdk[http-server]",
}
"""Packages that come with a dependency, whose interface they are a part of."""
IN_LAMBDA = {"boto3", "botocore"}
"""What Lambda's Python runtime brings itself."""


def table(project: Path) -> dict[str, Any]:
    """The table `project` of pyproject.toml."""
    text = (project / "pyproject.toml").read_text(encoding="utf-8")
    read: dict[str, Any] = tomllib.loads(text)["project"]
    return read


def names(requirements: list[str]) -> set[str]:
    """Each requirement without its version, as `name` or `name[extra]`."""
    return {re.split("[<>=]", requirement)[0] for requirement in requirements}


@cache
def imported() -> dict[str, set[str]]:
    """The modules of this package by what they import that is neither its own nor Python's."""
    graph = grimp.build_graph(
        PACKAGE, include_external_packages=True, exclude_type_checking_imports=True
    )
    outside = graph.modules - graph.find_descendants(PACKAGE) - {PACKAGE}
    return {
        module: graph.find_modules_that_directly_import(module)
        for module in outside - sys.stdlib_module_names
    }


def distributions(modules: set[str]) -> set[str]:
    """Names of the packages that modules come from; `google` here is protobuf's alone."""
    homes = dict(packages_distributions()) | {"google": ["protobuf"]}
    return {homes[module][0].lower().replace("_", "-") for module in modules}


def undeclared(modules: set[str], requirements: list[str]) -> set[str]:
    """The packages of modules that no requirement names or brings."""
    declared = {name.partition("[")[0] for name in names(requirements)} | names(requirements)
    return {name for name in distributions(modules) if BROUGHT_BY.get(name, name) not in declared}


def test_what_the_layer_imports_is_declared(project: Path) -> None:
    """Each package that the runtime imports is a dependency, or comes with one that is."""
    modules = {
        module
        for module, importers in imported().items()
        if any(not importer.startswith(BESIDE_THE_LAYER) for importer in importers)
    }
    assert undeclared(modules - IN_LAMBDA, table(project)["dependencies"]) == set()


def test_what_the_command_line_imports_is_declared(project: Path) -> None:
    """The commands and the stack import nothing beside the dependencies and the extra `local`."""
    read = table(project)
    requirements = read["dependencies"] + read["optional-dependencies"]["local"]
    assert undeclared(set(imported()), requirements) == set()


def test_the_version_is_one(project: Path) -> None:
    """The metadata, the package and the newest entry of the changelog name one version."""
    changelog = (project / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## (\S+)", changelog, re.MULTILINE)
    assert newest is not None
    assert table(project)["version"] == a2a_serverless.__version__ == newest[1]
