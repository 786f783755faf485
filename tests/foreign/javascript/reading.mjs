// What a framework of JavaScript reads of each form of answer: node reading.mjs CLIENT URL FORM...
// Prints one JSON line with its version, and one for each form and way of calling.

import { readFileSync } from "node:fs";

const [client, url, ...forms] = process.argv.slice(2);

async function strands() {
  const { A2AAgent } = await import("@strands-agents/sdk/a2a");
  return { invoke: async (text) => String(await new A2AAgent({ url }).invoke(text)) };
}

async function vercel() {
  const [{ a2a }, { generateText, streamText }] = [await import("a2a-ai-provider"), await import("ai")];
  const asked = (prompt) => ({ model: a2a(`${url}.well-known/agent-card.json`), prompt, onError() {} });
  return {
    generateText: async (text) => (await generateText(asked(text))).text,
    streamText: async (text) => await streamText(asked(text)).text,
  };
}

const CLIENTS = {
  strands_ts: ["@strands-agents/sdk", strands],
  ai_sdk: ["a2a-ai-provider", vercel],
};

const say = (operation, told) => process.stdout.write(`${JSON.stringify({ operation, ...told })}\n`);

const [name, ways] = CLIENTS[client];
const own = new URL(`node_modules/${name}/package.json`, import.meta.url);
say("version", { says: JSON.parse(readFileSync(own, "utf8")).version });
for (const [way, read] of Object.entries(await ways())) {
  for (const form of forms) {
    try {
      say(`${way}|${form}`, { says: await read(form) });
    } catch (error) {
      say(`${way}|${form}`, { error: `${error.name}: ${error.message}` });
    }
  }
}
