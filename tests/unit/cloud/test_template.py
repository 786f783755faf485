"""What is substituted in the project's own template, and that nothing else is."""

from __future__ import annotations

import copy
import string
from functools import cache
from pathlib import Path
from typing import Any

from samtranslator.yaml_helper import yaml_parse

from tests.cloud.template import SUBSTITUTIONS, substituted

PROJECT = Path(__file__).parents[3] / "template.yaml"
GIVEN = {"WorkerTimeout": "60", "Release": "other"}


@cache
def parsed() -> Any:
    return yaml_parse(PROJECT.read_text(encoding="utf-8"))


def original() -> dict[str, Any]:
    document: dict[str, Any] = copy.deepcopy(parsed())
    return document


def differing(left: Any, right: Any, at: str = "") -> set[str]:
    """The paths at which two templates differ."""
    if isinstance(left, dict) and isinstance(right, dict):
        return {
            path
            for key in left.keys() | right.keys()
            for path in differing(left.get(key), right.get(key), f"{at}/{key}")
        }
    if isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        pairs = enumerate(zip(left, right, strict=True))
        return {path for n, pair in pairs for path in differing(*pair, f"{at}/{n}")}
    return set() if left == right else {at}


def test_each_substitution_is_needed() -> None:
    """Each changes something, so that none outlives what it was for."""
    for says, substitution in SUBSTITUTIONS.items():
        document = original()
        substitution(document, GIVEN)
        assert document != original(), says


def test_nothing_else_is_changed() -> None:
    """All else is as it was but alarms with metric math, ANY, punctuation, TLS and given values."""
    before, after = original(), substituted(PROJECT, GIVEN)
    paths = differing(before, after)
    values = {path for path in paths if path.startswith("/Parameters/")}
    assert values == {f"/Parameters/{name}/Default" for name in GIVEN}
    assert {name: after["Parameters"][name]["Default"] for name in GIVEN} == GIVEN
    paths -= values
    left_out = {path.rpartition("/")[2] for path in paths if path.count("/") == 2}
    (statement,) = before["Resources"]["BlobBucketPolicy"]["Properties"]["PolicyDocument"][
        "Statement"
    ]
    assert (statement["Sid"], statement["Effect"]) == ("TlsAlone", "Deny")
    assert left_out == {"BlobBucketPolicy"} | {
        name
        for name, it in before["Resources"].items()
        if it["Type"] == "AWS::CloudWatch::Alarm" and "Metrics" in it["Properties"]
    }
    rest = {path for path in paths if path.count("/") > 2}
    assert {path.split("/")[2] for path in rest} == {
        "RestApi",
        "ApiKeys",
        "SigningSecret",
    }
    methods = {path.rpartition("/")[2] for path in rest if "/RestApi/" in path}
    assert methods == {
        "x-amazon-apigateway-any-method",
        *("get", "post", "put", "delete", "patch", "head", "options"),
    }
    for secret in ("ApiKeys", "SigningSecret"):
        made = after["Resources"][secret]["Properties"]["GenerateSecretString"]
        assert made["ExcludeCharacters"] == string.punctuation


def test_a_named_method_stays_before_any() -> None:
    """Where a path has a method of its own beside ANY, that one keeps its integration."""
    before = original()["Resources"]["RestApi"]["Properties"]["DefinitionBody"]["paths"]["/"]
    after = substituted(PROJECT, {})["Resources"]["RestApi"]["Properties"]["DefinitionBody"][
        "paths"
    ]
    assert after["/"]["post"] == before["post"]
    assert after["/"]["get"] == before["x-amazon-apigateway-any-method"]
