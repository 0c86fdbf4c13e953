// The Claude Agent SDK for TypeScript under remote control: the same words as py_client.py, which explains them.
// The first argument is the SDK's module, the second says how to start.

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import readline from "node:readline";
import { pathToFileURL } from "node:url";

const { query, createSdkMcpServer, tool } = await import(pathToFileURL(process.argv[2]));
const given = process.argv[3];
const start = JSON.parse(given.startsWith("@") ? readFileSync(given.slice(1), "utf8") : given);
const print = (what, fields = {}) => process.stdout.write(JSON.stringify({ saw: what, ...fields }) + "\n");
const sawException = (error, fields = {}, saw = print) =>
  saw("exception", { kind: error?.constructor?.name, text: String(error?.message ?? error), ...fields });

/** A queue that is read with `for await`. */
class Queue {
  #waiting = [];
  #ready = [];
  put(value) {
    const waiting = this.#waiting.shift();
    if (waiting) waiting(value);
    else this.#ready.push(value);
  }
  take() {
    return this.#ready.length
      ? Promise.resolve(this.#ready.shift())
      : new Promise((resolve) => this.#waiting.push(resolve));
  }
}

const orders = new Queue();
const questions = new Map(); // number → what takes its answer
let asked = 0;
function answer({ number, answer }) {
  const key = number ?? Math.min(...questions.keys());
  const take = questions.get(key);
  questions.delete(key);
  take(answer);
}
const prompts = new Queue();
readline
  .createInterface({ input: process.stdin })
  .on("line", (line) => {
    const order = JSON.parse(line);
    order.do === "answer" ? answer(order) : orders.put(order);
  })
  .on("close", () => orders.put({ do: "close" }));

function sawBlock(block, text, saw) {
  if (block.type === "text") saw(text, { text: block.text });
  else if (block.type === "thinking") saw("thinking", { text: block.thinking });
  else if (block.type === "tool_use") saw("tool_use", { id: block.id, name: block.name, input: block.input });
  else if (block.type === "tool_result") {
    const parts = Array.isArray(block.content) ? block.content : [{ text: block.content ?? "" }];
    saw("tool_result", {
      id: block.tool_use_id,
      text: parts.map((part) => part.text ?? "").join("\n"),
      has_blocks: Array.isArray(block.content),
      images: parts.filter((part) => part.type === "image").map((part) => part.source),
      is_error: Boolean(block.is_error),
    });
  }
}

function sawMessage(message, saw = print) {
  if (message.type === "system" && message.subtype === "init")
    saw("init", {
      model: message.model,
      mode: message.permissionMode,
      session: message.session_id,
      tools: message.tools,
      servers: message.mcp_servers,
    });
  else if (message.type === "stream_event") {
    if (message.event.delta?.type === "text_delta") saw("delta", { text: message.event.delta.text });
  } else if (message.type === "assistant") message.message.content.forEach((block) => sawBlock(block, "text", saw));
  else if (message.type === "user" && Array.isArray(message.message.content))
    message.message.content.forEach((block) => sawBlock(block, "user_text", saw));
  else if (message.type === "result")
    saw("result", {
      subtype: message.subtype,
      is_error: message.is_error,
      text: message.result ?? null,
      turns: message.num_turns,
      session: message.session_id,
      usage: message.usage,
      errors: message.errors ?? [],
      denied: (message.permission_denials ?? []).map((denial) => denial.tool_name),
    });
}

async function* userMessages() {
  for (let said; (said = await prompts.take()) !== null; ) {
    const source = { type: "base64", media_type: "image/png", data: said.image };
    const content = said.image ? [{ type: "text", text: said.text }, { type: "image", source }] : said.text;
    yield { type: "user", message: { role: "user", content }, parent_tool_use_id: null, session_id: "" };
  }
}

/** An MCP server in this process, as that of py_client.py. */
async function served(name) {
  const { z } = createRequire(process.argv[2])("zod");
  const add = tool("add", "Adds two numbers.", { a: z.number(), b: z.number() }, async (given) => {
    print("ran", { input: given });
    if (given.a === given.b) throw new Error("they are the same");
    if (given.a < 0) await new Promise(() => {});
    return { content: [{ type: "text", text: `the sum is ${given.a + given.b}` }] };
  });
  const look = tool("look", "Shows a picture.", { path: z.string() }, async ({ path }) => {
    const data = readFileSync(path).toString("base64");
    return { content: [{ type: "text", text: "here" }, { type: "image", data, mimeType: "image/png" }] };
  });
  return {
    mcpServers: { [name]: createSdkMcpServer({ name, version: "1.0.0", tools: [add, look] }) },
  };
}

/** A hook that denies each call it is asked about. */
async function deny(given) {
  print("judged", { name: given.tool_name, input: given.tool_input });
  const said = { permissionDecision: "deny", permissionDecisionReason: "judged so" };
  return { hookSpecificOutput: { hookEventName: "PreToolUse", ...said } };
}

const options = {
  ...(start.judges ? { hooks: { PreToolUse: [{ matcher: start.judges, hooks: [deny] }] } } : {}),
  ...(start.serves ? await served(start.serves) : {}),
  allowedTools: start.allowed ?? [],
  disallowedTools: start.denied ?? [],
  ...(start.claude ? { pathToClaudeCodeExecutable: start.claude } : {}),
  cwd: start.cwd,
  includePartialMessages: start.partial,
  ...(start.resume ? { resume: start.resume } : {}),
  ...(start.asks
    ? {
        canUseTool: async (name, input, { suggestions }) => {
          const number = ++asked;
          const answered = new Promise((resolve) => questions.set(number, resolve));
          print("asked", { name, input, number });
          const answer = await answered;
          return answer.behavior === "deny"
            ? { behavior: "deny", message: answer.message, ...(answer.interrupt ? { interrupt: true } : {}) }
            : {
                behavior: "allow",
                updatedInput: answer.input ?? input,
                ...(answer.always ? { updatedPermissions: suggestions } : {}),
              };
        },
      }
    : {}),
};

const LONG = 100_000; // bytes; a longer text is said by its digest
const short = (text) => {
  const size = Buffer.byteLength(text);
  return size <= LONG ? text : `sha256 ${createHash("sha256").update(text).digest("hex")} of ${size} bytes`;
};
const shortened = (value) =>
  Object.fromEntries(Object.entries(value).map(([key, item]) => [key, typeof item === "string" ? short(item) : item]));

/** What was seen in one run of many. */
function addedUp(lines) {
  const of = (what) => lines.filter((line) => line.saw === what);
  const joined = (what) => short(of(what).map((line) => line.text).join(""));
  return {
    text: joined("text"),
    streamed: joined("delta"),
    calls: of("tool_use").map((line) => [line.id, line.name, shortened(line.input)]),
    results: of("tool_result").map((line) => [line.id, short(line.text)]),
    ends: of("result").map((line) => ({ ...line, text: short(line.text ?? "") })),
    inits: of("init").length,
    exceptions: of("exception"),
  };
}

/** `query()` for each of many prompts, each with an environment of its own. */
async function many() {
  const waiting = [...start.runs];
  const worker = async () => {
    for (let one; (one = waiting.shift()); ) {
      const began = performance.now();
      const lines = [];
      const saw = (what, fields = {}) => lines.push({ saw: what, ...fields });
      const abortController = new AbortController();
      const timer = setTimeout(() => abortController.abort(), start.seconds * 1000);
      try {
        const env = { ...process.env, ...one.environment };
        const run = query({ prompt: one.prompt, options: { ...options, env, abortController } });
        for await (const message of run) sawMessage(message, saw);
      } catch (error) {
        sawException(error, {}, saw);
      }
      clearTimeout(timer);
      print("run", { name: one.name, seconds: (performance.now() - began) / 1000, ...addedUp(lines) });
    }
  };
  await Promise.all(Array.from({ length: start.at_once }, worker));
}

if (start.runs) {
  await many();
} else {
  await one();
}
print("end");
process.stdin.destroy();

async function one() {
  const run = query({ prompt: start.once ?? userMessages(), options });
  const reading = (async () => {
    try {
      for await (const message of run) sawMessage(message);
    } catch (error) {
      sawException(error);
    }
  })();

  if (start.once === null) {
    print("done", { did: "connect" });
    for (let order; (order = await orders.take()).do !== "close"; ) {
      try {
        if (order.do === "say") prompts.put(order);
        else if (order.do === "interrupt") await run.interrupt();
        else if (order.do === "set_model") await run.setModel(order.model);
        else if (order.do === "set_permission_mode") await run.setPermissionMode(order.mode);
        else if (order.do === "servers") print("servers", { servers: await run.mcpServerStatus() });
        print("done", { did: order.do });
      } catch (error) {
        sawException(error, { did: order.do });
      }
    }
    const began = performance.now();
    prompts.put(null);
    await reading;
    print("done", { did: "close", seconds: (performance.now() - began) / 1000 });
  }
  await reading;
}
