// The official JavaScript client of 0.3 as it comes: node stream-0.3.mjs URL BINDING send|subscribe TEXT|TASK
// Prints one JSON line for each event, and one for the error that ends the stream.

import { randomUUID } from "node:crypto";
import { ClientFactory, ClientFactoryOptions } from "a2a-js-sdk-0.3/client";

const [url, binding, operation, argument] = process.argv.slice(2);

const options = ClientFactoryOptions.createFrom(ClientFactoryOptions.default, {
  preferredTransports: [binding],
});
const client = await new ClientFactory(options).createFromUrl(url);

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

try {
  for await (const event of stream) {
    console.log(JSON.stringify({ kind: event.kind, ...told[event.kind](event) }));
  }
} catch (error) {
  console.log(JSON.stringify({ kind: "error", name: error.name, says: error.message }));
}
