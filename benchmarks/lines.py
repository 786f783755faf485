"""How much code there is: `python -m benchmarks.lines [FOLDER ...]`.

For each folder, by default the package: lines of code (no blanks, comments or docstrings), all
lines, and public names (classes, functions and values at the top of a module, without an underscore
before their name).
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).parents[1] / "layers" / "runtime" / "a2a_serverless"

_NO_CODE = {
    tokenize.COMMENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.INDENT,
    tokenize.NEWLINE,
    tokenize.NL,
}


def code_lines(text: str) -> int:
    """Return the number of lines with code; a statement that is a text alone has none."""
    texts = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - texts)


def public_names(text: str) -> Iterator[str]:
    """Yield the public names that a module defines at its top."""
    for node in ast.parse(text).body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                names = [name]
            case ast.AsyncFunctionDef(name=name):
                names = [name]
            case ast.AnnAssign(target=ast.Name(id=name)):
                names = [name]
            case ast.Assign(targets=targets):
                names = [target.id for target in targets if isinstance(target, ast.Name)]
            case _:
                names = []
        yield from (name for name in names if not name.startswith("_"))


def main(folders: list[str]) -> None:
    """Print a row for each folder."""
    print(f"{'folder':50} {'code':>7} {'all':>7} {'names':>6}")
    for folder in map(Path, folders or [str(PACKAGE)]):
        texts = [path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.py"))]
        code = sum(map(code_lines, texts))
        every = sum(len(text.splitlines()) for text in texts)
        names = sum(len(list(public_names(text))) for text in texts)
        print(f"{str(folder)[-50:]:50} {code:7} {every:7} {names:6}")


if __name__ == "__main__":
    main(sys.argv[1:])
