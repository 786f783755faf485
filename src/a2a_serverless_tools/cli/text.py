"""Texts of the commands for the terminal."""

from __future__ import annotations

import sys

from a2a_serverless_tools.cli.arguments import EXIT_UNUSABLE, PROGRAM


def printable(text: str) -> str:
    """Return `text` with its unprintable characters escaped as in a Python string.

    Among these are line ends, and characters that begin an escape sequence of a terminal.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def refuse(sentence: str) -> int:
    """Print why the command cannot do what was asked; return its exit code."""
    print(f"{PROGRAM}: {printable(sentence)}", file=sys.stderr)
    return EXIT_UNUSABLE
