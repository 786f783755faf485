"""What `make release-check` finds: each check fails for what it is there for."""

import json
import re
import sys
from email.message import Message
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pytest
import yaml

from release import __main__ as program
from release import checks
from release.__main__ import scripts, versions
from release.checks import Wrong
from tests.infrastructure.test_package import table


def owned(blanks: dict[str, str]) -> dict[str, Any]:
    """A pyproject.toml in which the owner has filled in these."""
    return {"tool": {"hatch": {"metadata": {"hooks": {"custom": blanks}}}}}


def metadata(**headers: str | list[str]) -> Message:
    """The metadata of a package `it`."""
    made = Message()
    for name, value in {"Name": "it", "Version": "1", **headers}.items():
        for each in [value] if isinstance(value, str) else value:
            made[name.replace("_", "-")] = each
    return made


def test_the_release_has_one_version(project: Path) -> None:
    """The package, its metadata, the changelog and the citation name the same, and one day.

    A place with another version, or none, is told with its name.
    """
    for other in ("1.1", None):
        with pytest.raises(Wrong, match=rf"b has {other or 'none'}"):
            checks.one_version({"a": "1.0", "b": other})
    assert len(versions()) == 4
    version = checks.one_version(versions())
    citation = yaml.safe_load((project / "CITATION.cff").read_text(encoding="utf-8"))
    changelog = (project / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"## [{version}] - {citation['date-released']}\n" in changelog


def test_a_tag_needs_its_version_and_what_the_owner_fills_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Blanks are listed at any time, and wrong for a tag, whose version has to be the release's."""
    assert checks.blanks({"a": " ", "b": "x", "c": ""}) == ["a", "c"]
    read = program.project()
    assert read["tool"]["hatch"]["metadata"]["hooks"]["custom"].keys() == {"address", "contact"}
    blanks = {"address": "https://it", "contact": ""}
    monkeypatch.setattr(program, "project", lambda: owned(blanks))
    monkeypatch.setattr(program, "versions", lambda: {"it": "1.0"})
    monkeypatch.setattr(sys, "argv", ["release"])
    assert program.owner().endswith(": contact")
    assert program.version_is_one() == "1.0"
    monkeypatch.setattr(sys, "argv", ["release", "1.1"])
    with pytest.raises(Wrong, match="contact"):
        program.owner()
    with pytest.raises(Wrong, match=r"the tag has 1\.1"):
        program.version_is_one()


ACCEPTED = (
    *("MIT", "GPL-3.0-only OR MIT", "MPL-2.0 AND (Apache-2.0 OR GPL-3.0-only)"),
    "ISC License (ISCL)",
)
REFUSED = (
    *("GPL-3.0-only", "GPL-3.0-only AND MIT", "MPL-2.0 AND (Apache-2.0 AND GPL-3.0-only)"),
    *("Apache-2.0 WITH LLVM-exception", "Other/Proprietary License", ""),
)


def test_licences_that_are_not_listed_are_refused() -> None:
    """An AND needs all of its parts, an OR one; what is not listed, or has no name, is refused.

    An expression goes before classifiers, these before text; the sentence names the package.
    """
    assert [it for it in (*ACCEPTED, *REFUSED) if checks.is_accepted(it)] == [*ACCEPTED]
    gpl = "License :: OSI Approved :: GNU General Public License v3 (GPLv3)"
    approved = ["License :: OSI Approved", "License :: OSI Approved :: MIT License"]
    good = [
        metadata(License_Expression="MIT", Classifier=[gpl]),
        metadata(Classifier=approved, License="Custom"),
        metadata(License="Apache License,\n Version 2.0"),
    ]
    assert checks.unlicensed(good) == []
    assert checks.unlicensed([metadata(Classifier=[*approved, gpl])])[0].startswith("it 1 has ")
    assert checks.unlicensed([metadata()]) == ["it 1 has the licence 'of no name'."]


def test_the_installed_packages_have_accepted_licences() -> None:
    """Nothing that the development lock brings to this machine has a licence that is not listed."""
    found = [it.metadata for it in distributions()]
    assert checks.unlicensed(found) == []  # type: ignore[arg-type]  # a Message, by its interface
    assert len(found) > 100


def test_a_lock_tells_which_packages_every_system_gets(project: Path) -> None:
    """A pin with a marker may be absent on this machine, one without may not."""
    assert checks.pins("a_B==1.0 \\\n    --hash=x\nc==2 ; python_version < '3.13' \\\n") == {
        "a-b": ("1.0", True),
        "c": ("2", False),
    }
    text = (project / "requirements/dev.txt").read_text(encoding="utf-8")
    assert checks.pins(text).keys() == {
        line.partition("==")[0] for line in text.splitlines() if re.match(r"[a-z].*==", line)
    }


def test_links_and_scripts_of_the_release() -> None:
    """A relative address is dead on an index; a whole one, a mail address and an anchor are not.

    Each script of others is in the bill of materials by the version of its file.
    """
    html = '<a href="docs/a.md"><img src="b.svg"></a><a href="https://x"></a><a href="#c"></a>'
    assert checks.dead_links(html + '<a href="mailto:a@b"></a>') == ["docs/a.md", "b.svg"]
    purls = [one["purl"] for one in scripts()]
    assert purls == ["pkg:npm/htmx.org@2.0.11", "pkg:npm/idiomorph@0.8.0"]


def test_an_audit_tells_holes_and_what_it_did_not_do() -> None:
    """A known vulnerability fails with package and repair; what it skipped does not.

    Of failures only one passes: that the service was not reached.
    """

    def audited(*packages: Any) -> str:
        return checks.audited(json.dumps({"dependencies": packages}), "")

    hole = {"id": "CVE-1", "fix_versions": ["1.1"]}
    unknown = {"name": "it", "skip_reason": "Dependency not found"}
    fine = {"name": "it", "version": "1.1", "vulns": []}
    with pytest.raises(Wrong, match=r"it 1\.0: CVE-1, repaired in 1\.1"):
        audited(unknown, {"name": "it", "version": "1.0", "vulns": [hole]})
    assert audited(unknown, fine).startswith("not done for 1 of 2")
    assert audited(fine) == "no known vulnerability in 1 packages"
    lost = "Traceback\nrequests.exceptions.ProxyError: HTTPSConnectionPool(host='it', port=443)"
    assert checks.audited("", lost).startswith("not done: requests.exceptions.ProxyError")
    with pytest.raises(Wrong, match="invalid requirements input"):
        checks.audited("", "ERROR:pip_audit._cli:invalid requirements input: nothing.txt")


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
