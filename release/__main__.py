"""`python -m release [VERSION]`: checks dist/ and build/site; a line for each check."""

from __future__ import annotations

import email
import json
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from email.message import Message
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final

from release import checks
from release.checks import Wrong

ROOT: Final = Path(__file__).parents[1]
OUT: Final = ROOT / "build/release"
TOOLS: Final = ROOT / ".venv/tools/release/bin"
SHIPPED: Final = ROOT / "requirements/local.txt"
"""What a user of the wheel gets, with all that commands need."""


def project() -> dict[str, Any]:
    """Return pyproject.toml."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def versions() -> dict[str, str | None]:
    """Return the version of each place that names the release's."""
    places = {
        "layers/runtime/a2a_serverless/__init__.py": r'^__version__ = "(.+)"',
        "CHANGELOG.md": r"^## \[(\d.*?)\]",
        "CITATION.cff": r"^version: (.+)",
    }
    found: dict[str, str | None] = {"pyproject.toml": project()["project"]["version"]}
    for place, pattern in places.items():
        match = re.search(pattern, (ROOT / place).read_text(encoding="utf-8"), re.MULTILINE)
        found[place] = match and match[1]
    return found


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a program from the repository's folder, without regard to how it ends."""
    return subprocess.run(  # noqa: S603  # programs of our own locks
        command, cwd=ROOT, capture_output=True, text=True, check=False
    )


def done(*command: str | Path) -> str:
    """Run a program that has to succeed; return what it has printed.

    Raises:
        Wrong: it failed.
    """
    ran = run(*command)
    if ran.returncode:
        raise Wrong((ran.stdout + ran.stderr).strip()[-2000:])
    return ran.stdout


def one(pattern: str) -> Path:
    """Return the one file of that name.

    Raises:
        Wrong: there is none, or there are several.
    """
    match list(ROOT.glob(pattern)):
        case [path]:
            return path
        case found:
            raise Wrong(f"{len(found)} files {pattern} where there has to be one: run make dist.")


def version_is_one() -> str:
    """Compare the places, and the version that is asked for."""
    asked = sys.argv[1:2]
    return checks.one_version(versions() | ({"the tag": asked[0]} if asked else {}))


def archives() -> str:
    """Tell of wheel and source archive."""
    paths = one("dist/*.whl"), one("dist/*.tar.gz")
    return ", ".join(f"{path.name} ({path.stat().st_size / 1e6:.1f} MB)" for path in paths)


def metadata_is_valid() -> str:
    """Ask twine whether an index would take the archives."""
    done(TOOLS / "twine", "check", "--strict", one("dist/*.whl"), one("dist/*.tar.gz"))
    return "twine check --strict has passed"


