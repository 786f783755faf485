"""A Worker that orders what a message names, once somebody has approved it by mail.

The offer and the mail are steps: neither runs again when the code goes on behind the approval,
days later and in another process.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Literal

from pydantic import BaseModel

from a2a_serverless.worker import TaskContext, WaitTimeoutError, Worker

APPROVER = os.environ.get("APPROVER", "approver@example.com")
DAYS = 3

Mailer = Callable[[str, str, str], None]
"""Sends a mail: receiver, subject and text."""


class Decision(BaseModel):
    """What is posted to the address in the mail."""

    decision: Literal["approve", "decline"]


class Buyer(Worker):
    """Orders what the message names, such as "12 chairs"."""

    def __init__(self, mail: Mailer) -> None:
        self.mail = mail

    async def handle(self, ctx: TaskContext) -> None:
        """Make an offer, mail it, and order when it is approved; give up after three days."""
        offer = await ctx.step("offer", self.offer, ctx.user_text)
        approval = await ctx.callback("approval")
        text = (
            f"Shall we order {offer}?\n\n"
            f"Approve: {approval.url}?decision=approve\n"
            f"Decline: {approval.url}?decision=decline\n"
        )
        await ctx.step("mail", self.mail, APPROVER, f"Order {ctx.user_text}?", text)
        await ctx.send_status(f"Waits until {APPROVER} has approved {offer}.")
        try:
            posted = await approval.wait(timeout_s=DAYS * 86_400, schema=Decision)
        except WaitTimeoutError:
            await ctx.fail(f"Nobody has decided within {DAYS} days: nothing was ordered.")
            return
        if posted.data.decision == "decline":
            await ctx.reject(f"Declined: {offer}. Nothing was ordered.")
            return
        number = await ctx.step("order", self.order, offer)
        await ctx.complete(f"Ordered as {number}: {offer}.")

    def offer(self, wanted: str) -> str:
        """Return what the seller offers; yours asks a model and a shop."""
        return f"{wanted} for 1,200 EUR"

    def order(self, offer: str) -> str:
        """Order it, and return the order's number."""
        return f"PO-{len(offer)}"


def by_ses(to: str, subject: str, text: str) -> None:
    """Send a mail with Amazon SES from MAIL_FROM, an identity that the worker's role may use."""
    import boto3  # noqa: PLC0415 - a deployment's worker has it, and `dev` needs none

    boto3.client("sesv2").send_email(
        FromEmailAddress=os.environ["MAIL_FROM"],
        Destination={"ToAddresses": [to]},
        Content={"Simple": {"Subject": {"Data": subject}, "Body": {"Text": {"Data": text}}}},
    )


def printed(to: str, subject: str, text: str) -> None:
    """Print a mail in the terminal of `dev`. In a deployment that is a log, with the address."""
    print(f"\nTo: {to}\nSubject: {subject}\n\n{text}", flush=True)  # noqa: T201 - it is to be seen


agent = Buyer(by_ses if "MAIL_FROM" in os.environ else printed)
