// Reads a stream with fetch: node stream.mjs < {"url": …, "headers": …, "body": …}
// Prints one JSON line for each data: line, with the seconds since the request.

let request = "";
for await (const piece of process.stdin) request += piece;
const { url, headers, body } = JSON.parse(request);

const began = performance.now();
const response = await fetch(url, { method: "POST", headers, body });
const kind = response.headers.get("content-type") ?? "";
if (!response.ok || !kind.startsWith("text/event-stream")) {
  console.error(`${response.status} ${kind} ${(await response.text()).slice(0, 200)}`);
  process.exit(1);
}

let rest = "";
const decoder = new TextDecoder();
for await (const piece of response.body) {
  const at_s = (performance.now() - began) / 1000;
  const lines = (rest + decoder.decode(piece, { stream: true })).split(/\r?\n/);
  rest = lines.pop();
  for (const line of lines) {
    if (line.startsWith("data:")) console.log(JSON.stringify({ at_s, data: line.slice(5) }));
  }
}
