"""What never changes, read once for a process and those that are forked from it."""

import functools
import ssl
from typing import Any

import certifi
from botocore import loaders, session


class _Once(list[str]):
    """Folders of descriptions, to which every session of boto3 adds its own."""

    def append(self, folder: str) -> None:
        if folder not in self:
            super().append(folder)


def keep_descriptions() -> None:
    """Let all clients of AWS share the descriptions of its services."""
    session.create_loader = functools.cache(_loader)


def keep_root_certificates() -> None:
    """Let all clients of httpx share one TLS context: to make one takes 20 ms."""
    create, kept = ssl.create_default_context, functools.cache(ssl.create_default_context)

    def created(*args: Any, **options: Any) -> ssl.SSLContext:
        is_of_httpx = not args and options == {"cafile": certifi.where()}
        return (kept if is_of_httpx else create)(*args, **options)

    ssl.create_default_context = created


def _loader(folders: str | None) -> loaders.Loader:
    loader = loaders.create_loader(folders)
    vars(loader)["_search_paths"] = _Once(loader.search_paths)
    return loader
