"""What the commands take for a value, and what for an option."""

from __future__ import annotations

import pytest

from a2a_serverless_tools.cli.arguments import Parser

DASHED = "-bcdefghijklmnopqrstuv"
TWICE_DASHED = "--cdEfghijklmnopqrstu1"


@pytest.fixture
def parser() -> Parser:
    """A command with an id and a scope, beside an option of their length."""
    parser = Parser(prog="task")
    commands = parser.add_subparsers()
    command = commands.add_parser("task")
    command.add_argument("id")
    command.add_argument("--scope")
    command.add_argument("--twenty-two-character", action="store_true", dest="is_long")
    return parser


@pytest.mark.parametrize("scope", [DASHED, TWICE_DASHED, "plain"])
@pytest.mark.parametrize("task_id", [DASHED, TWICE_DASHED, "plain"])
def test_an_id_or_scope_may_begin_with_a_dash(parser: Parser, task_id: str, scope: str) -> None:
    """An id or a scope that begins with a dash is parsed as a value, not as an option."""
    options = parser.parse_args(["task", task_id, "--scope", scope])
    assert (options.id, options.scope) == (task_id, scope)


def test_an_option_as_long_as_an_id_is_an_option(parser: Parser) -> None:
    """Names of options are words, which no id is likely to be."""
    options = parser.parse_args(["task", "plain", "--twenty-two-character"])
    assert options.is_long


def test_an_unknown_option_is_named_as_it_was_given(
    parser: Parser, capsys: pytest.CaptureFixture[str]
) -> None:
    """The refusal repeats the argument, without what the parser has added to it."""
    with pytest.raises(SystemExit):
        parser.parse_args(["task", "plain", DASHED])
    assert f"unrecognized arguments: {DASHED};" in capsys.readouterr().err
