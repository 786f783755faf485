// The official JavaScript client as it comes: node stream.mjs URL BINDING send|subscribe TEXT|TASK
// Prints one JSON line for each event, and one for the error that ends the stream.

import { randomUUID } from "node:crypto";
import * as sdk from "@a2a-js/sdk/client";
import { clientOf, followed } from "./shared.mjs";

const [url, binding, operation, argument] = process.argv.slice(2);
const client = await clientOf(sdk, url, binding);
const text = (parts) => (parts ?? []).map((part) => part.content?.value ?? "").join("");

const told = {
  task: (task) => ({ task: task.id, state: task.status.state }),
  statusUpdate: (update) => ({ state: update.status.state, says: text(update.status.message?.parts) }),
  artifactUpdate: (update) => ({ chunk: text(update.artifact.parts), last: update.lastChunk }),
  message: (message) => ({ says: text(message.parts) }),
};

const stream =
  operation === "subscribe"
    ? client.resubscribeTask({ id: argument, tenant: "" })
    : client.sendMessageStream({
        tenant: "",
        message: {
          messageId: randomUUID(),
          role: 1, // user
          parts: [{ content: { $case: "text", value: argument } }],
          extensions: [],
          referenceTaskIds: [],
        },
      });

await followed(stream, ({ payload }) => ({ kind: payload.$case, content: payload.value }), told);
