"""The built functions on the emulators, with the variables that their template gives them."""

import json
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from samtranslator.yaml_helper import yaml_parse
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from a2a_serverless_tools.local.http_server import HttpServer
from a2a_serverless_tools.local.provision import Names, provision
from a2a_serverless_tools.local.sockets import bind
from tests.artefact.build import Artefact
from tests.artefact.environment import Function
from tests.contract.queues import lambda_record
from tests.support.emulators import REGION, Emulator
from tests.support.handlers import event_file
from tests.support.template import Template

API_KEY = "test-key-of-twenty-characters"
"""The key of the events in events/."""

SECRETS = {"ApiKeys": json.dumps({"default": API_KEY}), "SigningSecret": "s" * 64}
"""Values by the names that the template's resources have here."""

_KNOWN = {"AWS::AccountId": "123456789012", "AWS::Region": REGION, "RestApi": "abcdef1234"}
_KNOWN |= {"AWS::StackName": "artefact", "AWS::URLSuffix": "amazonaws.com"}


@dataclass(frozen=True, kw_only=True)
class Deployment:
    """Table, queues, and the functions that work on them."""

    made: Names
    dynamodb: Any
    sqs: Any
    functions: Mapping[str, Function]

    def records(self, queue: str, *task_ids: str) -> Iterator[dict[str, Any]]:
        """The messages that wait in a queue, as its event source hands them over.

        With `task_ids` those about these tasks alone: on a slow machine the message of an earlier
        test comes again meanwhile.
        """
        arn = f"arn:aws:sqs:{REGION}:123456789012:{queue.rpartition('/')[2]}"
        while messages := self._receive(queue):
            for message in messages:
                if not task_ids or any(task_id in message["Body"] for task_id in task_ids):
                    yield {**lambda_record(message), "eventSourceARN": arn}

    def _receive(self, queue: str) -> list[dict[str, Any]]:
        asked = {"MaxNumberOfMessages": 10, "MessageSystemAttributeNames": ["All"]}
        answer = self.sqs.receive_message(QueueUrl=queue, **asked)
        messages: list[dict[str, Any]] = answer.get("Messages", [])
        return messages

    def commits(self, task_id: str) -> list[dict[str, Any]]:
        """Stream records of a task's commits, as DynamoDB Streams hands them over."""
        # A scan: the table is this test's own, and small.
        items = self.dynamodb.scan(TableName=self.made.table, ConsistentRead=True)["Items"]
        record, records = event_file("push-dynamodb-commit")["Records"][0], []
        for number, item in enumerate(items):
            if item["PK"]["S"].endswith(f"#{task_id}") and item["SK"]["S"].startswith("EVENT#"):
                # Without binary values, which no function reads from a record.
                image = {name: it for name, it in item.items() if "B" not in it}
                own = {"Keys": {name: item[name] for name in ("PK", "SK")}, "NewImage": image}
                change = record["dynamodb"] | own | {"SequenceNumber": f"{number:021d}"}
                records.append(record | {"dynamodb": change})
        return records


@contextmanager
def secrets_manager(values: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """A Secrets Manager with these secrets alone; gives the variable that leads to it."""

    async def answer(request: Request) -> Response:
        assert request.headers["X-Amz-Target"] == "secretsmanager.GetSecretValue"
        wanted = await request.json()
        name, stage = wanted["SecretId"], wanted.get("VersionStage", "AWSCURRENT")
        if name in values and stage == "AWSCURRENT":
            return JSONResponse({"Name": name, "SecretString": values[name]})
        return JSONResponse({"__type": "ResourceNotFoundException"}, 400)

    app = Starlette(routes=[Route("/", answer, methods=["POST"])])
    with HttpServer(app, bind(0), lifespan=False) as server:
        yield {"AWS_ENDPOINT_URL_SECRETS_MANAGER": server.url}


@contextmanager
def deployed(artefact: Artefact, dynamodb: Emulator, sqs: Emulator) -> Iterator[Deployment]:
    """Table, queues and secrets for the block, and the functions with their variables."""
    names = Names.with_prefix(f"artefact-{uuid.uuid4().hex[:8]}")
    clients = dynamodb.client(), sqs.client()
    made = provision(*clients, names=names, stream=False)
    with secrets_manager(SECRETS) as endpoint:
        aws = {"AWS_REGION": REGION, **dynamodb.environment(), **sqs.environment(), **endpoint}
        functions = {
            name: Function(
                name=name,
                artefact=artefact,
                folder=artefact.folder / properties["CodeUri"],
                handler=properties["Handler"],
                variables={**_given(artefact, name, properties, made), **aws},
            )
            for name, properties in artefact.functions().items()
        }
        yield Deployment(made=made, dynamodb=clients[0], sqs=clients[1], functions=functions)


def _given(artefact: Artefact, name: str, its: Mapping[str, Any], made: Names) -> dict[str, str]:
    """What the template says, with the names of this table and these queues."""
    document = yaml_parse((artefact.folder / "template.yaml").read_text(encoding="utf-8"))
    known = {**{resource: resource for resource in document["Resources"]}, **_KNOWN}
    known |= {f"{secret}.Id": secret for secret in SECRETS}
    variables = {"Properties": its["Environment"]["Variables"]}
    template = Template(document | {"Resources": {name: variables}})
    resolved = template.properties(name, known)
    own = {key: value for key, value in made.environment().items() if key in resolved}
    return {key: str(value) for key, value in (resolved | own).items()}
