// The official JavaScript client of 0.3 does every operation that it has: node operations-0.3.mjs URL BINDING RECEIVER
// Prints one JSON line for each: what came of it in words, or the error. RECEIVER is a webhook's URL.

import { randomUUID } from "node:crypto";
import * as sdk from "a2a-js-sdk-0.3/client";
import { clientOf, tried } from "./shared.mjs";

const [url, binding, receiver] = process.argv.slice(2);
const client = await clientOf(sdk, url, binding);

const words = (parts) => (parts ?? []).map((part) => part.text ?? "").join("");
const outcome = (state, texts) => `${state}: ${texts.join("")}`;

function told(task) {
  const texts = (task.artifacts ?? []).map((artifact) => words(artifact.parts));
  return outcome(task.status.state, texts.length ? texts : [words(task.status.message?.parts)]);
}

function message(text, fields = {}) {
  const parts = [{ kind: "text", text }];
  return { message: { kind: "message", messageId: randomUUID(), role: "user", parts, ...fields } };
}

let task, question, running;

await tried("card", async () => (await client.getAgentCard()).name);
await tried("send", async () => told((task = await client.sendMessage(message("go")))));
await tried("stream", async () => {
  const texts = [];
  let state;
  for await (const event of client.sendMessageStream(message("go"))) {
    state = event.status?.state ?? state;
    if (event.kind === "artifact-update") texts.push(words(event.artifact.parts));
  }
  return outcome(state, texts);
});
await tried("get", async () => told(await client.getTask({ id: task.id })));
await tried("question", async () => told((question = await client.sendMessage(message("ask")))));
await tried("answer", async () => {
  const names = { taskId: question.id, contextId: question.contextId };
  return told(await client.sendMessage(message("go", names)));
});
await tried("start", async () => {
  running = await client.sendMessage({ ...message("obey"), configuration: { blocking: false } });
  return ["submitted", "working"].includes(running.status.state);
});
await tried("set push", async () => {
  const config = { id: "mine", url: receiver, token: "secret" };
  const set = { taskId: running.id, pushNotificationConfig: config };
  return (await client.setTaskPushNotificationConfig(set)).pushNotificationConfig.url === receiver;
});
const named = () => ({ id: running.id, pushNotificationConfigId: "mine" });
const listed = async () => (await client.listTaskPushNotificationConfig({ id: running.id })).length;
await tried(
  "get push",
  async () => (await client.getTaskPushNotificationConfig(named())).pushNotificationConfig.url === receiver,
);
await tried("list push", listed);
await tried("delete push", async () => {
  await client.deleteTaskPushNotificationConfig(named());
  return listed();
});
await tried("subscribe", async () => {
  const states = [];
  for await (const event of client.resubscribeTask({ id: running.id })) {
    if (event.kind === "task") {
      await tried("cancel", async () => told(await client.cancelTask({ id: running.id })));
    }
    if (event.status) states.push(event.status.state);
  }
  return states.at(-1);
});
await tried("unknown task", async () => client.getTask({ id: "unknown" }));
