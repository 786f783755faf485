"""The one address: the API's stage, a domain of one's own, and what API Gateway answers itself."""

import json
import re
from typing import Any

import pytest

from a2a_serverless.http.errors import RequestRefusedError, http_error, response_of
from tests.infrastructure.test_functions import variables
from tests.support.template import Refusal, Template, of_type, refusals
from tests.support.template import refused as refused_values

Json = dict[str, Any]

STAGE_URL = "https://api.execute-api.here.aws.test/a2a"
KNOWN = {"RestApi": "api", "AWS::Region": "here", "AWS::URLSuffix": "aws.test"}
KNOWN |= {"AWS::Partition": "aws", "Domain": "domain", "RestApia2aStage": "a2a"}
DOMAIN = {"DomainName": "agent.example.com", "CertificateArn": "arn:certificate"}


def resolved(document: Json, value: Any, **parameters: str) -> Any:
    """An expression of the template with values for its parameters."""
    sections = {**document, "Resources": {"It": {"Properties": {"Value": value}}}}
    return Template(sections, parameters).properties("It", KNOWN)["Value"]


# -- the stage -------------------------------------------------------------------------------------


ENDPOINTS = "vpce-0a,vpce-1b"


@pytest.mark.parametrize("given", [{}, {"VpcEndpointIds": ENDPOINTS}])
def test_a_private_api_has_its_endpoints(document: Json, transformed: Json, given: Json) -> None:
    """With VpcEndpointIds the API is private, and its policy takes requests of these endpoints."""
    api, its = transformed["RestApi"]["Properties"], ENDPOINTS.split(",")
    policy = api["Body"]["x-amazon-apigateway-policy"]
    kind = resolved(document, api["EndpointConfiguration"], **given)
    if not given:
        assert kind == {"Types": ["REGIONAL"]}
        assert policy["Fn::If"][2] == {"Ref": "AWS::NoValue"}
        return
    assert kind == {"Types": ["PRIVATE"], "VpcEndpointIds": its}
    (statement,) = resolved(document, policy, **given)["Statement"]
    assert statement == {
        "Effect": "Allow",
        "Principal": "*",
        "Action": "execute-api:Invoke",
        "Resource": "execute-api:/*",
        "Condition": {"StringEquals": {"aws:SourceVpce": its}},
    }


@pytest.mark.parametrize("policy", ["TLS_1_2", "SecurityPolicy_TLS13_1_3_2025_09"])
def test_the_least_tls_of_api_and_domain(document: Json, transformed: Json, policy: str) -> None:
    """A policy of TLS 1.3 holds for both, with the access mode that it needs.

    TLS_1_2 is the domain's alone: an API's own host keeps what API Gateway gives it.
    """
    assert policy in document["Parameters"]["TlsPolicy"]["AllowedValues"]
    names = ("SecurityPolicy", "EndpointAccessMode")
    owners = [transformed[name]["Properties"] for name in ("Domain", "RestApi")]
    own = [{name: it[name] for name in names} for it in owners]
    domain, api = (resolved(document, it, TlsPolicy=policy) for it in own)
    if policy == "TLS_1_2":
        assert (domain, api) == ({"SecurityPolicy": policy}, {})
    else:
        assert domain == api == {"SecurityPolicy": policy, "EndpointAccessMode": "STRICT"}


def test_every_method_is_throttled(transformed: Json, document: Json) -> None:
    """The rate is bounded for each method of each resource, as test_resources.py says of the stage.

    Refusals of 50 ms, at the rate of all methods, leave most of an account of 1,000 to others.
    """
    methods = sum(map(len, transformed["RestApi"]["Properties"]["Body"]["paths"].values()))
    assert methods * document["Parameters"]["ThrottleRate"]["Default"] * 0.05 < 100


# -- the address -----------------------------------------------------------------------------------

OWN, WWW = "https://agent.example.com", "https://www.example.com/agent"
ADDRESSES = [({}, "", STAGE_URL), (DOMAIN, OWN, OWN), ({**DOMAIN, "PublicUrl": WWW}, WWW, WWW)]


