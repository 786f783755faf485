// What a framework of JavaScript reads of each form of answer: node reading.mjs CLIENT URL FORM...
// Prints one JSON line with its version, and one for each form and way of calling.

import { spawn } from "node:child_process";
import { once } from "node:events";
import { mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createServer } from "node:http";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { json, text as all } from "node:stream/consumers";
import { fileURLToPath } from "node:url";

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

// A model of Gemini's interface that hands its message to the remote agent, and says what that has answered.
async function calling(request, response) {
  const { contents } = await json(request);
  const last = contents.at(-1).parts.at(-1);
  const part = last.functionResponse
    ? { text: last.functionResponse.response.output }
    : { functionCall: { name: "invoke_agent", args: { agent_name: "remote", prompt: last.text } } };
  const candidates = [{ content: { role: "model", parts: [part] }, finishReason: "STOP", index: 0 }];
  response.writeHead(200, { "Content-Type": "text/event-stream" });
  response.end(`data: ${JSON.stringify({ candidates })}\n\n`);
}

async function gemini() {
  const model = createServer(calling).listen(0, "127.0.0.1");
  model.unref();
  await once(model, "listening");
  const home = mkdtempSync(join(tmpdir(), "gemini-"));
  process.on("exit", () => rmSync(home, { recursive: true, force: true }));
  mkdirSync(join(home, ".gemini", "agents"), { recursive: true });
  const agent = `---\nkind: remote\nname: remote\nagent_card_url: ${url}.well-known/agent-card.json\n---\n`;
  writeFileSync(join(home, ".gemini", "agents", "remote.md"), agent);
  const settings = {
    security: { auth: { selectedType: "gemini-api-key" }, folderTrust: { enabled: false } },
    privacy: { usageStatisticsEnabled: false },
  };
  writeFileSync(join(home, ".gemini", "settings.json"), JSON.stringify(settings));
  const command = fileURLToPath(new URL("node_modules/@google/gemini-cli/bundle/gemini.js", import.meta.url));
  const env = {
    PATH: process.env.PATH,
    HOME: home,
    GEMINI_API_KEY: "none",
    GOOGLE_GEMINI_BASE_URL: `http://127.0.0.1:${model.address().port}`,
  };
  const invoke_agent = async (text) => {
    const asked = [command, "--prompt", text, "--approval-mode", "yolo", "--model", "gemini-2.5-pro"];
    const child = spawn(process.execPath, asked, { cwd: home, env, stdio: ["ignore", "pipe", "ignore"] });
    return (await all(child.stdout)).trim();
  };
  return { invoke_agent };
}

const CLIENTS = {
  strands_ts: ["@strands-agents/sdk", strands],
  ai_sdk: ["a2a-ai-provider", vercel],
  gemini_cli: ["@google/gemini-cli", gemini],
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
