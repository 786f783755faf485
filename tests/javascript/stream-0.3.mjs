// The official JavaScript client of 0.3 as it comes: node stream-0.3.mjs URL BINDING send|subscribe TEXT|TASK
// Prints one JSON line for each event, and one for the error that ends the stream.

import { randomUUID } from "node:crypto";
import * as sdk from "a2a-js-sdk-0.3/client";
import { clientOf, followed } from "./shared.mjs";

const [url, binding, operation, argument] = process.argv.slice(2);
const client = await clientOf(sdk, url, binding);
const text = (parts) => (parts ?? []).map((part) => part.text ?? "").join("");

const told = {
  task: (task) => ({ task: task.id, state: task.status.state }),
  "status-update": (update) => ({ state: update.status.state, says: text(update.status.message?.parts) }),
  "artifact-update": (update) => ({ chunk: text(update.artifact.parts), last: update.lastChunk }),
  message: (message) => ({ says: text(message.parts) }),
};

const stream =
  operation === "subscribe"
    ? client.resubscribeTask({ id: argument })
    : client.sendMessageStream({
        message: {
          kind: "message",
          messageId: randomUUID(),
          role: "user",
          parts: [{ kind: "text", text: argument }],
        },
      });

await followed(stream, (event) => ({ kind: event.kind, content: event }), told);
