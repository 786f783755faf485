"""The check of a client's move to tokens: it passes on the application, and finds each break."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.types import TaskState
from pydantic import SecretStr

from a2a_serverless.http.app import create_app
from a2a_serverless.http.card import load_card
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import memory_backends
from tests.live import callers
from tests.live.checks import CHECKS
from tests.live.findings import Outcome
from tests.live.forms import FORMS, Updates, in_form
from tests.live.runner import Findings, run
from tests.live.stack import Stack
from tests.live.subject import Consent, Subject
from tests.support.issuers import running_issuer
from tests.support.scripted_worker import ScriptedWorker, Turn
from tests.unit.live.scripted_aws import PHYSICAL, REGION, ScriptedAws
from tests.unit.live.test_aws_checks import workshop
from tests.unit.live.ways import QuickClock, finding

Open = Callable[..., Any]
HERE = "http://127.0.0.1/"
KEY = "a-key-of-more-than-twenty-characters"
CARD = Path(callers.__file__).with_name("agent_card.json")
(CHECK,) = (check for check in CHECKS if check.name == "auth-move")


def _named(params: dict[str, Any], version: str) -> tuple[str, str]:
    """A function and one of its versions, as a call names them."""
    return params["FunctionName"].removeprefix("live-"), params[version]


class Deployed(httpx.AsyncBaseTransport):
    """Functions that do what their variables and the keys say, and what a test has broken of it."""

    def __init__(self, aws: ScriptedAws) -> None:
        self.backends = memory_backends(Settings())
        self.variables = {name: {"A2A_AUTH": "api-key"} for name in callers.ENDPOINTS}
        """Of the versions behind the aliases."""
        self._latest = dict(self.variables)
        self._versions = {(name, "1"): given for name, given in self.variables.items()}
        self.keys = json.dumps({"alice": KEY})
        self.changes: list[str] = []
        self.settings: Callable[[Settings], Settings] = lambda settings: settings
        self.request: Callable[[httpx.Request], None] = lambda _: None
        self.response: Callable[[httpx.Response], None] = lambda _: None
        self.answers = TaskState.TASK_STATE_COMPLETED
        self._apps: dict[str, httpx.ASGITransport] = {}
        aws.answers |= {
            "lambda.GetFunctionConfiguration": self._described,
            "lambda.UpdateFunctionConfiguration": self._updated,
            "lambda.GetAlias": {"FunctionVersion": "1"},
            "lambda.PublishVersion": self._published,
            "lambda.UpdateAlias": self._pointed,
            "lambda.DeleteFunction": lambda it: self._versions.pop(_named(it, "Qualifier")) and {},
            "secretsmanager.GetSecretValue": lambda _: {"SecretString": self.keys},
            "secretsmanager.PutSecretValue": self._put,
        }

    async def work(self, turn: Turn, _: ScriptedWorker) -> None:
        asks = json.loads(turn.text)["do"] == "ask"
        answers = turn.head.turn > 1
        state = self.answers if answers else TaskState.TASK_STATE_COMPLETED
        await turn.status(TaskState.TASK_STATE_INPUT_REQUIRED if asks else state)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.request(request)
        function = "StreamFunction" if request.url.path == "/" else "ApiFunction"
        answer = await self._app(function).handle_async_request(request)
        self.response(answer)
        return answer

    def _app(self, function: str) -> httpx.ASGITransport:
        variables = self.variables[function]
        fields = {k.removeprefix("A2A_").lower(): v for k, v in variables.items()}
        settings = self.settings(Settings(**{**fields, "api_keys": SecretStr(self.keys)}))
        made = repr((settings, settings.api_keys.get_secret_value()))
        if made not in self._apps:
            app = create_app(settings, self.backends, load_card(str(CARD)))
            self._apps[made] = httpx.ASGITransport(app)
        return self._apps[made]

    def _described(self, params: dict[str, Any]) -> dict[str, Any]:
        variables = self._latest[params["FunctionName"].removeprefix("live-")]
        ready = {"LastUpdateStatus": "Successful", "State": "Active"}
        return {"Environment": {"Variables": variables}, **ready}

    def _updated(self, params: dict[str, Any]) -> dict[str, Any]:
        given = params["Environment"]["Variables"]
        self._latest[params["FunctionName"].removeprefix("live-")] = given
        return {}

    def _published(self, params: dict[str, Any]) -> dict[str, Any]:
        name = params["FunctionName"].removeprefix("live-")
        number = str(len(self._versions) + 1)
        self._versions[name, number] = self._latest[name]
        return {"Version": number}

    def _pointed(self, params: dict[str, Any]) -> dict[str, Any]:
        name, number = _named(params, "FunctionVersion")
        self.variables[name] = self._versions[name, number]
        self.changes.append(self.variables[name]["A2A_AUTH"])
        return {}

    def _put(self, params: dict[str, Any]) -> dict[str, Any]:
        self.keys = params["SecretString"]
        return {}


@pytest.fixture
async def deployed(aws: ScriptedAws) -> AsyncIterator[Deployed]:
    deployed = Deployed(aws)
    async with ScriptedWorker(deployed.backends, deployed.work).running():
        yield deployed


@pytest.fixture
def subject(subject_at: Open, aws: ScriptedAws, deployed: Deployed) -> Open:
    """Open the subject of the check, with other parameters of the stack or fields if given."""

    async def make(auth: str = "api-key", **fields: Any) -> Any:
        stack = Stack(
            name="live",
            region=REGION,
            outputs={"Endpoint": HERE, "ApiKeys": "keys"},
            parameters={"Auth": auth},
            resources=PHYSICAL,
        )
        given = {
            "endpoint": HERE,
            "account": aws,
            "stack": stack,
            "credential": KEY,
            "consent": Consent(changes=True),
            "clock": QuickClock(),
            "transport": deployed,
            "slack": 10,
            **fields,
        }
        return await subject_at(**given)

    return make


async def test_a_client_that_keeps_its_tasks(subject: Open, deployed: Deployed) -> None:
    """The check passes, and puts the functions and the keys back as they were."""
    found = await finding(await subject(), CHECK)
    assert (found.outcome, found.says) == (Outcome.PASSED, "")
    assert found.figures == {"tasks kept": 5}
    steps = ["api-key+oidc", "oidc", "api-key"]
    assert deployed.changes == [*(auth for auth in steps for _ in range(2)), "api-key", "api-key"]
    assert list(deployed.variables.values()) == [{"A2A_AUTH": "api-key"}] * 2
    assert json.loads(deployed.keys) == {"alice": KEY}


def under(auth: str, /, **changed: Any) -> Callable[[Deployed], None]:
    """Break what one value of Auth does: these settings are others, `keys` by a function."""

    def break_it(deployed: Deployed) -> None:
        def settings(right: Settings) -> Settings:
            moved = deployed.changes[-1:] == [auth]
            if right.auth != auth or not moved:
                return right
            given = dict(changed)
            if edit := given.pop("keys", None):
                given["api_keys"] = SecretStr(edit(right.api_keys.get_secret_value()))
            return right.model_copy(update=given)

        deployed.settings = settings

    return break_it


def unnamed(keys: str) -> str:
    """The keys without what names tokens."""
    return json.dumps(dict.fromkeys(json.loads(keys), KEY))


def named_wrongly(keys: str) -> str:
    """The keys with another client's tokens under the client's name."""
    (its,) = json.loads(keys).values()
    return json.dumps({"alice": [*its, *(one.replace("|client-", "|other-") for one in its[1:])]})


def one_of_both(request: httpx.Request) -> None:
    if "X-API-Key" in request.headers and "Authorization" in request.headers:
        del request.headers["Authorization"]


def let_in(request: httpx.Request) -> None:
    """Whoever shows nothing has the client's key."""
    if "X-API-Key" not in request.headers and "Authorization" not in request.headers:
        request.headers["X-API-Key"] = KEY


