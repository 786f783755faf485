"""API Gateway's way from a request to a function.

A REST API is a tree of path parts. A part is a name, a variable (`{task}`), or, at the end, a
greedy variable (`{proxy+}`), which takes the rest of the path. A node has at most one variable as a
child, with the same name on all paths. A part of a request's path leads to the child of that name,
or else to the variable. At the last node the request takes its own method, or else ANY:
https://docs.aws.amazon.com/apigateway/latest/developerguide/api-gateway-method-settings-method-request.html
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote

from a2a_serverless.errors import ConfigurationError

_ANY: Final = "ANY"
_METHODS: Final = {
    **{name.lower(): name for name in ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")},
    "x-amazon-apigateway-any-method": _ANY,
}
_INTEGRATION: Final = "x-amazon-apigateway-integration"
_URI: Final = re.compile(
    r"/(2015-03-31|2021-11-15)/functions/([^/:]+)(?::live)?/(invocations|response-streaming-invocations)$"
)
_STREAMED: Final = ("2021-11-15", "response-streaming-invocations")
_BUFFERED: Final = ("2015-03-31", "invocations")
_VARIABLE: Final = re.compile(r"\{([A-Za-z0-9._-]+)(\+?)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """Where a request goes."""

    function: str
    streams: bool
    timeout_s: float
    resource: str
    method: str
    path_parameters: Mapping[str, str]


class Routes:
    """The route table of an API."""

    def __init__(self, paths: Mapping[str, Any]) -> None:
        self._root = _Node(resource="/")
        for resource, item in paths.items():
            node = self._root
            for part in _parts(resource):
                node = node.add(part)
            node.targets.update(
                (_METHODS[key], _target(resource, operation))
                for key, operation in item.items()
                if key in _METHODS
            )

    def find(
        self, method: str, path: str, *, falls_back: bool = True, decodes: bool = True
    ) -> Route | None:
        """Return where a request goes; None if API Gateway answers it itself."""
        parts = [unquote(part) if decodes else part for part in _parts(path)]
        for node, values in self._root.matches(parts, {}, backtracks=falls_back):
            named = method.upper() if method.upper() in node.targets else _ANY
            if (target := node.targets.get(named)) is not None:
                return Route(
                    function=target.function,
                    streams=target.streams,
                    timeout_s=target.timeout_s,
                    resource=node.resource,
                    method=named,
                    path_parameters=values,
                )
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Target:
    """The function that a method of a resource calls."""

    function: str
    streams: bool
    timeout_s: float


@dataclass(slots=True, kw_only=True)
class _Node:
    """A resource, with or without methods, and the resources below it."""

    resource: str
    targets: dict[str, _Target] = field(default_factory=dict)
    _children: dict[str, _Node] = field(default_factory=dict)
    _variable: _Variable | None = None

    def add(self, part: str) -> _Node:
        """Return the child for a part of a resource's path."""
        resource = f"{self.resource.rstrip('/')}/{part}"
        named = _VARIABLE.fullmatch(part)
        if named is None:
            return self._children.setdefault(part, _Node(resource=resource))
        name, plus = named.groups()
        if self._variable is None:
            self._variable = _Variable(
                name=name, is_greedy=bool(plus), node=_Node(resource=resource)
            )
        if self._variable.node.resource != resource:
            raise ConfigurationError(
                f"template.yaml: beside {self._variable.node.resource} API Gateway takes no other"
                f" variable, such as that of {resource}."
            )
        return self._variable.node

    def matches(
        self, parts: Sequence[str], values: Mapping[str, str], *, backtracks: bool
    ) -> Iterator[tuple[_Node, Mapping[str, str]]]:
        """Yield the nodes that a path leads to, the nearest first.

        Without `backtracks`, a part that is a child's name is not tried as a variable's value.
        """
        if not parts:
            yield self, values
            return
        part, rest = parts[0], parts[1:]
        if part in self._children:
            yield from self._children[part].matches(rest, values, backtracks=backtracks)
            if not backtracks:
                return
        if self._variable is None or not part:
            return
        name, node = self._variable.name, self._variable.node
        if self._variable.is_greedy:
            yield node, {**values, name: "/".join(parts)}
        else:
            yield from node.matches(rest, {**values, name: part}, backtracks=backtracks)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Variable:
    """The variable child of a node."""

    name: str
    is_greedy: bool
    node: _Node


def _parts(path: str) -> list[str]:
    """Return the parts of a path. A slash at its end is ignored, as in API Gateway."""
    trimmed = path.removeprefix("/").removesuffix("/")
    return trimmed.split("/") if trimmed else []


def _target(resource: str, operation: Mapping[str, Any]) -> _Target:
    """Return the function that an operation calls."""
    integration = operation.get(_INTEGRATION, {})
    named = _URI.search(integration.get("uri", ""))
    if named is None:
        raise ConfigurationError(f"template.yaml: {resource} has a method that calls no function.")
    streams = integration.get("responseTransferMode") == "STREAM"
    version, function, action = named.groups()
    if (version, action) != (_STREAMED if streams else _BUFFERED):
        raise ConfigurationError(
            f"template.yaml: {resource} has a method whose responseTransferMode and uri disagree:"
            f" STREAM goes with {'/…/'.join(_STREAMED)}, no mode with {'/…/'.join(_BUFFERED)}."
        )
    return _Target(
        function=function, streams=streams, timeout_s=integration["timeoutInMillis"] / 1000
    )
