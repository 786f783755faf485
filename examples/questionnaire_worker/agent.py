"""A Worker that asks one question after the other, over the turns of one task.

Nothing is kept in memory between the turns: the answers are in the task's history, so that any
worker process can continue where another one stopped.
"""

from __future__ import annotations

from a2a_serverless.worker import TaskContext, Worker

QUESTIONS = {
    "name": "What is your name?",
    "city": "Where do you live?",
    "language": "Which language do you program in?",
}


class Questionnaire(Worker):
    """Asks the questions in order and completes with the answers as data."""

    async def handle(self, ctx: TaskContext) -> None:
        """Ask the next question, or complete; "stop" at any time rejects the task."""
        if ctx.user_text.strip().lower() == "stop":
            await ctx.reject("Stopped; nothing was kept.")
            return
        said = [message.text for message in ctx.history if message.role == "user"]
        answers = [*said[1:], ctx.user_text] if said else []  # the first message only starts it
        if len(answers) < len(QUESTIONS):
            question = list(QUESTIONS.values())[len(answers)]
            await ctx.request_input(question)
        else:
            await ctx.complete_json(
                dict(zip(QUESTIONS, answers, strict=True)), artifact_id="answers"
            )


agent = Questionnaire()
