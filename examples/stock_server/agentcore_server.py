"""An executor on Bedrock AgentCore, whose tasks outlive its microVM.

    TABLE=a2a-tasks python -m examples.stock_server.agentcore_server

It needs `bedrock-agentcore[a2a-v1]`. The AgentCore SDK's server takes no event stream: a task is
followed where it runs, and read anywhere.
"""

from __future__ import annotations

import os

from bedrock_agentcore.runtime import serve_a2a

from a2a_serverless.stores import DynamoDBTaskStore, file_table
from examples.stock_server.counter import Counter, card_at

PORT = int(os.environ.get("PORT", "9000"))
TABLE = os.environ.get("TABLE", "tasks.sqlite")

if __name__ == "__main__":
    table = file_table(TABLE) if TABLE.endswith(".sqlite") else TABLE
    card = card_at(os.environ.get("AGENTCORE_RUNTIME_URL", f"http://127.0.0.1:{PORT}"))
    serve_a2a(Counter(), card, port=PORT, task_store=DynamoDBTaskStore(table))
