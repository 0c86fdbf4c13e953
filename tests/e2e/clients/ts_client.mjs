// The Claude Agent SDK for TypeScript under remote control: the same words as py_client.py, which explains them.
// The first argument is the SDK's module, the second says how to start.

import readline from "node:readline";
import { pathToFileURL } from "node:url";

const { query } = await import(pathToFileURL(process.argv[2]));
const start = JSON.parse(process.argv[3]);
const saw = (what, fields = {}) => process.stdout.write(JSON.stringify({ saw: what, ...fields }) + "\n");
const sawException = (error, fields = {}) =>
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
const answers = new Queue();
const prompts = new Queue();
readline
  .createInterface({ input: process.stdin })
  .on("line", (line) => {
    const order = JSON.parse(line);
    (order.do === "answer" ? answers : orders).put(order);
  })
  .on("close", () => orders.put({ do: "close" }));

function sawBlock(block, text) {
  if (block.type === "text") saw(text, { text: block.text });
  else if (block.type === "thinking") saw("thinking", { text: block.thinking });
  else if (block.type === "tool_use") saw("tool_use", { id: block.id, name: block.name, input: block.input });
  else if (block.type === "tool_result") {
    const content = Array.isArray(block.content)
      ? block.content.map((part) => part.text ?? "").join("\n")
      : (block.content ?? "");
    saw("tool_result", { id: block.tool_use_id, text: content, is_error: Boolean(block.is_error) });
  }
}

function sawMessage(message) {
  if (message.type === "system" && message.subtype === "init")
    saw("init", {
      model: message.model,
      mode: message.permissionMode,
      session: message.session_id,
      tools: message.tools,
    });
  else if (message.type === "stream_event") {
    if (message.event.delta?.type === "text_delta") saw("delta", { text: message.event.delta.text });
  } else if (message.type === "assistant") message.message.content.forEach((block) => sawBlock(block, "text"));
  else if (message.type === "user" && Array.isArray(message.message.content))
    message.message.content.forEach((block) => sawBlock(block, "user_text"));
  else if (message.type === "result")
    saw("result", {
      subtype: message.subtype,
      is_error: message.is_error,
      text: message.result ?? null,
      turns: message.num_turns,
      session: message.session_id,
      usage: message.usage,
      denied: message.permission_denials.map((denial) => denial.tool_name),
    });
}

async function* userMessages() {
  for (let text; (text = await prompts.take()) !== null; )
    yield { type: "user", message: { role: "user", content: text }, parent_tool_use_id: null, session_id: "" };
}

const options = {
  pathToClaudeCodeExecutable: start.claude,
  cwd: start.cwd,
  includePartialMessages: start.partial,
  ...(start.asks
    ? {
        canUseTool: async (name, input) => {
          saw("asked", { name, input });
          const { answer } = await answers.take();
          return answer.behavior === "deny"
            ? { behavior: "deny", message: answer.message }
            : { behavior: "allow", updatedInput: answer.input ?? input };
        },
      }
    : {}),
};

const run = query({ prompt: start.once ?? userMessages(), options });
const reading = (async () => {
  try {
    for await (const message of run) sawMessage(message);
  } catch (error) {
    sawException(error);
  }
})();

if (start.once === null) {
  saw("done", { did: "connect" });
  for (let order; (order = await orders.take()).do !== "close"; ) {
    try {
      if (order.do === "say") prompts.put(order.text);
      else if (order.do === "interrupt") await run.interrupt();
      else if (order.do === "set_model") await run.setModel(order.model);
      else if (order.do === "set_permission_mode") await run.setPermissionMode(order.mode);
      saw("done", { did: order.do });
    } catch (error) {
      sawException(error, { did: order.do });
    }
  }
  const began = performance.now();
  prompts.put(null);
  await reading;
  saw("done", { did: "close", seconds: (performance.now() - began) / 1000 });
}
await reading;
saw("end");
process.stdin.destroy();
