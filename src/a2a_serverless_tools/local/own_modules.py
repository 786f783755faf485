"""The modules of an agent's own folder: how they are imported, and whether they have changed since.

They are compiled from their source at each import. Python takes a bytecode file for any source of
the same size and second, even for the source before a quick edit.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType
from typing import Final

from a2a_serverless.clock import Clock
from a2a_serverless.worker.failures import is_library

SETTLED_MS: Final = 2000
"""The age of a file in milliseconds from which its time and size show a later change. File systems
count time in ticks, and two edits may fall into one tick, so the content of a younger file is
compared."""

FOREIGN: Final = frozenset({"site-packages", "dist-packages"})
"""The names of folders with installed packages."""
_RUNTIME: Final = __name__.partition(".")[0]

_Stamp = tuple[int, int] | None
"""Time and size of a file; None: it does not exist."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """A file as it was; `content` None: its stamp is enough to tell a change."""

    stamp: _Stamp
    content: bytes | None = None

    def is_of(self, path: str) -> bool:
        """Return True if the file is still as it was."""
        is_alike = _stamp(path) == self.stamp
        return is_alike and (self.content is None or content_of(path) == self.content)


@dataclass(frozen=True, slots=True)
class _Loaded:
    """Modules that Python had, and their files as they were when it forgot them."""

    modules: dict[str, ModuleType]
    names: set[str]
    files: dict[str, _Seen]


class OwnModules(MetaPathFinder):
    """Imports the modules below a folder, and remembers them and their files.

    It stands in `sys.meta_path` in the place of Python's own finder of files, which it asks: one
    behind it would find a file that has appeared meanwhile, and run its old bytecode. Packages that
    are installed below the folder, as in a `.venv`, do not count as the agent's.

    Args:
        folder: the agent's folder.
        clock: tells how old a file is.
        kept: modules of the folder that stay as they are first imported.
    """

    def __init__(self, folder: Path, clock: Clock, *, kept: Iterable[str] = ()) -> None:
        self._folder = str(folder)
        self._clock = clock
        self._kept = {name for each in kept for name in (each, *_around(each))}
        self._names: set[str] = set()
        self._files: dict[str, _Seen] = {}

    def install(self) -> None:
        """Import the modules through this finder from now on."""
        sys.meta_path[sys.meta_path.index(PathFinder)] = self

    def remove(self) -> None:
        """Leave all imports to Python again."""
        sys.meta_path[sys.meta_path.index(self)] = PathFinder

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module; one of the folder has a loader that this object knows."""
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or type(spec.loader) is not SourceFileLoader:
            return spec
        is_foreign = fullname in self._kept or fullname.partition(".")[0] == _RUNTIME
        # Python itself may be below the folder.
        if not is_foreign and self._is_own(spec.loader.path) and not is_library(spec.loader.path):
            spec.loader = self.loader(fullname, spec.loader.path)
        return spec

    find_distributions = staticmethod(PathFinder.find_distributions)
    invalidate_caches = staticmethod(PathFinder.invalidate_caches)

    def loader(self, name: str, path: str, source: bytes | None = None) -> SourceLoader:
        """Return the loader of a module; with `source`, of that source instead of the file's."""
        return SourceLoader(name, path, self, source)

    def read(self, path: str) -> bytes:
        """Return the source of a module that is imported now, and remember its file."""
        stamp = _stamp(path)  # first, so that a change while it is read is noticed later
        content = Path(path).read_bytes()
        self._files[path] = _Seen(stamp, content if self._is_young(stamp) else None)
        return content

    def add(self, name: str) -> None:
        """Remember a module that is imported now."""
        self._names.add(name)

    def changed(self) -> list[str]:
        """Return the remembered files that have changed."""
        return [path for path, seen in tuple(self._files.items()) if not seen.is_of(path)]

    def loaded(self) -> dict[str, ModuleType]:
        """Return the modules of the folder that Python has, with the packages around them."""
        names = frozenset(self._names)  # a turn that runs may import another one meanwhile
        around = {package for name in names for package in _around(name)}
        found = {name: sys.modules[name] for name in names | around if name in sys.modules}
        return {
            name: module
            for name, module in found.items()
            if name in names or all(map(self._is_own, getattr(module, "__path__", ())))
        }

    def take_out(self) -> _Loaded:
        """Make Python forget the modules, so that they are imported anew; return the old ones."""
        now = {path: self._look(path) for path in tuple(self._files)}
        before = _Loaded(self.loaded(), self._names, now)
        for name in before.modules:
            sys.modules.pop(name, None)
        self._names, self._files = set(), {}
        return before

    def put_back(self, before: _Loaded) -> None:
        """Give Python earlier modules back, in place of those that could not be loaded.

        From now on files are compared with their state in the failed attempt: so the same change is
        not reported twice, and a later one is found.
        """
        failed = self._files
        self.take_out()
        sys.modules.update(before.modules)
        self._names, self._files = before.names, before.files | failed

    def _look(self, path: str) -> _Seen:
        stamp = _stamp(path)
        return _Seen(stamp, content_of(path) if self._is_young(stamp) else None)

    def _is_young(self, stamp: _Stamp) -> bool:
        return stamp is not None and self._clock.now_ms() - stamp[0] // 1_000_000 < SETTLED_MS

    def _is_own(self, path: str) -> bool:
        path = os.path.abspath(path)  # noqa: PTH100 - links are not followed, as in imports
        if path != self._folder and not path.startswith(self._folder + os.sep):
            return False
        return FOREIGN.isdisjoint(Path(path[len(self._folder) :]).parts)


class SourceLoader(SourceFileLoader):
    """Compiles a module of the agent from its source, which it keeps."""

    def __init__(self, name: str, path: str, own: OwnModules, source: bytes | None) -> None:
        super().__init__(name, path)
        self._own = own
        self.source = source

    def get_code(self, fullname: str) -> CodeType:
        self._own.add(fullname)
        if self.source is None:
            self.source = self._own.read(self.path)
        code: CodeType = self.source_to_code(self.source, self.path)
        return code


def _around(name: str) -> list[str]:
    """Return the names of the packages around a module."""
    parts = name.split(".")
    return [".".join(parts[:depth]) for depth in range(1, len(parts))]


def _stamp(path: str) -> _Stamp:
    try:
        found = Path(path).stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size


def content_of(path: str | Path) -> bytes | None:
    """Return the content of a file; None if it cannot be read."""
    try:
        return Path(path).read_bytes()
    except OSError:
        return None
