// The official JavaScript server with the agent of tests/conformance/test_sdks.py: node server.mjs
// Prints its URL. The text of a message says what the agent does.

import { createServer } from "node:http";
import {
  AgentEvent,
  DefaultPushNotificationSender,
  DefaultRequestHandler,
  InMemoryPushNotificationStore,
  InMemoryTaskStore,
  JsonRpcTransportHandler,
  ServerCallContext,
  UnauthenticatedUser,
  validateVersion,
} from "@a2a-js/sdk/server";

const [WORKING, COMPLETED] = [2, 3];
const text = (value) => ({ content: { $case: "text", value }, mediaType: "", filename: "" });
const data = (value) => ({ content: { $case: "data", value }, mediaType: "", filename: "" });

const agent = {
  async execute({ userMessage, taskId, contextId, task }, bus) {
    const names = { taskId, contextId };
    const artifact = (parts, more) =>
      bus.publish(
        AgentEvent.artifactUpdate({
          ...names,
          append: false,
          lastChunk: false,
          ...more,
          artifact: { artifactId: "a", name: "", description: "", parts, extensions: [] },
        }),
      );
    const status = (state, said) => {
      const message = said && {
        ...names,
        messageId: said,
        role: 2,
        parts: [text(said)],
        extensions: [],
        referenceTaskIds: [],
      };
      bus.publish(AgentEvent.statusUpdate({ ...names, status: { state, message, timestamp: new Date().toISOString() } }));
    };
    const submitted = { state: 1, message: undefined, timestamp: new Date().toISOString() };
    if (!task) {
      const open = { id: taskId, contextId, status: submitted, artifacts: [], history: [userMessage] };
      bus.publish(AgentEvent.task(open));
    }
    const does = {
      append: () => artifact([text("a")], { append: true }),
      late: () => status(COMPLETED),
      data: () => artifact([data({ n: 3, big: 9007199254740993 })]),
      fail: () => {
        throw new Error("boom");
      },
      says: () => ["one", "two", "three"].forEach((said) => status(WORKING, said)),
    };
    does[userMessage.parts[0].content.value]();
    if (userMessage.parts[0].content.value === "late") artifact([text("late")]);
    else status(COMPLETED);
    bus.finished();
  },
  async cancelTask() {},
};

// What the SDK's handler for express does.
async function answered(body, context) {
  try {
    validateVersion(context.requestedVersion, card, "JSONRPC");
  } catch (error) {
    return { jsonrpc: "2.0", id: null, error: JsonRpcTransportHandler.mapToJSONRPCError(error) };
  }
  return rpc.handle(body, context);
}

const server = createServer(async (request, response) => {
  let body = "";
  for await (const chunk of request) body += chunk;
  const context = new ServerCallContext({
    user: new UnauthenticatedUser(),
    requestedVersion: request.headers["a2a-version"],
  });
  const answer = await answered(body, context);
  if (!answer[Symbol.asyncIterator]) {
    response.setHeader("Content-Type", "application/json");
    return response.end(JSON.stringify(answer));
  }
  response.setHeader("Content-Type", "text/event-stream");
  for await (const frame of answer) response.write(`data: ${JSON.stringify(frame)}\n\n`);
  response.end();
});

server.listen(0, "127.0.0.1", () => console.log(`http://127.0.0.1:${server.address().port}/`));
const url = "http://test/";
const card = {
  name: "Compared",
  description: "Runs on two servers.",
  version: "1.0.0",
  capabilities: { streaming: true, pushNotifications: true, extensions: [] },
  defaultInputModes: ["text/plain"],
  defaultOutputModes: ["text/plain"],
  skills: [],
  supportedInterfaces: [{ url, protocolBinding: "JSONRPC", protocolVersion: "1.0", tenant: "" }],
  securitySchemes: {},
  securityRequirements: [],
  signatures: [],
};
const hooks = new InMemoryPushNotificationStore();
const sender = new DefaultPushNotificationSender(hooks);
const rpc = new JsonRpcTransportHandler(
  new DefaultRequestHandler(card, new InMemoryTaskStore(), agent, undefined, hooks, sender),
);
