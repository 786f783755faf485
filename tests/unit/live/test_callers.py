"""The check of a client's move to tokens: it passes on the application."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from a2a.types import TaskState as S
from pydantic import SecretStr

from a2a_serverless.http.app import create_app
from a2a_serverless.http.card import load_card
from a2a_serverless.settings import Settings
from a2a_serverless.wiring import memory_backends
from tests.live import callers
from tests.live.checks import CHECKS
from tests.live.findings import Outcome
from tests.live.stack import Stack
from tests.live.subject import Consent
from tests.support.scripted_worker import ScriptedWorker, Turn
from tests.unit.live.scripted_aws import PHYSICAL, REGION, ScriptedAws
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
    """Functions that do what their variables and the keys say."""

    def __init__(self, aws: ScriptedAws) -> None:
        self.backends = memory_backends(Settings())
        self.variables = {name: {"A2A_AUTH": "api-key"} for name in callers.ENDPOINTS}
        """Of the versions behind the aliases."""
        self._latest = dict(self.variables)
        self._versions = {(name, "1"): given for name, given in self.variables.items()}
        self.keys = json.dumps({"alice": KEY})
        self.changes: list[str] = []
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
        await turn.status(S.TASK_STATE_INPUT_REQUIRED if asks else S.TASK_STATE_COMPLETED)

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        function = "StreamFunction" if request.url.path == "/" else "ApiFunction"
        return await self._app(function).handle_async_request(request)

    def _app(self, function: str) -> httpx.ASGITransport:
        variables = self.variables[function]
        fields = {k.removeprefix("A2A_").lower(): v for k, v in variables.items()}
        settings = Settings(**{**fields, "api_keys": SecretStr(self.keys)})
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
    """Open the subject of the check."""

    async def make() -> Any:
        stack = Stack(
            name="live",
            region=REGION,
            outputs={"Endpoint": HERE, "ApiKeys": "keys"},
            parameters={"Auth": "api-key"},
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
        }
        return await subject_at(**given)

    return make


@pytest.mark.long
async def test_a_client_that_keeps_its_tasks(subject: Open, deployed: Deployed) -> None:
    """The check passes, and puts the functions and the keys back as they were."""
    found = await finding(await subject(), CHECK)
    assert (found.outcome, found.says) == (Outcome.PASSED, "")
    assert found.figures == {"tasks kept": 5}
    steps = ["api-key+oidc", "oidc", "api-key"]
    assert deployed.changes == [*(auth for auth in steps for _ in range(2)), "api-key", "api-key"]
    assert list(deployed.variables.values()) == [{"A2A_AUTH": "api-key"}] * 2
    assert json.loads(deployed.keys) == {"alice": KEY}
