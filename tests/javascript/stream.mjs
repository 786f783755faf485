// The official JavaScript client as it comes: node stream.mjs URL BINDING send|subscribe TEXT|TASK
// Prints one JSON line for each event, and one for the error that ends the stream.

import { randomUUID } from "node:crypto";
import { ClientFactory, ClientFactoryOptions } from "@a2a-js/sdk/client";

const [url, binding, operation, argument] = process.argv.slice(2);

const options = ClientFactoryOptions.createFrom(ClientFactoryOptions.default, {
  preferredTransports: [binding],
});
const client = await new ClientFactory(options).createFromUrl(url);

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

try {
  for await (const { payload } of stream) {
    console.log(JSON.stringify({ kind: payload.$case, ...told[payload.$case](payload.value) }));
  }
} catch (error) {
  console.log(JSON.stringify({ kind: "error", name: error.name, says: error.message }));
}