@pytest.mark.parametrize(("parameters", "public_url", "base"), ADDRESSES)
def test_card_issuer_and_output_name_one_address(
    document: Json, transformed: Json, parameters: Json, public_url: str, base: str
) -> None:
    """PublicUrl, else DomainName, else the stage's URL, which a request itself tells the endpoints.

    The output ends with a slash: clients resolve the card's path against it.
    """
    endpoint = document["Outputs"]["Endpoint"]["Value"]
    issuer = variables(transformed, "PushFunction")["A2A_PUSH_ISSUER"]
    assert resolved(document, endpoint, **parameters) == f"{base}/"
    assert resolved(document, issuer, **parameters) == base
    for function in ("ApiFunction", "StreamFunction"):
        own = variables(transformed, function)["A2A_PUBLIC_URL"]
        assert resolved(document, own, **parameters) == public_url


@pytest.mark.parametrize(("given", "is_off"), [({}, False), (DOMAIN, True)])
def test_a_domain_is_the_only_address(
    document: Json, transformed: Json, given: Json, *, is_off: bool
) -> None:
    """With a domain, API Gateway's own URL is off, so that no request bypasses the domain's WAF."""
    (server,) = transformed["RestApi"]["Properties"]["Body"]["servers"]
    configuration = server["x-amazon-apigateway-endpoint-configuration"]
    assert resolved(document, configuration, **given) == {"disableExecuteApiEndpoint": is_off}


def test_a_domain_leads_to_the_stages_root(transformed: Json) -> None:
    """The card is where clients look for it, over IPv4 and IPv6, by a record of each kind."""
    domain = transformed["Domain"]["Properties"]
    configuration = {"Types": ["REGIONAL"], "IpAddressType": "dualstack"}
    assert domain["EndpointConfiguration"] == configuration
    assert domain["RegionalCertificateArn"] == {"Ref": "CertificateArn"}
    assert transformed["DomainRoot"]["Properties"] == {
        "DomainName": {"Ref": "Domain"},
        "RestApiId": {"Ref": "RestApi"},
        "Stage": {"Ref": "RestApia2aStage"},
    }
    target = {
        "DNSName": {"Fn::GetAtt": ["Domain", "RegionalDomainName"]},
        "HostedZoneId": {"Fn::GetAtt": ["Domain", "RegionalHostedZoneId"]},
    }
    records = of_type(transformed, "AWS::Route53::RecordSet").values()
    assert {record["Type"] for record in records} == {"A", "AAAA"}
    for record in records:
        assert (record["Name"], record["AliasTarget"]) == ({"Ref": "DomainName"}, target)


def test_the_waf_stands_before_the_stage(document: Json, transformed: Json) -> None:
    """The web ACL is attached to the API's stage."""
    properties = transformed["WebAcl"]["Properties"]
    assert properties["WebACLArn"] == {"Ref": "WebAclArn"}
    stage = "arn:aws:apigateway:here::/restapis/api/stages/a2a"
    assert resolved(document, properties["ResourceArn"]) == stage


# -- parameters that cannot work -------------------------------------------------------------------

TOKENS = "Auth api-key+oidc or oidc"


def test_rules_compare_texts(document: Json) -> None:
    """CloudFormation compares a parameter with a text alone, also one that is a number."""
    written = json.dumps(document["Rules"])
    assert re.findall(r'"Fn::Equals": \[\{"Ref": "\w+"\}, [^"]', written) == []
    assert len(re.findall(r'"Fn::Equals": \[\{"Ref": "\w+"\}, "', written)) > 10


def refused(document: Json, **chosen: str) -> list[str]:
    """What CloudFormation says of parameters together before it makes anything."""
    return Template(document, chosen).broken_rules()


