"""The agent: a trip planner that needs no model and no key. Replace it with yours.

It does the usual work of agents: it asks for missing details, streams its answer in chunks as one
artifact, and stops when the client cancels. `AGENT_CHUNK_DELAY_S` (seconds, default 0.2) makes
the streaming slow enough to be seen.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from a2a_serverless.worker import TaskContext, Worker

SIGHTS = {
    "Kyoto": ["Fushimi Inari", "Nishiki Market", "Kinkaku-ji", "Gion", "Arashiyama", "Tō-ji"],
    "Lisbon": ["Alfama", "Time Out Market", "Belém Tower", "Chiado", "Sintra", "LX Factory"],
    "Oslo": ["Opera House", "Vulkan", "Munch Museum", "Grünerløkka", "Bygdøy", "Holmenkollen"],
}
MAX_DAYS = 3


class TripPlanner(Worker):
    """Plans one to three days in a city: "Two days in Lisbon" is enough."""

    def __init__(self, chunk_delay_s: float = 0.2) -> None:
        self.chunk_delay_s = chunk_delay_s

    async def handle(self, ctx: TaskContext) -> None:
        """Answer, or ask for the city or the days; a cancel interrupts the next `await`."""
        said = [message.text for message in ctx.history if message.role == "user"]
        wishes = " ".join([*said, ctx.user_text])
        city, days = find_city(wishes), find_days(wishes)
        if city is None:
            await ctx.request_input(f"Which city: {', '.join(SIGHTS)}?")
        elif days is None:
            await ctx.request_input(f"How many days in {city}, 1 to {MAX_DAYS}?")
        else:
            await ctx.send_status(f"Planning {city}")
            for chunk in itinerary(city, days):
                await ctx.emit_text_artifact(chunk, artifact_id="itinerary", append=True)
                await ctx.sleep(self.chunk_delay_s)
            await ctx.complete()


def find_city(wishes: str) -> str | None:
    """Return the city that was named last."""
    named = re.findall("|".join(SIGHTS), wishes, re.IGNORECASE)
    return named[-1].title() if named else None


def find_days(wishes: str) -> int | None:
    """Return the last number in the text, if that many days can be planned."""
    numbers = {"one": 1, "two": 2, "three": 3} | {str(n): n for n in range(1, MAX_DAYS + 1)}
    said = re.findall(r"\b(\d+|one|two|three)\b", wishes.lower())
    return numbers.get(said[-1]) if said else None


def itinerary(city: str, days: int) -> Iterator[str]:
    """Yield the plan a piece at a time, as a model would."""
    yield f"# {city} in {days} day{'s' * (days > 1)}\n"
    for day in range(1, days + 1):
        morning, afternoon = SIGHTS[city][2 * day - 2 : 2 * day]
        yield f"\nDay {day}\n"
        yield f"- Morning: {morning}\n"
        yield f"- Afternoon: {afternoon}\n"


agent = TripPlanner(chunk_delay_s=float(os.environ.get("AGENT_CHUNK_DELAY_S", "0.2")))
