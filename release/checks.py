"""Tells of what a release consists of what is wrong with it; each function reads values alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from email.message import Message
from html.parser import HTMLParser
from typing import Any, Final

ACCEPTED: Final = {
    "0BSD": (),
    "Apache-2.0": (
        "Apache 2.0",
        "Apache License 2.0",
        "Apache License, Version 2.0",
        "Apache Software License",
    ),
    "BSD-2-Clause": ("BSD 2-Clause License",),
    "BSD-3-Clause": ("3-Clause BSD License", "BSD", "BSD License"),
    "CNRI-Python": (),
    "ISC": ("ISC License (ISCL)",),
    "MIT": ("MIT License",),
    "MIT-0": ("MIT No Attribution License (MIT-0)",),
    "MPL-2.0": ("Mozilla Public License 2.0 (MPL 2.0)",),
    "PSF-2.0": ("Python Software Foundation License",),
}
"""The licences that a dependency may have, each with the other names that metadata give it.

MPL-2.0 covers its own files alone: certifi and orjson are used as they are.
"""
_NAMES: Final = {name for known, others in ACCEPTED.items() for name in (known, *others)}
_KINDS: Final = {"OSI Approved", "DFSG approved"}
_PIN: Final = re.compile(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)[ \\]*(;.*)?$", re.MULTILINE)
_UNREACHED: Final = re.compile(
    r"(Connection|ConnectTimeout|Proxy|ReadTimeout|Service|SSL|Timeout)(Error)?\b|connect to"
)


class Wrong(Exception):  # noqa: N818  # a finding, which is printed and no failure of the program
    """What has to be repaired before the release, in a sentence."""


def normal(name: str) -> str:
    """Return the name of a package in the form of indexes."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(lock: str) -> dict[str, tuple[str, bool]]:
    """Return the packages of a lock: version, and whether every system gets it."""
    return {normal(name): (version, not marker) for name, version, marker in _PIN.findall(lock)}


def one_version(places: Mapping[str, str | None]) -> str:
    """Return the version that all places name.

    Raises:
        Wrong: places name different ones, or one of them names none.
    """
    version, *others = set(places.values())
    if others or version is None:
        told = ", ".join(f"{place} has {it or 'none'}" for place, it in places.items())
        raise Wrong(f"The release has one version: {told}.")
    return version


def licence(metadata: Message) -> str:
    """Return the licence of a package as an SPDX expression or as its classifiers name it.

    It is empty if the metadata name none.
    """
    if expression := metadata.get("License-Expression"):
        return str(expression)
    named = [
        line.rpartition(" :: ")[2]
        for line in metadata.get_all("Classifier", [])
        if line.startswith("License :: ")
    ]
    if named := [name for name in named if name not in _KINDS]:
        return " AND ".join(named)
    return " ".join(str(metadata.get("License") or "").split())


def is_accepted(expression: str) -> bool:
    """Tell whether a licence is acceptable: all parts of an AND, one part of an OR."""
    while inner := re.search(r"\(([^()]* (?:AND|OR) [^()]*)\)", expression):
        stands_for = "MIT" if is_accepted(inner[1]) else "refused"
        expression = expression.replace(inner[0], stands_for)
    return any(
        all(part.strip() in _NAMES for part in choice.split(" AND "))
        for choice in expression.split(" OR ")
    )


def unlicensed(found: Iterable[Message]) -> list[str]:
    """Return a sentence for each package whose licence is not accepted."""
    return [
        f"{metadata['Name']} {metadata['Version']} has the licence {name or 'of no name'!r}."
        for metadata in found
        if not is_accepted(name := licence(metadata))
    ]


class _Addresses(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(
        self,
        tag: str,  # noqa: ARG002  # of any tag
        attrs: list[tuple[str, str | None]],
    ) -> None:
        self.found += [value or "" for name, value in attrs if name in {"href", "src", "srcset"}]


def dead_links(html: str) -> list[str]:
    """Return the addresses that lead nowhere on the page of a package index.

    These are all but whole addresses and anchors of the page itself.
    """
    parser = _Addresses()
    parser.feed(html)
    return [it for it in parser.found if not re.match(r"https://|mailto:|#", it)]


def blanks(owners: Mapping[str, str]) -> list[str]:
    """Return the settings that the owner has not filled in."""
    return [name for name, value in owners.items() if not value.strip()]


def missing_components(bom: Mapping[str, Any], lock: Iterable[str]) -> list[str]:
    """Return the packages that are installed and that the bill of materials leaves out."""
    listed = {normal(component["name"]) for component in bom["components"]}
    return sorted(set(lock) - listed)


def audited(report: str, errors: str) -> str:
    """Return what an audit by pip-audit has found, or why it was not done.

    `report` is its JSON. A package that the service does not know counts as not audited: pip-audit
    itself says of such packages that they have no known vulnerability.

    Raises:
        Wrong: a package has known vulnerabilities, or the audit failed without reaching for the
            network.
    """
    if not report.strip():
        reason = (errors.strip().splitlines() or ["no answer"])[-1]
        if _UNREACHED.search(reason):
            return f"not done: {reason[:120]}"
        raise Wrong(f"The audit failed: {reason}")
    packages = json.loads(report)["dependencies"]
    if bad := [
        f"{package['name']} {package['version']}: {hole['id']}, "
        f"repaired in {' or '.join(hole['fix_versions']) or 'no version'}"
        for package in packages
        for hole in package.get("vulns", ())
    ]:
        raise Wrong("Known vulnerabilities: " + "; ".join(bad))
    skipped = [package["skip_reason"] for package in packages if "skip_reason" in package]
    if skipped:
        return f"not done for {len(skipped)} of {len(packages)} packages: {skipped[0][:100]}"
    return f"no known vulnerability in {len(packages)} packages"