OIDC = {"OidcIssuer": "https://i", "OidcAudience": "a2a"}
SHARED = {"WorkerTurns": "25", "TurnTimeout": "300"}
ROLLOUT = "Rollout canary or linear needs AlarmTopicArn, where its alarms are heard"


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        ({"DomainName": "agent.example.com"}, ["DomainName needs CertificateArn"]),
        ({"CertificateArn": "arn:certificate"}, ["CertificateArn needs DomainName"]),
        ({"HostedZoneId": "Z1"}, ["HostedZoneId needs DomainName"]),
        ({"Auth": "oidc"}, [f"{TOKENS} needs OidcIssuer", f"{TOKENS} needs OidcAudience"]),
        ({"Auth": "api-key+oidc", "OidcIssuer": "https://i"}, [f"{TOKENS} needs OidcAudience"]),
        ({"Auth": "oidc", "OidcAudience": "a2a"}, [f"{TOKENS} needs OidcIssuer"]),
        (OIDC, [f"OidcIssuer needs {TOKENS}"]),
        ({"VpcSubnetIds": "subnet-1"}, ["VpcSubnetIds needs VpcSecurityGroupIds"]),
        ({"VpcSecurityGroupIds": "sg-1"}, ["VpcSecurityGroupIds needs VpcSubnetIds"]),
        ({**DOMAIN, "VpcEndpointIds": ENDPOINTS}, ["VpcEndpointIds needs an empty DomainName"]),
        ({"WorkerTurns": "2"}, ["WorkerTurns above 1 needs TurnTimeout"]),
        ({**SHARED, "MaxAttempts": "1"}, ["WorkerTurns above 1 needs MaxAttempts of 2 or more"]),
        (
            {**SHARED, "WorkerTimeout": "300"},
            ["WorkerTimeout 300 needs a TurnTimeout of 120 or less"],
        ),
        ({"Rollout": "canary"}, [ROLLOUT]),
        ({"Rollout": "linear"}, [ROLLOUT]),
        ({}, []),
        ({**DOMAIN, "HostedZoneId": "Z1", "WebAclArn": "arn:acl"}, []),
        ({"Auth": "oidc", **OIDC}, []),
        ({"Auth": "api-key+oidc", **OIDC}, []),
        ({"VpcEndpointIds": ENDPOINTS}, []),
        (SHARED, []),
        ({"TurnTimeout": "825"}, []),
        ({"Rollout": "canary", "AlarmTopicArn": "arn:aws:sns:x:1:y"}, []),
    ],
)
def test_what_cannot_work_is_refused(document: Json, chosen: Json, words: list[str]) -> None:
    """CloudFormation refuses such parameters before it makes anything, and names the problem."""
    assert refused(document, **chosen) == words


OF_ACCOUNT, IAM = "eu-central-1:123456789012", "arn:aws:iam::123456789012"
HOST, ARN = "https://a.example.com", f"arn:aws:kms:{OF_ACCOUNT}"
NO_URLS = [f"{HOST}/", f"{HOST}/one/", "http://a.example.com", f"{HOST}?a=1", f"{HOST}/a#1"]
KEYS = [f"{ARN}:key/0a1b-2c", "arn:aws-cn:kms:cn-north-1:123456789012:key/mrk-0a"]
NO_KEYS = [f"{ARN}:alias/mine", "alias/mine", "0a1b-2c", f"{ARN}:key/"]
"""A policy that names an alias allows nothing."""
VARIABLES = ["A=1,B=2", '{"A": "b, c"}', '{\n"A": "b"\n}', " A = 1 "]
ACL, GLOBAL = f"{OF_ACCOUNT}:regional/webacl/a/1", "us-east-1:123456789012:global/webacl/a/1"
TAKEN = [
    # a parameter, values that it takes, and values that it does not
    (
        "CertificateArn",
        [f"arn:aws:acm:{OF_ACCOUNT}:certificate/1"],
        [f"{IAM}:server-certificate/a"],
    ),
    ("WebAclArn", [f"arn:aws:wafv2:{ACL}"], [f"arn:aws:wafv2:{GLOBAL}"]),
    ("HostedZoneId", ["Z0123"], ["/hostedzone/Z0123"]),
    ("VpcEndpointIds", ["vpce-0a1b,vpce-2c"], ["vpce-0a1b, vpce-2c"]),
    ("PermissionsBoundaryArn", [f"{IAM}:policy/team/bounds"], [f"{IAM}:role/bounds"]),
    ("DomainName", ["agent.example.com"], [HOST, "*.example.com", "agent.example.com."]),
    ("PublicUrl", [HOST, f"{HOST}:8443/agents/one"], NO_URLS),
    ("KmsKeyArn", KEYS, NO_KEYS),
    # of JSON without escapes `sam deploy` passes on the beginning
    ("AgentEnvironment", VARIABLES, ["{", ' {"A":']),
    ("Release", ["0.2.0", "2026-11-27_2+hotfix"], ["a b", "a,b", "${AWS::Region}", "ä"]),
    ("WarmWriteUnits", ["4000", "40000"], ["1", "3999", "40001", "4000.5"]),
]


