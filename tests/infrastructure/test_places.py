"""The stack in two regions, three sets of parameters and two partitions."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tests.infrastructure.test_releases import references as named
from tests.support import pages
from tests.support.permissions import granted, name_of
from tests.support.template import Template, refused

Json = dict[str, Any]

ACCOUNT: Final = "123456789012"
REGIONS: Final = {
    "aws": ("us-east-1", "eu-central-1"),
    "aws-us-gov": ("us-gov-west-1", "us-gov-east-1"),
}
SUFFIX: Final = "amazonaws.com"
"""Of both partitions."""
CONSOLES: Final = {"aws": "console.aws.amazon.com", "aws-us-gov": "console.amazonaws-us-gov.com"}

SETS: Final[Mapping[str, Mapping[str, str]]] = {
    "defaults": {},
    "everything": {
        "Auth": "oidc",
        "OidcIssuer": "https://issuer.example.com",
        "OidcAudience": "agent",
        "DomainName": "agent.example.com",
        "CertificateArn": "arn:${partition}:acm:${region}:123456789012:certificate/c",
        "HostedZoneId": "Z1",
        "TlsPolicy": "SecurityPolicy_TLS13_1_3_2025_09",
        "PermissionsBoundaryArn": "arn:${partition}:iam::123456789012:policy/bounds",
        "WebAclArn": "arn:${partition}:wafv2:${region}:123456789012:regional/webacl/a/b",
        "AlarmTopicArn": "arn:${partition}:sns:${region}:123456789012:alarms",
        "KmsKeyArn": "arn:${partition}:kms:${region}:123456789012:key/0a1b",
        "VpcSubnetIds": "subnet-0a1b2c3d,subnet-4e5f6a7b",
        "VpcSecurityGroupIds": "sg-0a1b2c3d",
        "StreamConcurrency": "600",
        "ApiConcurrency": "100",
        "DeletionProtection": "true",
        "Settings": "A2A_FLUSH_MS=500",
    },
    "both": {
        "Auth": "api-key+oidc",
        "OidcIssuer": "https://issuer.example.com",
        "OidcAudience": "agent",
    },
    "small": {
        "Auth": "none",
        "PublicUrl": "https://cdn.example.com/agent",
        "VpcEndpointIds": "vpce-0a1b2c3d,vpce-4e5f6a7b",
        "OtelEndpoint": "https://otel.example.com",
        "WorkerTimeout": "60",
        "MaxAttempts": "1",
        "StreamTimeout": "30",
        "PushEvents": "all",
    },
}
"""Every option is chosen in one of them, and left in another."""

PLACES = [
    *(("aws", REGIONS["aws"][0], name) for name in SETS),
    *((of, region, "everything") for of, regions in REGIONS.items() for region in regions[1:]),
]
"""Each set of options in one place, and the largest in another region and another partition."""

ARN = re.compile(r"\barn:(?!\$)([a-z-]+):[a-z0-9-]+:([a-z0-9-]*):")


ASKED_FOR = {"Domain": "DomainName", "DomainRoot": "DomainName", "WebAcl": "WebAclArn"}
ASKED_FOR |= dict.fromkeys(("DomainRecordV4", "DomainRecordV6"), "HostedZoneId")
"""What is made only where its parameter is set, which by default it is not."""
UNNAMED: Final = {"AWS::ApiGateway::Stage", "AWS::Lambda::Alias", "AWS::Route53::RecordSet"}
"""What has its name within something else, or one that the owner gives it."""


@pytest.fixture(scope="module")
def whole(document: Json, transformed: Json) -> Json:
    """The template as CloudFormation works on it."""
    return {**document, "Resources": transformed}


class Deployed:
    """What CloudFormation makes of the template, with references by their names."""

    def __init__(self, whole: Json, partition: str, region: str, name: str, stack: str) -> None:
        self.partition, self.region, self.stack = partition, region, stack
        chosen = {
            key: value.replace("${partition}", partition).replace("${region}", region)
            for key, value in SETS[name].items()
        }
        assert refused(whole, chosen) == []
        pseudo = {"AWS::AccountId": ACCOUNT, "AWS::Partition": partition, "AWS::Region": region}
        pseudo |= {"AWS::StackName": stack, "AWS::URLSuffix": SUFFIX}
        self._known = pseudo | dict(references(whole, partition, region))
        self._resources: Json = whole["Resources"]
        asked = {f"output {name}": {"Properties": it} for name, it in whole["Outputs"].items()}
        for condition in whole["Conditions"]:
            it = {"Fn::If": [condition, "holds", "does not"]}
            asked[f"condition {condition}"] = {"Properties": {"it": it}}
        document = {**whole, "Resources": self._resources | asked}
        self._template = Template(document, chosen)

    def resources(self) -> dict[str, tuple[str, Json]]:
        """Type and properties of each resource that is made."""
        return {
            name: (resource["Type"], self._properties(name))
            for name, resource in self._resources.items()
            if "Condition" not in resource or self._holds(resource["Condition"])
        }

    def output(self, name: str) -> str:
        return str(self._properties(f"output {name}")["Value"])

    def _holds(self, condition: str) -> bool:
        return bool(self._properties(f"condition {condition}")["it"] == "holds")

    def _properties(self, name: str) -> Json:
        return self._template.properties(name, self._known)


def references(whole: Json, partition: str, region: str) -> Iterator[tuple[str, str]]:
    """A value for each reference to a resource, and to an attribute of one, as it looks there."""
    text = json.dumps(whole)
    for name in whole["Resources"]:
        yield name, f"{name}-physical"
    for pattern in (r'"Fn::GetAtt": \["(\w+)", "(\w+)"\]', r"\$\{(\w+)\.(\w+)\}"):
        for name, attribute in set(re.findall(pattern, text)):
            is_arn = attribute.endswith("Arn")
            arn = f"arn:{partition}:service:{region}:{ACCOUNT}:{name}"
            yield f"{name}.{attribute}", arn if is_arn else f"{name}-{attribute}"


@pytest.mark.parametrize(("partition", "region", "name"), PLACES)
def test_each_resource_is_of_its_place(whole: Json, partition: str, region: str, name: str) -> None:
    """Each expression has a value, and each ARN names the partition and region of the stack.

    The console is that of the partition, and the dashboard's link has the dashboard's name.
    """
    deployed = Deployed(whole, partition, region, name, "agent")
    made = deployed.resources()
    assert len(made) > 50
    for resource, parameter in ASKED_FOR.items():
        assert (resource in made) is (parameter in SETS[name]), resource
    text = json.dumps(made)
    assert "Fn::" not in text
    found = ARN.findall(text)
    assert len(found) > 20
    assert {of for of, _ in found} == {partition}
    assert {at for _, at in found} <= {region, ""}
    other = {each for regions in REGIONS.values() for each in regions} - {region}
    assert not [each for each in other if each in text]
    link, at = deployed.output("DashboardUrl"), f"{region}.{CONSOLES[partition]}"
    assert link.startswith(f"https://{at}/cloudwatch/home?region={region}")
    assert link.endswith("#dashboards/dashboard/Dashboard-physical")
    own = f"https://RestApi-physical.execute-api.{region}.{SUFFIX}/a2a/"
    expected = {
        "everything": "https://agent.example.com/",
        "small": "https://cdn.example.com/agent/",
    }
    assert deployed.output("Endpoint") == expected.get(name, own)


def test_no_name_collides(whole: Json) -> None:
    """Stacks of one account, in two regions or of two names, share no name of a resource.

    Roles, policies and dashboards have one name in all regions.
    """
    names = Counter(
        (kind, "" if "IAM" in kind or "Dashboard" in kind else region, properties[key])
        for region in REGIONS["aws"]
        for stack in ("agent", "other")
        for kind, properties in Deployed(whole, "aws", region, "everything", stack)
        .resources()
        .values()
        for key in (f"{kind.rpartition(':')[2]}Name", "LayerName", "Name")
        if key in properties and kind not in UNNAMED
    )
    assert len(names) >= 8
    assert [each for each, times in names.items() if times > 1] == []


def test_the_partitions_are_named() -> None:
    """The partitions aws, aws-cn and aws-us-gov each have a row in the page `regions`."""
    page = pages.text("regions")
    assert all(f"| `{name}` |" in page for name in ("aws", "aws-cn", "aws-us-gov"))


def test_what_a_failed_first_deployment_leaves(document: Json) -> None:
    """What cannot be made again outlives a deleted stack, but not a failed first creation."""
    kept = {
        name: (resource["DeletionPolicy"], resource["UpdateReplacePolicy"])
        for name, resource in document["Resources"].items()
        if resource.get("DeletionPolicy", "Delete") != "Delete"
    }
    assert kept == dict.fromkeys(
        ("TaskTable", "BlobBucket", "UndecodableQueue", "ApiKeys", "SigningSecret"),
        ("RetainExceptOnCreate", "Retain"),
    )


def test_what_opens_the_table_is_kept_with_it(transformed: Json) -> None:
    """Secrets and keys of those who read the table outlive the stack, and what all of it names.

    What is made outside of the stack, such as the key of KmsKeyArn, is not deleted with it.
    """
    opens = {
        where
        for _, action, where in granted(transformed)
        if action.startswith(("secretsmanager:", "kms:"))
    }
    needed, looked = {"TaskTable", *opens & transformed.keys()}, set[str]()
    needed.remove("TraceHeaders")  # it opens the exporter, and its owner has what it says
    assert needed == {"TaskTable", "ApiKeys", "SigningSecret"}
    while new := needed - looked:
        looked |= new
        needed |= {n for each in new for n in named(transformed[each]) if n in transformed}
    gone = {
        name
        for name in needed
        for policy in ("DeletionPolicy", "UpdateReplacePolicy")
        if "Retain" not in transformed[name].get(policy, "Delete")
    }
    assert not gone


def test_every_auth_is_in_a_set(document: Json) -> None:
    """What is shown of the sets is shown of every value of Auth."""
    parameter = document["Parameters"]["Auth"]
    chosen = {values.get("Auth", parameter["Default"]) for values in SETS.values()}
    assert chosen == set(parameter["AllowedValues"])


@pytest.mark.parametrize("name", SETS)
def test_secrets_are_read_where_they_are_needed(whole: Json, name: str) -> None:
    """Each Auth has the same two secrets, so an update from one to another replaces neither.

    With Auth none no function knows the keys' secret, and no role may read it; with tokens alone it
    is read for the names of their callers. By default nothing is exported, without a secret for it.
    """
    plain = Deployed(whole, "aws", "us-east-1", "defaults", "agent").resources()
    deployed = Deployed(whole, "aws", "us-east-1", name, "agent")
    made = deployed.resources()
    for secret in ("ApiKeys", "SigningSecret"):
        kind, properties = made[secret]
        own = {key: value for key, value in properties.items() if key != "KmsKeyId"}
        assert (kind, own) == ("AWS::SecretsManager::Secret", plain[secret][1])
        assert deployed.output(secret) == f"{secret}-Id"
    has_callers, to = SETS[name].get("Auth") != "none", SETS[name].get("OtelEndpoint")
    known = [it["Environment"]["Variables"] for kind, it in made.values() if "Lambda::F" in kind]
    secrets = {each["A2A_API_KEYS_SECRET"] for each in known if "A2A_API_KEYS_SECRET" in each}
    assert secrets == {"ApiKeys-Id" if has_callers else ""}
    readers = [it for kind, it in made.values() if "IAM" in kind and "ApiKeys" in json.dumps(it)]
    assert bool(readers) is ("ApiKeysPolicy" in made) is has_callers
    assert {it.get("OTEL_EXPORTER_OTLP_ENDPOINT") for it in known} == {to}
    assert ("TraceHeaders" in made) is ("TraceHeaders" in str(known)) is bool(to)


def test_what_a_deleted_stack_leaves_can_be_removed(document: Json) -> None:
    """The page's commands remove each thing that `sam delete` keeps."""
    text = pages.section("Delete the stack")
    before, _, after = text.partition("sam delete")
    remembered = dict(re.findall(r"(\w+)=\$\(output (\w+)\)", before))
    removed = re.findall(r"(?:delete-(?:table|queue|secret) --\S+ |rb s3://)\"\$(\w+)\"", after)
    outputs = {name_of(document["Outputs"][remembered[name]]["Value"]) for name in removed}
    resources = document["Resources"].items()
    kept = {n for n, it in resources if "Retain" in it.get("DeletionPolicy", "")}
    assert outputs == kept