def any_key(request: httpx.Request) -> None:
    if "X-API-Key" in request.headers:
        request.headers["X-API-Key"] = KEY


def challenge(response: httpx.Response) -> None:
    response.headers.pop("www-authenticate", None)


def card_of(**said: Any) -> Callable[[Deployed], None]:
    """Have the card say something else."""

    def break_it(deployed: Deployed) -> None:
        right = deployed._app

        def app(function: str) -> httpx.ASGITransport:
            settings, deployed.settings = deployed.settings, lambda it: it.model_copy(update=said)
            try:
                return right(function)
            finally:
                deployed.settings = settings

        def request(asked: httpx.Request) -> None:
            is_card = asked.url.path.endswith("agent-card.json")
            deployed._app = app if is_card else right  # type: ignore[method-assign]

        deployed.request = request

    return break_it


def broken(name: str, value: Any) -> Callable[[Deployed], None]:
    return lambda deployed: setattr(deployed, name, value)


@pytest.mark.parametrize(
    ("breaks", "part"),
    [
        (under("api-key+oidc", auth="api-key"), "under api-key+oidc the answer to find all for to"),
        (under("api-key+oidc", keys=unnamed), "under api-key+oidc the answer to find all for tok"),
        (under("api-key+oidc", auth="oidc"), "under api-key+oidc the answer to find all for key"),
        (under("api-key+oidc", keys=named_wrongly), "the answer TASK_NOT_FOUND for other"),
        (broken("request", one_of_both), "['Authorization', 'X-API-Key'] was answered 200"),
        (broken("request", let_in), "no credential was answered 200"),
        (broken("request", any_key), "['X-API-Key'] was answered 200"),
        (broken("response", challenge), "was answered 401, without a challenge"),
        (card_of(auth="api-key"), "the card requires"),
        (card_of(auth="oidc"), "the card requires"),
        (broken("answers", TaskState.TASK_STATE_FAILED), "the answered task ended as FAILED"),
        (under("oidc", auth="api-key+oidc"), "under oidc the answer UNAUTHENTICATED for key"),
        (under("oidc", keys=unnamed), "under oidc the answer to find all for token"),
        (under("oidc", keys=named_wrongly), "under oidc the answer TASK_NOT_FOUND for other"),
        (under("api-key", auth="oidc"), "under api-key the answer to find all for key"),
        (under("api-key", auth="api-key+oidc"), "under api-key the answer UNAUTHENTICATED for t"),
    ],
)
async def test_each_part_is_checked(
    subject: Open,
    deployed: Deployed,
    monkeypatch: pytest.MonkeyPatch,
    breaks: Callable[[Deployed], None],
    part: str,
) -> None:
    """A break of what is taken, found, refused or declared fails; functions and keys are undone."""
    monkeypatch.setattr(callers, "TAKEN_S", 0.2)
    breaks(deployed)
    found = await finding(await subject(), CHECK)
    assert found.outcome is Outcome.FAILED
    assert part in found.says
    assert json.loads(deployed.keys) == {"alice": KEY}
    assert list(deployed.variables.values()) == [{"A2A_AUTH": "api-key"}] * 2


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"consent": Consent()}, "needs --allow-changes"),
        ({"auth": "oidc"}, "needs a stack with Auth=api-key"),
        ({"credential": f"{KEY}x"}, "needs a key of the stack's secret"),
    ],
)
async def test_what_it_needs(
    subject: Open, deployed: Deployed, fields: dict[str, Any], part: str
) -> None:
    """Without consent, with another Auth or another key nothing is changed."""
    if "credential" in fields:  # it is taken, and is another secret's
        deployed.settings = lambda it: it.model_copy(
            update={"api_keys": SecretStr(f"alice={KEY}x")}
        )
    found = await finding(await subject(**fields), CHECK)
    assert (found.outcome, part in found.says) == (Outcome.NOT_POSSIBLE, True)
    assert deployed.changes == []


