"""A stack on the emulator: built, deployed, updated and deleted by SAM, as its owner does it."""

import os
import re
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from a2a_serverless_tools.cloud import stack
from a2a_serverless_tools.cloud.emulator import REGION
from a2a_serverless_tools.cloud.stack import Deployed
from tests.live.account import Account, Stack, read_stack

ROOT: Final = Path(__file__).parents[2]
SAM: Final = ROOT / ".venv" / "tools" / "sam" / "bin" / "sam"
PYTHON: Final = ROOT / "build" / "cloud" / "venv" / "bin" / "python"
PROGRAM: Final = ROOT / ".venv" / "bin" / "a2a-serverless"
LIVE_AGENT: Final = ROOT / "tests" / "live"
DELETE_S: Final = 300.0
KEPT: Final = frozenset({"TaskTable", "BlobBucket", "UndecodableQueue", "ApiKeys", "SigningSecret"})
"""What outlives a deleted stack, by logical ids."""
MADE_AGAIN: Final = "FunctionLogs"
"""What the emulator may make again for the last lines of a function, which no role may on AWS."""

SETTINGS: Final = """\
version = 0.1

[default.global.parameters]
stack_name = "{name}"
region = "{region}"

[default.deploy.parameters]
template_file = "{template}"
resolve_s3 = true
capabilities = "CAPABILITY_IAM"
confirm_changeset = {confirms}
"""


async def build(folder: Path, *, live_agent: bool, project: Path = ROOT) -> None:
    """Build a project for this machine into a folder; with the live checks' own agent if asked.

    Raises:
        PhaseError: it cannot be built.
    """
    # The environment is as it is: a run must not change it under the others.
    options = ["--old-file=.venv/.stamp"] if project == ROOT else []
    await stack.build(folder, project, *options)
    if live_agent:
        cards = dict.fromkeys(("ApiFunction", "StreamFunction"), "agent_card.json")
        for function, name in {"WorkerFunction": "agent.py", **cards}.items():
            shutil.copy(LIVE_AGENT / name, folder / function / name)
        for bytecode in (folder / "WorkerFunction").glob("__pycache__/agent.*.pyc"):
            bytecode.unlink()  # it is valid whatever lies beside it


@dataclass(kw_only=True)
class Deployment(Deployed):
    """A deployed stack and the door to it."""

    sam: Path = SAM
    made: dict[str, str] = field(default_factory=dict)
    """Each resource that was ever in the stack, by its logical id."""

    @property
    def account(self) -> Account:
        """The emulated account, with its root user's credentials."""
        return Account(REGION, **self.emulator.client())

    async def deploy(self, **parameters: str) -> None:
        """Create or update the stack, with other parameters if given; show its API at the door.

        Raises:
            ConfigurationError: it failed; the text has the events that say why.
        """
        await super().deploy(**parameters)
        self.made.update((await self.stack()).resources)

    def environment(self, *folders: Path, **variables: str) -> dict[str, str]:
        """Return the variables of a command that asks the emulator, with folders of programs."""
        path = os.pathsep.join([*map(str, folders), os.environ["PATH"]])
        given = {**self.emulator.environment(), "SAM_CLI_TELEMETRY": "0", "PATH": path}
        return {**os.environ, **given, **variables}

    def project(self, name: str, template: Path, *, confirms: bool) -> Path:
        """Make a folder beside what was built that `sam deploy` takes for a project."""
        folder = self.build / name
        folder.mkdir(exist_ok=True)
        (folder / "template.yaml").write_bytes((ROOT / "template.yaml").read_bytes())
        asks = str(confirms).lower()
        settings = SETTINGS.format(name=self.name, region=REGION, template=template, confirms=asks)
        (folder / "samconfig.toml").write_text(settings, encoding="utf-8")
        return folder

    def take(self, build: Path) -> None:
        """Deploy another build from now on."""
        self.build = self.door.build = build

    def processes(self, function: str) -> list[int]:
        """Return the ids of the processes that run a function, which its logical id names."""
        running = self.emulator.functions().items()
        ids = [pid for pid, physical in running if physical == self.made[function]]
        return ids + (self.door.processes if function == "StreamFunction" else [])

    async def session(self, role: str) -> tuple[str, str, str]:
        """Return credentials of a role: key, secret, token."""
        found = await self.account.call("iam", "get_role", RoleName=role)
        arn = found["Role"]["Arn"]
        issued = await self.account.call("sts", "assume_role", RoleArn=arn, RoleSessionName="check")
        given = issued["Credentials"]
        return given["AccessKeyId"], given["SecretAccessKey"], given["SessionToken"]

    async def stack(self) -> Stack:
        return await read_stack(self.account, self.name)

    async def delete(self, shared: Collection[str] = ()) -> dict[str, str]:
        """Delete the stack; return what remains of it, by logical id.

        `shared` are physical ids that another stack has, too, such as the name of a stage.

        Raises:
            PhaseError: SAM did not delete it.
        """
        await self.run_sam("delete", "--no-prompts", "--region", REGION, within_s=DELETE_S)
        present = await self._present()
        return {
            logical: physical
            for logical, physical in self.made.items()
            if {physical, physical.rpartition("/")[2]} & present and physical not in shared
        }

    async def _present(self) -> set[str]:
        """Names and ids, and their last parts, of all that the account has of a stack's kinds."""
        names: set[str] = set()
        for service, operation, member in _LISTS:
            texts = [*_texts(await self.account.pages(service, operation, member))]
            names.update(texts, (re.split("[/:]", text)[-1] for text in texts))
        return names


def _texts(value: Any) -> Iterator[str]:
    """Yield each text in the entries of a list."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _texts(each)


_LISTS: Final = (
    ("dynamodb", "list_tables", "TableNames"),
    ("s3", "list_buckets", "Buckets"),
    ("sqs", "list_queues", "QueueUrls"),
    ("lambda", "list_functions", "Functions"),
    ("lambda", "list_layers", "Layers"),
    ("lambda", "list_event_source_mappings", "EventSourceMappings"),
    ("iam", "list_roles", "Roles"),
    ("iam", "list_policies", "Policies"),
    ("events", "list_rules", "Rules"),
    ("secretsmanager", "list_secrets", "SecretList"),
    ("apigateway", "get_rest_apis", "items"),
    ("cloudwatch", "describe_alarms", "MetricAlarms"),
    ("cloudwatch", "list_dashboards", "DashboardEntries"),
    ("logs", "describe_log_groups", "logGroups"),
)