@pytest.mark.parametrize(("parameter", "taken", "not_taken"), TAKEN)
def test_a_value_that_a_deployment_could_not_use_is_refused_before(
    document: Json, parameter: str, taken: list[str], not_taken: list[str]
) -> None:
    """A value of another form fails before anything is made, and is told what it has to be."""
    definition = document["Parameters"][parameter]
    default = str(definition["Default"])
    assert all(not refused_values(document, {parameter: each}) for each in [default, *taken])
    assert all(refused_values(document, {parameter: each}) for each in not_taken)
    assert definition["ConstraintDescription"]


# -- what API Gateway answers itself ---------------------------------------------------------------


@pytest.fixture
def answers(template: Template) -> dict[str, Refusal]:
    return dict(refusals(template))


OWN_ERRORS = [
    ("MISSING_AUTHENTICATION_TOKEN", 404, "NOT_FOUND"),
    ("DEFAULT_4XX", 400, "INVALID_ARGUMENT"),
    ("INTEGRATION_TIMEOUT", 504, "DEADLINE_EXCEEDED"),
    *(("REQUEST_TOO_LARGE", 413, ""), ("THROTTLED", 429, "")),
    *(("WAF_FILTERED", 403, ""), ("DEFAULT_5XX", 503, "")),
]


@pytest.mark.parametrize(("kind", "status", "name"), OWN_ERRORS)
def test_its_refusals_have_the_form_of_ours(
    answers: dict[str, Refusal], kind: str, status: int, name: str
) -> None:
    """API Gateway's own errors have the application's form; an unknown path is 404.

    A refusal before any operation, without a name here, has the reason that clients know.
    """
    body = json.loads(answers[kind].body)
    said = body["error"]["message"]
    refusal = RequestRefusedError("Test", status, said)
    own = http_error(status, name, said) if name else response_of(refusal, "/tasks")
    assert (answers[kind].status, body) == (own.status_code, json.loads(bytes(own.body)))


def test_what_is_too_long_is_told_both_limits(answers: dict[str, Refusal]) -> None:
    """Both limits: the API's own, and the functions', which a shorter request may exceed.

    Each refusal asks for HTTPS, as the application's answers do.
    """
    said = json.loads(answers["REQUEST_TOO_LARGE"].body)["error"]["message"]
    assert " 10 MB" in said
    assert " 6 MB" in said
    told = {answer.headers.get("Strict-Transport-Security") for answer in answers.values()}
    assert told == {"max-age=31536000"}


@pytest.mark.parametrize("kind", ["THROTTLED", "DEFAULT_5XX"])
def test_it_says_when_to_retry(answers: dict[str, Refusal], transformed: Json, kind: str) -> None:
    """Answers of 429 and 5xx have a Retry-After of 1 s, in the template and locally."""
    gateway = transformed["RestApi"]["Properties"]["Body"]["x-amazon-apigateway-gateway-responses"]
    assert answers[kind].headers["Retry-After"] == "1"
    assert gateway[kind]["responseParameters"]["gatewayresponse.header.Retry-After"] == "'1'"


ORIGINS = [("", None), ("*", "*"), ("https://a.example,https://b.example", "*")]


@pytest.mark.parametrize(("origins", "readers"), ORIGINS)
def test_pages_may_read_its_answers(document: Json, origins: str, readers: str | None) -> None:
    """A page sees 413 or 429, and when to try again: without the header its request just fails."""
    for kind, answer in refusals(Template(document, {"CorsOrigins": origins})).items():
        read = answer.headers.get("Access-Control-Expose-Headers")
        assert answer.headers.get("Access-Control-Allow-Origin") == readers, kind
        assert read == ("Retry-After" if readers and "Retry-After" in answer.headers else None)
