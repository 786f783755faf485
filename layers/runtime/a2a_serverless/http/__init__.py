"""A2A over HTTP: JSON-RPC and HTTP+JSON.

This module names the paths that the application serves besides those of the protocol's bindings.
"""

from __future__ import annotations

from a2a.utils.constants import AGENT_CARD_WELL_KNOWN_PATH

HEALTH_PATH = "/healthz"
JWKS_PATH = "/.well-known/jwks.json"
"""Serves the public keys by which receivers check the signatures of push notifications."""
CARD_PATHS = (AGENT_CARD_WELL_KNOWN_PATH, "/.well-known/agent.json", "/agentCard")
"""The card's path; that until 0.2, where clients of today look as well; and simple_a2a's."""
PUBLIC_PATHS = frozenset({*CARD_PATHS, HEALTH_PATH, JWKS_PATH})
"""Paths that ask for no credentials."""

CALLBACKS_PATH = "/callbacks/"
"""Begins the paths that end a wait of an agent's code; what follows admits its bearer."""

SUBMIT_PATH = "/api/a2a/tasks"
"""A second path of the JSON-RPC endpoint, where clients of `tasks/submit` expect it."""
JSONRPC_PATHS = frozenset({"", "/", SUBMIT_PATH})

UPLOADS_PATH = "/files"
"""Where a client asks for an upload, and a tenant's client below the tenant's name."""

V0_3_PREFIX = "/v1/"
"""The paths of HTTP+JSON in 0.3; its JSON-RPC shares the path of 1.0."""
