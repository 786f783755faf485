"""Checks of versions and aliases on the emulator, beside those of tests/live."""

from __future__ import annotations

from typing import Final

from tests.cloud.deployment import Deployment
from tests.cloud.own import Own
from tests.live.findings import Figures, require
from tests.live.releases import ALIAS, swapped
from tests.live.stack import FUNCTIONS
from tests.live.subject import Subject


async def released(deployment: Deployment, _: Subject) -> Figures:
    """Change one parameter that no function reads: each alias moves to a version of its own."""
    before = await _behind(deployment)
    async with deployment.changed(Release="other"):
        meanwhile = await _behind(deployment)
    after = await _behind(deployment)
    stayed = [it for it in FUNCTIONS if len({before[it], meanwhile[it], after[it]}) < 3]
    require(not stayed, f"an alias did not move: {stayed}", before=before, after=after)
    kept = [it for it in FUNCTIONS if not await _is_there(deployment, it, before[it])]
    require(not kept, f"the version before is not there any more: {kept}")
    return {"versions": [[before[it], meanwhile[it], after[it]] for it in FUNCTIONS]}


async def swapped_shared(deployment: Deployment, subject: Subject) -> Figures:
    """Swap a bad version in and out while the turns in flight share one worker."""
    # Two turns fill a worker, which pulls no third one: that begins behind the alias.
    async with deployment.changed(WorkerTurns="2", WorkerTimeout="120", TurnTimeout="45"):
        return await swapped(subject)


async def _behind(deployment: Deployment) -> dict[str, str]:
    """Return the number of the version behind each function's alias."""
    call, stack = deployment.account.call, await deployment.stack()
    return {
        logical: (
            await call("lambda", "get_alias", FunctionName=stack.resources[logical], Name=ALIAS)
        )["FunctionVersion"]
        for logical in FUNCTIONS
    }


async def _is_there(deployment: Deployment, logical: str, number: str) -> bool:
    call, stack = deployment.account.call, await deployment.stack()
    found = await call("lambda", "list_versions_by_function", FunctionName=stack.resources[logical])
    return any(version["Version"] == number for version in found["Versions"])


CHECKS: Final = (
    Own("release", "one changed parameter moves each alias to a version of its own", released),
    Own(
        "bad-version-shared",
        "turns that share a worker outlive a bad version and its way back",
        swapped_shared,
    ),
)
