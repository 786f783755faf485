"""Which versions of a framework its adapter is written for."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, version
from typing import Final, NamedTuple


class Known(NamedTuple):
    """The versions that an adapter knows: from `first` on, and before `below`."""

    package: str
    extra: str
    first: str
    below: str


KNOWN: Final = {
    "langgraph": Known("langgraph", "langgraph", "1.2", "2"),
    "pydantic_ai": Known("pydantic-ai-slim", "pydantic-ai", "2.68", "3"),
    "openai_agents": Known("openai-agents", "openai-agents", "0.24", "1"),
    "strands": Known("strands-agents", "strands", "1.62", "2"),
    "adk": Known("google-adk", "adk", "2.13", "3"),
}
"""By the module of the adapter."""


def unknown_version(adapter: str) -> str:
    """Return a sentence about the installed version if its adapter does not know it, else ""."""
    known = KNOWN[adapter]
    try:
        installed = version(known.package)
    except PackageNotFoundError:  # not as a package, so that nothing says its version
        return ""
    if _numbers(known.first) <= _numbers(installed) < _numbers(known.below):
        return ""
    return (
        f"{known.package} {installed} is no version that its adapter knows (from {known.first} on,"
        f" before {known.below}): install 'a2a-serverless[{known.extra}]'"
    )


def _numbers(text: str) -> list[int]:
    return [*map(int, re.findall(r"\d+", text))]
