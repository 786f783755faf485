"""The commands of the documentation, as a person would type them."""

import re
import shlex
import textwrap
from collections.abc import Iterator

from tests.support import pages

PROGRAMS = ("a2a-serverless", "aws", "curl", "docker", "make", "pip", "sam")
_BLOCK = re.compile(r"(?:^ {4,}\S.*\n)+", re.MULTILINE)
_BEGINS = re.compile(
    rf"(?:[A-Z0-9_]+=\S+ )*(?:{'|'.join(PROGRAMS)})\b|[A-Z]+=\S|export |\w+\(\) \{{|until |copy "
)


def blocks(text: str) -> Iterator[list[str]]:
    """Yield the blocks of a text that are commands, each as its commands in order."""
    for block in _BLOCK.findall(text):
        commands = list(_commands(textwrap.dedent(block)))
        if commands and all(map(_BEGINS.match, commands)):
            yield commands


def _commands(block: str) -> Iterator[str]:
    """Yield the commands of a block, which may go on behind a backslash or in quotes."""
    whole = ""
    for line in block.splitlines():
        whole += f"{line}\n"
        if not line.endswith("\\") and _is_closed(whole):
            yield whole.rstrip("\n")
            whole = ""


def _is_closed(text: str) -> bool:
    try:
        words = shlex.split(text, comments=True)
    except ValueError:
        return False
    return text.count("() {") == 0 or words[-1].endswith("}")


def left_out() -> dict[str, str]:
    """Return what the page `cloud` says is not run on the emulated cloud: each with its reason."""
    rows = re.findall(r"^\| (`.+?`) \| (.+) \|$", pages.table("commands", "cloud"), re.MULTILINE)
    return {text: why for names, why in rows for text in re.findall(r"`([^`]+)`", names)}
