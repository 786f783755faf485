"""The card of an agent on this machine: its author's file, or one that is made of its class."""

from __future__ import annotations

import ast
from pathlib import Path

from a2a.types import AgentCard

from a2a_serverless.http.card import load_card

_DEFAULT: AgentCard = AgentCard(
    version="0.1.0",
    capabilities={"streaming": True},
    default_input_modes=["text/plain", "*/*"],
    default_output_modes=["text/plain"],
)


def file_of(card: Path) -> Path:
    """Return the file that says what a card has: its own, or that of the agent `FILE.py:NAME`."""
    return Path(str(card).rpartition(":")[0]) if _is_made(card) else card


def named(card: Path) -> str:
    """Return a card as a command names it."""
    if _is_made(card):
        return "made of its class and docstring, as there is no agent_card.json"
    return str(card)


def _is_made(card: Path) -> bool:
    return str(card).rpartition(":")[0].endswith(".py")


def card_of(card: Path) -> AgentCard:
    """Return the card in a file, or one that is made of the agent `FILE.py:NAME`.

    That one has the name and the docstring of the agent's class, if the file defines it, else the
    agent's name and the file's docstring. The file is read, and not run.

    Raises:
        ConfigurationError: as `load_card`.
    """
    if not _is_made(card):
        return load_card(card)
    name = str(card).rpartition(":")[2]
    try:
        module = ast.parse(file_of(card).read_text(encoding="utf-8-sig"))
    except (OSError, SyntaxError, ValueError):  # which loading the agent names
        module = ast.Module([], [])
    kind = _class_of(module, name)
    doc = (kind and ast.get_docstring(kind)) or ast.get_docstring(module) or "An A2A agent."
    made = AgentCard(name=kind.name if kind else name)
    made.description = " ".join(doc.partition("\n\n")[0].split())
    made.MergeFrom(_DEFAULT)
    made.skills.add(
        id=made.name.lower(), name=made.name, description=made.description, tags=["agent"]
    )
    return made


def _class_of(module: ast.Module, name: str) -> ast.ClassDef | None:
    """Return the class that a name of a module stands for, or whose instance it is."""
    classes = {node.name: node for node in module.body if isinstance(node, ast.ClassDef)}
    meant = name
    for node in module.body:
        match node:
            case (
                ast.Assign(targets=[ast.Name(id=found)], value=value)
                | ast.AnnAssign(target=ast.Name(id=found), value=value)
            ) if found == name:
                match value:
                    case ast.Name(id=meant) | ast.Call(func=ast.Name(id=meant)):
                        pass
            case _:
                pass
    return classes.get(meant)
