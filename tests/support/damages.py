"""Damages of the code that is loaded in this process."""

import gc
import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, cached_property
from pathlib import Path
from types import CodeType, FunctionType

_ROOT = Path(__file__).parents[2]
_LAYER = "layers/runtime/a2a_serverless/"


class Damage:
    """Texts of one file, each of which is there once, become others.

    A file is one of `a2a_serverless`, or of the model.
    """

    def __init__(self, file: str, *texts: Sequence[str]) -> None:
        self.file = file
        place = file if file.startswith("tests/") else _LAYER + file
        self.path = str(_ROOT / place)
        self._module = place.removeprefix("layers/runtime/").removesuffix(".py").replace("/", ".")
        damaged = text = Path(self.path).read_text(encoding="utf-8")
        self.lines = set[int]()
        for old, new in texts:
            if text.count(old) != 1:
                raise ValueError(f"{file} has {old!r} {text.count(old)} times.")
            first = text[: text.index(old)].count("\n") + 1
            self.lines |= {*range(first, first + old.count("\n") + 1)}
            damaged = damaged.replace(old, new)
        self._damaged = damaged

    def functions(self) -> list[FunctionType]:
        """Return the functions that have its lines, as they are loaded."""
        importlib.import_module(self._module)
        found = _functions_of(self.path)
        return [each for each in found if any(map(self._is_in, codes_in(each.__code__)))]

    def _is_in(self, code: CodeType) -> bool:
        return not self.lines.isdisjoint(line for _, _, line in code.co_lines())

    @cached_property
    def _codes(self) -> dict[str, CodeType]:
        return {c.co_qualname: c for c in codes_in(compile(self._damaged, self.path, "exec"))}

    @contextmanager
    def made(self) -> Iterator[None]:
        whole = [(each, each.__code__) for each in self.functions()]
        assert whole, self.file
        try:
            for each, code in whole:
                each.__code__ = self._codes[code.co_qualname]
            yield
        finally:
            for each, code in whole:
                each.__code__ = code


@cache
def _functions_of(path: str) -> list[FunctionType]:
    """Return the functions of a file, of whichever class they are, once its module is loaded."""
    gc.unfreeze()  # what was loaded before the tests were collected
    functions = [each for each in gc.get_objects() if isinstance(each, FunctionType)]
    return [each for each in functions if each.__code__.co_filename == path]


def codes_in(code: CodeType) -> Iterator[CodeType]:
    """Yield a code, and those of the functions in it."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from codes_in(each)