def readme_renders() -> str:
    """Render the description as an index does, and look for links that lead nowhere there."""
    with zipfile.ZipFile(one("dist/*.whl")) as wheel:
        name = next(it for it in wheel.namelist() if it.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(wheel.read(name))
    readme = OUT / "README.md"
    readme.write_text(str(metadata.get_payload()), encoding="utf-8")
    html = done(TOOLS / "python", "-m", "readme_renderer", "-f", "md", readme)
    if dead := checks.dead_links(html):
        raise Wrong(f"{len(dead)} links lead nowhere on an index's page: {', '.join(dead[:5])}")
    return f"{len(html.split())} words of HTML, no link that leads nowhere"


def licences_are_accepted() -> str:
    """Read the licences of all locked packages, of the oldest Python and of Lambda's."""
    told: set[str] = set()
    read: set[str] = set()
    elsewhere: set[str] = set()
    for lock in sorted((ROOT / "requirements").glob("*.txt")):
        pins, found = checks.pins(lock.read_text(encoding="utf-8")), unpacked(lock)
        read |= found.keys()
        told |= set(checks.unlicensed(found.values()))
        for name, (version, is_everywhere) in pins.items():
            if name not in found and is_everywhere:
                told.add(f"{name} {version} of {lock.name} could not be read.")
            elif name not in found:
                elsewhere.add(name)
    if told:
        raise Wrong(" ".join(sorted(told)))
    others = f"; of other systems, not read: {', '.join(sorted(elsewhere))}" if elsewhere else ""
    return f"those of {len(read)} packages are accepted{others}"


def unpacked(lock: Path) -> dict[str, Message]:
    """Unpack the packages of a lock; return their metadata."""
    found: dict[str, Message] = {}
    for python in ("3.13",) if lock.stem == "cloud" else ("3.11", "3.13"):
        folder = OUT / "locks" / f"{lock.stem}-{python}"
        python_of = ("--python", sys.executable, "--python-version", python)
        uv = ROOT / ".venv/bin/uv"
        done(uv, "pip", "sync", "-q", *python_of, "--require-hashes", "--target", folder, lock)
        for each in distributions(path=[str(folder)]):
            metadata = email.message_from_string(each.read_text("METADATA") or "")
            found[checks.normal(each.name)] = metadata
    return found


def bill_of_materials() -> str:
    """Write the SBOM of the wheel with all that it needs."""
    uv, folder = ROOT / ".venv/bin/uv", OUT / "environment"
    done(uv, "venv", "-q", "--clear", "--python", sys.executable, folder)
    done(uv, "pip", "sync", "-q", "--python", folder / "bin/python", "--require-hashes", SHIPPED)
    path = OUT / f"a2a-serverless-{project()['project']['version']}.cdx.json"
    done(
        *(TOOLS / "cyclonedx-py", "environment", folder, "--pyproject", "pyproject.toml"),
        *("--mc-type", "library", "--output-reproducible", "--of", "JSON", "-o", path),
    )
    bom = json.loads(path.read_text(encoding="utf-8"))
    bom["components"] += scripts()
    path.write_text(json.dumps(bom, indent=1), encoding="utf-8")
    (packages,) = folder.glob("lib/python3.*/site-packages")
    names = [checks.normal(each.name) for each in distributions(path=[str(packages)])]
    if missing := checks.missing_components(bom, names):
        raise Wrong(f"{path.name} leaves out {', '.join(missing)}.")
    return (
        f"{path.relative_to(ROOT)}, CycloneDX {bom['specVersion']}, "
        f"{len(bom['components'])} components"
    )


def scripts() -> list[dict[str, Any]]:
    """Return the components that the wheel contains, as CycloneDX has them."""
    names = {"htmx": "htmx.org", "idiomorph": "idiomorph"}
    components: list[dict[str, Any]] = []
    for begin, name in names.items():
        file = one(f"src/a2a_serverless_tools/console/static/{begin}-*.min.js")
        version = file.name.removeprefix(f"{begin}-").removesuffix(".min.js")
        purl = f"pkg:npm/{name}@{version}"
        licences = [{"license": {"id": "0BSD"}}]
        known = {"bom-ref": purl, "type": "library", "name": name, "version": version}
        components.append({**known, "purl": purl, "licenses": licences})
    return components


def audit() -> str:
    """Ask for known vulnerabilities of what is shipped."""
    ran = run(
        *(TOOLS / "pip-audit", "--disable-pip", "--require-hashes", "-r", SHIPPED),
        *("--format", "json", "--progress-spinner", "off", "--timeout", "10"),
    )
    return checks.audited(ran.stdout, ran.stderr)


def site() -> str:
    """See that the site is built."""
    index = ROOT / "build/site/site/index.html"
    if not index.exists():
        raise Wrong("build/site/site/index.html is missing: run make docs.")
    return f"{len(list(index.parent.rglob('*.html')))} pages in build/site/site"


def owner() -> str:
    """List what the owner of the repository has to fill in, which a tag needs.

    Raises:
        Wrong: a version to release is named.
    """
    empty = checks.blanks(project()["tool"]["hatch"]["metadata"]["hooks"]["custom"])
    if not empty:
        return "nothing is left to fill in"
    told = f"to fill in, in pyproject.toml [tool.hatch.metadata.hooks.custom]: {', '.join(empty)}"
    if sys.argv[1:2]:
        raise Wrong(told)
    return told


CHECKS: Final[dict[str, Callable[[], str]]] = {
    "version": version_is_one,
    "archives": archives,
    "metadata": metadata_is_valid,
    "README": readme_renders,
    "licences": licences_are_accepted,
    "SBOM": bill_of_materials,
    "audit": audit,
    "site": site,
    "owner": owner,
}


def lines() -> Iterator[tuple[bool, str]]:
    """Yield for each check whether it holds, and its line."""
    for name, check in CHECKS.items():
        try:
            yield True, f"{name:<9} {check()}"
        except Wrong as wrong:
            yield False, f"{name:<9} WRONG: {wrong}"


def main() -> int:
    """Run all checks, and print what each has found."""
    OUT.mkdir(parents=True, exist_ok=True)
    os.environ.setdefault("UV_PYTHON_DOWNLOADS", "never")
    failed = 0
    for holds, line in lines():
        print(line, flush=True)
        failed += not holds
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