async def test_an_issuer_on_aws(
    subject: Open, aws: ScriptedAws, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a function with a URL, removed after the check, that publishes the key as one here."""
    workshop(aws)

    def answer(request: httpx.Request) -> httpx.Response:
        assert str(request.url) == "https://hook.lambda-url.test/keys"
        return httpx.Response(200)

    opened = await subject(endpoint="http://agent.test/", transport=httpx.MockTransport(answer))
    async with callers.issuer_for(opened) as issuer:
        assert issuer.url == "https://hook.lambda-url.test"
    (made,) = (params for operation, params in aws.calls if operation == "lambda.CreateFunction")
    assert await opened.made.undo() == []
    assert aws.called[-3:] == ["lambda.DeleteFunction", "iam.DeleteRolePolicy", "iam.DeleteRole"]
    monkeypatch.setenv("KEY", made["Environment"]["Variables"]["KEY"])
    own: dict[str, Any] = {}
    exec(callers.ISSUER, own)  # noqa: S102 - it is ours, and runs as a function on AWS

    def published(base: str, path: str) -> Any:
        event = {"requestContext": {"domainName": base.partition("//")[2]}, "rawPath": path}
        return json.loads(own["handler"](event, None)["body"])

    with running_issuer() as local:
        async with httpx.AsyncClient(base_url=local.url) as client:
            for path in ("/.well-known/openid-configuration", "/keys"):
                expected = (await client.get(path)).text.replace(local.url, issuer.url)
                assert published(issuer.url, path) == json.loads(expected)


# -- by updates of the stack ----------------------------------------------------------------------


class Given(Updates):
    """Gives what functions are told directly, as a stack's update does."""

    def __init__(self, functions: Deployed) -> None:
        self.functions = functions
        self.taken: list[str] = []

    async def update(self, subject: Subject, parameters: Mapping[str, str]) -> None:
        _, stack = subject.on_aws()
        self.taken.append(parameters["Auth"])
        names = {"Auth": "AUTH", "OidcIssuer": "OIDC_ISSUER", "OidcAudience": "OIDC_AUDIENCE"}
        given = {f"A2A_{names[name]}": value for name, value in parameters.items() if value}
        self.functions.variables = dict.fromkeys(self.functions.variables, given)
        self.functions.changes.append(parameters["Auth"])
        subject.stack = replace(stack, parameters={**stack.parameters, **parameters})


@pytest.mark.parametrize(
    ("breaks", "part"),
    [
        (lambda _: None, ""),
        (under("api-key+oidc", auth="oidc"), "say was answered with 401"),
        (under("oidc", keys=named_wrongly), "under oidc the answer TASK_NOT_FOUND for other"),
        (broken("request", one_of_both), "['Authorization', 'X-API-Key'] was answered 200"),
    ],
)
async def test_keys_and_tokens(
    subject: Open,
    deployed: Deployed,
    monkeypatch: pytest.MonkeyPatch,
    breaks: Callable[[Deployed], None],
    part: str,
) -> None:
    """The client keeps its tasks over three updates; a break is found, and all is undone."""
    monkeypatch.setattr(callers, "TAKEN_S", 0.2)
    before = deployed.keys
    breaks(deployed)
    ground = Given(deployed)
    found = Findings()
    form = replace(FORMS[-1], checks=("key-and-token",))
    await run(await subject(), [in_form(form, ground, str, found)], str, found)
    own = next(one for one in found.findings if one.name == "key-and-token/key-and-token")
    assert (own.outcome, part in own.says) == (
        Outcome.FAILED if part else Outcome.PASSED,
        True,
    )
    assert (ground.taken[0], ground.taken[-1]) == ("api-key+oidc", "api-key")
    assert deployed.keys == before
    assert found.remains == []
