"""`python -m tests.live --stack NAME --region REGION`: what only AWS can show; the page `live`.

With --endpoint as well, the stack is asked at that address instead of its own. With --matrix it is
then updated to each of the forms, checked there, and updated back.

Exit codes: 0 nothing failed, 1 something failed or remains in the account, 2 the run was refused
before it sent anything that writes, 130 it was interrupted.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlsplit

from botocore.exceptions import BotoCoreError

from a2a_serverless.errors import ConfigurationError
from a2a_serverless_tools.cli.arguments import EXIT_UNUSABLE
from tests.live import report
from tests.live.account import Account, credentials_fault
from tests.live.checks import CHECKS
from tests.live.findings import Check, NotPossibleError
from tests.live.forms import FORMS, Form, Updates, chosen, in_form, plan
from tests.live.made import Made
from tests.live.runner import Findings, run
from tests.live.stack import first_key, read_stack
from tests.live.subject import Consent, Subject

PROGRAM = "python -m tests.live"
EXIT_INTERRUPTED = 130
REPORTS = Path(__file__).parents[2] / "build" / "live"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what the arguments ask for; return the exit code."""
    options = _parser().parse_args(arguments)
    if options.list:
        for name, proves in ((it.name, it.proves) for some in (CHECKS, FORMS) for it in some):
            _say(f"{name:<22} {proves}")
        return 0
    try:
        return asyncio.run(_main(options))
    except ConfigurationError as error:
        return _refuse(str(error))
    except BotoCoreError as error:  # such as a profile that does not exist
        return _refuse(credentials_fault(error) or f"{type(error).__name__}: {error}")


async def _main(options: argparse.Namespace) -> int:
    checks, forms = chosen(options.only)
    if not (options.matrix or options.only):
        forms = []
    run_id = f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{uuid.uuid4().hex[:4]}"
    folder = Path(options.reports) / run_id
    subject = await _subject(options, run_id, folder)
    if options.plan:
        for line in plan(subject, checks, forms):
            _say(line)
        return 0
    _require_forms(subject, forms)
    async with subject:
        await subject.card()
        folder.mkdir(parents=True)
        _say(f"run {run_id} at {subject.endpoint}")
        found = Findings()
        updates = [in_form(form, Updates(), _say, found) for form in forms]
        await _until_signal(subject, [*checks, *updates], found)
        path = report.write(folder, subject, found)
    _say(f"report: {path}")
    for line in found.remains:
        _say(f"REMAINS, remove it yourself: {line}")
    if found.interrupted:
        return EXIT_INTERRUPTED
    return 0 if found.is_well else 1


def _require_forms(subject: Subject, forms: Sequence[Form]) -> None:
    """Require a stack that can take the forms.

    Raises:
        ConfigurationError: it cannot, or must not.
    """
    for form in forms:
        try:
            form.on(subject)
        except NotPossibleError as error:
            raise ConfigurationError(f"{form.name} {error}. Nothing was touched.") from error


async def _until_signal(subject: Subject, checks: Sequence[Check], found: Findings) -> None:
    """Run the checks; Ctrl-C and SIGTERM end the run, with its report."""
    loop = asyncio.get_running_loop()
    running = asyncio.ensure_future(run(subject, checks, _say, found))
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, running.cancel)
    try:
        await running
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)


async def _subject(options: argparse.Namespace, run_id: str, folder: Path) -> Subject:
    """What is to be checked. Nothing here writes.

    Raises:
        ConfigurationError: there is no such stack, or it is not ours.
    """
    credential = _credential()
    made = Made(folder / "made.txt")
    consent = Consent(burst=options.burst, changes=options.allow_changes)
    endpoint = _address(options.endpoint) if options.endpoint else ""
    if endpoint and not options.stack:
        return Subject(
            endpoint=endpoint,
            credential=credential,
            made=made,
            run=run_id,
            consent=consent,
        )
    if not (options.stack and options.region):
        msg = "Name a stack and its region, --stack NAME --region REGION, or an --endpoint URL."
        raise ConfigurationError(msg)
    account = Account(options.region)
    stack = await read_stack(account, options.stack)
    if not credential and stack.parameters.get("Auth") != "none":
        credential = await first_key(account, stack)
    return Subject(
        endpoint=endpoint or stack.endpoint,
        credential=credential,
        account=account,
        stack=stack,
        made=made,
        run=run_id,
        consent=consent,
    )


def _credential() -> str:
    """Return the key or token of the environment; empty: there is none.

    Raises:
        ConfigurationError: no header can hold it.
    """
    credential = os.environ.get("A2A_LIVE_CREDENTIAL", "")
    if credential and not (credential.isascii() and credential.isprintable()):
        msg = "A2A_LIVE_CREDENTIAL has characters that no key or token has: set it without them."
        raise ConfigurationError(msg)
    return credential


def _address(endpoint: str) -> str:
    """Return the URL of an agent, as it was given.

    Raises:
        ConfigurationError: it is no URL of a server.
    """
    try:
        url = urlsplit(endpoint)
        is_url = url.scheme in {"http", "https"} and bool(url.hostname) and url.port != 0
    except ValueError:  # of a host in brackets, or a port
        is_url = False
    if not is_url:
        msg = f"{endpoint} is no URL of a server: give one such as http://127.0.0.1:8000."
        raise ConfigurationError(msg)
    return endpoint


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=PROGRAM, description=__doc__)
    parser.add_argument("--stack", help="the stack's name")
    parser.add_argument("--region", help="its region")
    parser.add_argument("--endpoint", help="an address without a stack, or other than the stack's")
    parser.add_argument("--only", action="append", default=[], metavar="CHECK", help="this check")
    parser.add_argument("--burst", action="store_true", help="allow hundreds of requests at once")
    parser.add_argument(
        "--allow-changes", action="store_true", help="allow changes of the stack's functions"
    )
    parser.add_argument("--matrix", action="store_true", help="the other forms of the stack, too")
    parser.add_argument(
        "--plan", action="store_true", help="what would run where and cost; it only reads the stack"
    )
    parser.add_argument("--list", action="store_true", help="list the checks, and run none")
    parser.add_argument("--reports", default=REPORTS, help="where to write (default: %(default)s)")
    return parser


def _refuse(sentence: str) -> int:
    sys.stderr.write(f"{PROGRAM}: {sentence}\n")
    return EXIT_UNUSABLE


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