def test_what_is_left_can_be_removed(document: Json) -> None:
    """After a first deployment that failed the page's commands remove what refuses to go."""
    resources = document["Resources"].items()
    guarded = [n for n, it in resources if "DeletionProtectionEnabled" in it.get("Properties", {})]
    text = pages.section("A first deployment that fails")
    assert re.findall(r"--logical-resource-id (\w+)", text) == guarded == ["TaskTable"]
    away = "aws cloudformation delete-stack"  # first where the table was not protected
    commands = re.findall(r"^    (aws [a-z]+ [a-z-]+)", text, re.MULTILINE)
    assert commands == [away, "aws dynamodb update-table", "aws dynamodb delete-table", away]
    assert "--no-deletion-protection-enabled" in text


def test_the_recommended_concurrency_fits(document: Json) -> None:
    """What is not reserved for clients is enough for agents, webhooks, stream and sweeper."""
    text = pages.section("The account's concurrency")
    rows = [row.strip("| \n").split(" | ") for row in text.splitlines() if row.startswith("| ")]
    names = [name.strip("`") for name in next(row for row in rows if len(row) == 6)[1:]]
    [row] = [row for row in rows if row[0] == "1,000"]
    most = {n: int(cell.split()[-1]) for n, cell in zip(names, row[1:], strict=True)}
    assert {*most} - {"A2A_STREAMS_IN_ALL"} <= document["Parameters"].keys()
    others = most["WorkerConcurrency"] + most["PushConcurrency"] + 2 + 3
    assert others <= 1000 - most["StreamConcurrency"] - most["ApiConcurrency"]
    assert most["A2A_STREAMS_IN_ALL"] < most["StreamConcurrency"]


def test_git_keeps_unix_lines(project: Path) -> None:
    """A checkout on Windows deploys the same files: stream.sh with CRLF does not start."""
    rules = (project / ".gitattributes").read_text(encoding="utf-8").splitlines()
    assert "* text=auto eol=lf" in rules
