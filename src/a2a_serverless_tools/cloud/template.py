"""What of the built template the emulator cannot have, and what it gets instead.

Each substitution is true of MiniStack 1.5.33. `make cloud` of the framework's repository asks the
running emulator whether it still needs each. This file runs on the emulator's Python, which has
what reads SAM's templates, and imports nothing of this package.
"""

from __future__ import annotations

import json
import string
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

Json = dict[str, Any]

_METHODS: Final = ("get", "post", "put", "delete", "patch", "head", "options")
_ANY: Final = "x-amazon-apigateway-any-method"


def substituted(template: Path, parameters: Mapping[str, str]) -> Json:
    """Return a built template as the emulator can deploy it with these values of parameters."""
    from samtranslator.yaml_helper import yaml_parse  # noqa: PLC0415 - the emulator's Python has it

    document: Json = yaml_parse(template.read_text(encoding="utf-8"))
    for substitution in SUBSTITUTIONS.values():
        substitution(document, parameters)
    return document


def write(template: Path, target: Path, parameters: Mapping[str, str]) -> None:
    """Write a built template as the emulator can deploy it with these values of parameters."""
    document = substituted(template, parameters)
    target.write_text(json.dumps(document, indent=1, default=str), encoding="utf-8")


def _no_metric_math(document: Json, _: Mapping[str, str]) -> None:
    resources = document["Resources"]
    for name in [*resources]:
        kind, properties = resources[name]["Type"], resources[name].get("Properties", {})
        if kind == "AWS::CloudWatch::Alarm" and "Metrics" in properties:
            del resources[name]


def _named_methods(document: Json, _: Mapping[str, str]) -> None:
    for node in _mappings(document["Resources"]["RestApi"]):
        if _ANY in node:
            every = node.pop(_ANY)
            for method in _METHODS:
                node.setdefault(method, every)


def _excluded_characters(document: Json, _: Mapping[str, str]) -> None:
    for node in _mappings(document["Resources"]):
        if node.get("ExcludePunctuation"):
            node["ExcludeCharacters"] = string.punctuation


def _no_tls(document: Json, _: Mapping[str, str]) -> None:
    resources = document["Resources"]
    for name in [*resources]:
        if resources[name]["Type"] == "AWS::S3::BucketPolicy":
            del resources[name]


def _known_values(document: Json, parameters: Mapping[str, str]) -> None:
    for name in parameters.keys() & document["Parameters"].keys():
        document["Parameters"][name]["Default"] = parameters[name]


SUBSTITUTIONS: Final = {
    "alarms with metric math are left out: it makes none of them": _no_metric_math,
    "ANY is each of the seven methods: it imports no other": _named_methods,
    "ExcludePunctuation names all punctuation: it does not know the word": _excluded_characters,
    "the bucket's policy, which asks for TLS, is left out: it has none, and refuses all": _no_tls,
    "values of parameters are their defaults: it expands SAM's resources by these": _known_values,
}
"""What each substitution does and why, and the function that does it to a template."""


def _mappings(value: Any) -> Iterator[Json]:
    """Yield each mapping of a template, once: SAM's parser shares those that have a YAML anchor."""
    seen: set[int] = set()
    waiting = [value]
    while waiting:
        node = waiting.pop()
        if isinstance(node, dict | list):
            if id(node) in seen:
                continue
            seen.add(id(node))
            waiting += node.values() if isinstance(node, dict) else node
        if isinstance(node, dict):
            yield node


if __name__ == "__main__":
    write(Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3]))
