"""Where a subject is deployed, and small stacks of the checks' own beside it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from tests.live.account import ERRORS, Account, Stack, is_denied, read_stack
from tests.live.subject import NotPossibleError, Subject, require
from tests.support.issuers import Issuer

CAPABILITIES: Final = ["CAPABILITY_IAM", "CAPABILITY_AUTO_EXPAND"]
URL: Final = """
Parameters: {Code: {Type: String}, Key: {Type: String}}
Resources:
  Queue: {Type: AWS::SQS::Queue}
  Role:
    Type: AWS::IAM::Role
    Properties:
      AssumeRolePolicyDocument:
        Statement:
          {Effect: Allow, Principal: {Service: lambda.amazonaws.com}, Action: sts:AssumeRole}
      Policies:
        - PolicyName: keep
          PolicyDocument:
            Statement: {Effect: Allow, Action: sqs:SendMessage, Resource: !GetAtt Queue.Arn}
  Function:
    Type: AWS::Lambda::Function
    Properties:
      Runtime: python3.13
      Handler: index.handler
      Timeout: 10
      MemorySize: 256
      Role: !GetAtt Role.Arn
      Code: {ZipFile: !Ref Code}
      Environment: {Variables: {KEPT: !Ref Queue, KEY: !Ref Key}}
  Public:
    Type: AWS::Lambda::Permission
    Properties:
      FunctionName: !Ref Function
      Principal: "*"
      Action: lambda:InvokeFunctionUrl
      FunctionUrlAuthType: NONE
  PublicByUrl:
    Type: AWS::Lambda::Permission
    Properties:
      FunctionName: !Ref Function
      Principal: "*"
      Action: lambda:InvokeFunction
      InvokedViaFunctionUrl: true
  Url:
    Type: AWS::Lambda::Url
    Properties: {AuthType: NONE, TargetFunctionArn: !Ref Function}
Outputs:
  PublicUrl: {Value: !GetAtt Url.FunctionUrl}
"""
"""A function with a URL that everybody may call, and a queue to which it may send."""


@dataclass(kw_only=True)
class Ground:
    """A stack on AWS, and what its owner allows."""

    account: Account
    stack: Stack
    changes: bool = False
    """Whether the stack may be changed, and changed back."""
    slack: float = 1
    tokens: Issuer | None = None
    """An issuer of tokens that is there already."""

    async def settle(self) -> None:
        """Lead requests to the version that is behind an alias, which AWS does itself."""

    async def update(self, subject: Subject, parameters: Mapping[str, str]) -> None:
        """Update the stack, whose template stays as it is, to other values of parameters.

        Raises:
            BrokenError: it went back.
        """
        name = self.stack.name
        # An update that was interrupted goes on: what it has changed is known at its end alone.
        await rested(subject, name)
        self.stack = await read_stack(self.account, name)
        if parameters.items() <= self.stack.parameters.items():
            return
        given = [
            {"ParameterKey": each, "ParameterValue": parameters[each]}
            if each in parameters
            else {"ParameterKey": each, "UsePreviousValue": True}
            for each in self.stack.parameters
        ]
        same = {"UsePreviousTemplate": True, "Capabilities": CAPABILITIES, "Parameters": given}
        await self.account.call("cloudformation", "update_stack", StackName=name, **same)
        status = await rested(subject, name)
        require(status == "UPDATE_COMPLETE", f"the update ended as {status}: see its events")
        self.stack = await read_stack(self.account, name)

    async def variables(self, _: Subject) -> dict[str, str]:
        """Return the environment of a worker of the stack outside of it, by its outputs."""
        named = {"TABLE": "Table", "QUEUE": "Queue", "UNDECODABLE_QUEUE": "UndecodableQueue"}
        found = {f"A2A_{name}": self.stack.outputs[output] for name, output in named.items()}
        return {**found, "AWS_REGION": self.account.region}


async def changed(subject: Subject, **parameters: str) -> None:
    """Update the stack to other values of parameters.

    What is undone afterwards updates it back, and has a turn end there.
    """
    _, stack = subject.changeable()
    before = {name: stack.parameters.get(name, "") for name in parameters}

    async def back() -> None:
        await subject.ground.update(subject, before)
        await subject.completed(await subject.begin("say"), within_s=100)

    subject.made.note("parameters of", f"{stack.name}, which had {before}", back)
    await subject.ground.update(subject, parameters)


async def rested(subject: Subject, stack: str, *, within_s: float = 1800) -> str:
    """Wait until nothing changes a stack; return its status, `DELETE_COMPLETE` if there is none."""

    async def look() -> str | None:
        try:
            call = subject.ground.account.call
            answer = await call("cloudformation", "describe_stacks", StackName=stack)
        except ERRORS:
            return "DELETE_COMPLETE"
        status = str(answer["Stacks"][0]["StackStatus"])
        return None if status.endswith("_IN_PROGRESS") else status

    return await subject.until(f"the end of the change of {stack}", look, within_s=within_s)


async def alone(subject: Subject, purpose: str, template: str, **parameters: str) -> dict[str, str]:
    """Make a stack of the run's own; return its physical ids and outputs, none if it went back.

    Raises:
        NotPossibleError: the credentials do not allow it.
    """
    account, name = subject.ground.account, subject.name(purpose)

    async def undo() -> None:
        await account.call("cloudformation", "delete_stack", StackName=name)
        status = await rested(subject, name, within_s=300)
        require(status == "DELETE_COMPLETE", f"it is {status}")

    subject.made.note("stack", name, undo)
    try:
        given = [{"ParameterKey": k, "ParameterValue": v} for k, v in parameters.items()]
        made = {"TemplateBody": template, "Parameters": given, "Capabilities": CAPABILITIES}
        await account.call("cloudformation", "create_stack", StackName=name, **made)
    except ERRORS as error:
        if is_denied(error):
            raise NotPossibleError("the credentials may not make a stack") from error
        raise
    if await rested(subject, name, within_s=300) != "CREATE_COMPLETE":
        return {}
    answer = await account.call("cloudformation", "describe_stacks", StackName=name)
    outputs = {it["OutputKey"]: it["OutputValue"] for it in answer["Stacks"][0].get("Outputs", ())}
    listed = await account.call("cloudformation", "list_stack_resources", StackName=name)
    found = {it["LogicalResourceId"]: it for it in listed["StackResourceSummaries"]}
    return {name: it.get("PhysicalResourceId", "") for name, it in found.items()} | outputs


async def public_function(subject: Subject, name: str, code: str, key: str = "") -> tuple[str, str]:
    """Make a function that everybody may call; return its URL without a slash, and its queue's.

    The function has its queue's URL in KEPT, and `key` in KEY.
    """
    made = await alone(subject, name, URL, Code=code, Key=key)
    require(made, f"the stack of {name} could not be made: see its events")
    url = made["PublicUrl"].rstrip("/")
    # Who gets a refusal may take it as final, so that it must not come too early.
    await subject.until(url, lambda: subject.answers(f"{url}/"), within_s=60, every_s=1)
    return url, made["Queue"]
