"""What template.yaml says of PushFunction's source, the table's stream."""

from __future__ import annotations

from a2a_serverless.settings import Settings
from tests.support.simulation.pumps import StreamFilter
from tests.support.template import read

TIMEOUT_S = 60.0
"""The timeout of PushFunction in template.yaml."""


def stream_filter(settings: Settings) -> StreamFilter:
    """Return the filter of template.yaml for the events that these settings push."""
    chosen = _DOCUMENT["Mappings"]["PushFilters"][settings.push_events]["Pattern"]
    return StreamFilter([chosen, WEBHOOKS_SET])


_DOCUMENT = read()
_COMMITS = _DOCUMENT["Resources"]["PushFunction"]["Properties"]["Events"]["Commits"]["Properties"]
WEBHOOKS_SET: str = _COMMITS["FilterCriteria"]["Filters"][1]["Pattern"]
"""The filter of webhooks that were set."""
