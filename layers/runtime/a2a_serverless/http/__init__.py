"""A2A over HTTP: JSON-RPC and HTTP+JSON over the official SDK's routes."""
