// The official JavaScript client does every operation that it has: node operations.mjs URL BINDING RECEIVER
// Prints one JSON line for each: what came of it in words, or the error. RECEIVER is a webhook's URL.

import { randomUUID } from "node:crypto";
import * as sdk from "@a2a-js/sdk/client";
import { clientOf, tried } from "./shared.mjs";

const [url, binding, receiver] = process.argv.slice(2);
const STATES = ["unspecified", "submitted", "working", "completed", "failed", "canceled", "input-required"];
const client = await clientOf(sdk, url, binding);

const words = (parts) => (parts ?? []).map((part) => part.content?.value ?? "").join("");
const outcome = (state, texts) => `${STATES[state]}: ${texts.join("")}`;

function told(task) {
  const texts = task.artifacts.map((artifact) => words(artifact.parts));
  return outcome(task.status.state, texts.length ? texts : [words(task.status.message?.parts)]);
}

function message(text, fields = {}) {
  const content = { parts: [{ content: { $case: "text", value: text } }], extensions: [], referenceTaskIds: [] };
  return { tenant: "", message: { messageId: randomUUID(), role: 1, ...content, ...fields } };
}

let task, question, running, config;

await tried("card", async () => (await client.getAgentCard()).name);
await tried("send", async () => told((task = await client.sendMessage(message("go")))));
await tried("stream", async () => {
  const texts = [];
  let state;
  for await (const { payload } of client.sendMessageStream(message("go"))) {
    state = payload.value.status?.state ?? state;
    if (payload.$case === "artifactUpdate") texts.push(words(payload.value.artifact.parts));
  }
  return outcome(state, texts);
});
await tried("get", async () => told(await client.getTask({ tenant: "", id: task.id })));
await tried("list", async () => {
  const listed = await client.listTasks({ tenant: "", contextId: task.contextId, status: 0, pageToken: "" });
  return listed.tasks.map((one) => one.id === task.id);
});
await tried("question", async () => told((question = await client.sendMessage(message("ask")))));
await tried("answer", async () => {
  const names = { taskId: question.id, contextId: question.contextId };
  return told(await client.sendMessage(message("go", names)));
});
await tried("start", async () => {
  const configuration = { acceptedOutputModes: [], returnImmediately: true };
  running = await client.sendMessage({ ...message("obey"), configuration });
  return ["submitted", "working"].includes(STATES[running.status.state]);
});
await tried("set push", async () => {
  config = await client.createTaskPushNotificationConfig({
    tenant: "",
    id: "mine",
    taskId: running.id,
    url: receiver,
    token: "secret",
    authentication: undefined,
  });
  return config.url === receiver;
});
const named = () => ({ tenant: "", taskId: running.id, id: "mine" });
const listed = async () => {
  const page = { tenant: "", taskId: running.id, pageSize: 0, pageToken: "" };
  return (await client.listTaskPushNotificationConfig(page)).configs.length;
};
await tried("get push", async () => (await client.getTaskPushNotificationConfig(named())).url === receiver);
await tried("list push", listed);
await tried("delete push", async () => {
  await client.deleteTaskPushNotificationConfig(named());
  return listed();
});
await tried("subscribe", async () => {
  const states = [];
  for await (const { payload } of client.resubscribeTask({ tenant: "", id: running.id })) {
    if (payload.$case === "task") {
      await tried("cancel", async () => told(await client.cancelTask({ tenant: "", id: running.id })));
    }
    if (payload.value.status) states.push(STATES[payload.value.status.state]);
  }
  return states.at(-1);
});
await tried("unknown task", async () => client.getTask({ tenant: "", id: "unknown" }));
