// An agent of the draft of version 2 of the Agent Client Protocol, made with the official TypeScript SDK.
//
// The words of a message say what it does, one after the other, as in `agent.py`. AGENT_LOG is a file for each line
// that it is told.
import { execSync } from "node:child_process";
import { appendFileSync } from "node:fs";
import { createRequire } from "node:module";
import { Readable, Writable } from "node:stream";
import { pathToFileURL } from "node:url";

const sdk = createRequire(`${process.env.SDK}/x.js`).resolve("@agentclientprotocol/sdk/experimental/v2");
const acp = await import(pathToFileURL(sdk).href);

const session = "peer-2";
const heard = [];
let mode = "build";
let cancel = () => {};
let number = 0;
let client;
let elicits = false;

const options = () => [{
  configId: "agent-mode", name: "Mode", category: "mode", type: "select", currentValue: mode,
  options: [{ value: "build", name: "Build" }, { value: "plan", name: "Plan" }],
}];
const say = (update) => client.notify("session/update", { sessionId: session, update });
const text = (words) => [{ type: "text", text: words }];
const speak = (words) => say({ sessionUpdate: "agent_message", messageId: `m${++number}`, content: text(words) });

async function shell(command) {
  const toolCallId = `call-${heard.length}`;
  await say({ sessionUpdate: "tool_call_update", toolCallId, title: "bash", kind: "execute", status: "pending", rawInput: { command } });
  const answer = await client.request("session/request_permission", {
    sessionId: session, title: `Run ${command}?`,
    subject: { type: "command", command, cwd: process.cwd(), toolCallId },
    options: [
      { optionId: "ever", name: "Always", kind: "allow_always" },
      { optionId: "yes", name: "Yes", kind: "allow_once" },
      { optionId: "no", name: "No", kind: "reject_once" },
    ],
  });
  if (answer.outcome.outcome !== "selected" || answer.outcome.optionId !== "yes") {
    await say({ sessionUpdate: "tool_call_update", toolCallId, status: "failed" });
    return speak("Then not.");
  }
  const data = Buffer.from(execSync(command)).toString("base64");
  await say({ sessionUpdate: "terminal_update", terminalId: "t1", command, cwd: process.cwd(), output: { data }, exitStatus: { exitCode: 0 } });
  await say({ sessionUpdate: "tool_call_update", toolCallId, status: "completed", content: [{ type: "terminal", terminalId: "t1" }] });
  return speak("It ran.");
}

async function ask() {
  if (!elicits) return speak("nobody to ask");
  const answer = await client.request("elicitation/create", {
    sessionId: session, mode: "form", message: "How shall it be?",
    requestedSchema: { type: "object", properties: { colour: { type: "string", title: "Which colour?", enum: ["red", "blue"] } } },
  });
  return speak(`${answer.action}: ${JSON.stringify(answer.content)}`);
}

async function work(words) {
  await say({ sessionUpdate: "state_update", state: "running" });
  let stopReason = "end_turn";
  for (const line of words.split("\n")) {
    const [act, ...rest] = line.split(" ");
    if (act === "[[think]]") await say({ sessionUpdate: "agent_thought_chunk", messageId: `m${++number}`, content: text("Let me think")[0] });
    else if (act === "[[shell]]") await shell(rest.join(" "));
    else if (act === "[[mode]]") await speak(`I ${mode}.`);
    else if (act === "[[memory]]") await speak(heard.join(" / "));
    else if (act === "[[ask]]") await ask();
    else if (act === "[[slow]]") {
      const cancelled = new Promise((resolve) => { cancel = resolve; });
      await say({ sessionUpdate: "agent_message_chunk", messageId: `m${++number}`, content: text("Hold on")[0] });
      await cancelled;
      stopReason = "cancelled";
    } else if (act === "[[twice]]") {
      const messageId = `m${++number}`;
      await say({ sessionUpdate: "agent_message_chunk", messageId, content: text("Hel")[0] });
      await say({ sessionUpdate: "agent_message", messageId, content: text("Hello.") });
    } else await speak("Hello.");
  }
  await say({ sessionUpdate: "state_update", state: "idle", stopReason });
  await say({ sessionUpdate: "state_update", state: "idle", stopReason });  // a snapshot once more, which ends nothing
}

const app = acp.agent()
  .onRequest("initialize", ({ params }) => {
    elicits = params.capabilities?.elicitation?.form != null;
    return { protocolVersion: 2, info: { name: "peer", version: "2" }, capabilities: { session: { prompt: { image: {} }, mcp: { stdio: {} } } } };
  })
  .onRequest("session/new", () => ({ sessionId: session, configOptions: options() }))
  .onRequest("session/resume", () => ({ configOptions: options() }))
  .onRequest("session/list", () => ({ sessions: [] }))
  .onRequest("session/close", () => ({}))
  .onRequest("session/set_config_option", ({ params }) => { mode = params.value; return { configOptions: options() }; })
  .onRequest("session/prompt", ({ params, client: context }) => {
    client = context;
    const words = params.prompt.filter((block) => block.type === "text").map((block) => block.text).join(" ");
    heard.push(words);
    const messageId = `u${heard.length}`;
    setImmediate(async () => {
      await say({ sessionUpdate: "user_message", messageId, content: params.prompt });
      await work(words);
    });
    return { messageId };
  })
  .onNotification("session/cancel", () => cancel());

const input = Readable.toWeb(process.stdin).pipeThrough(new TransformStream({
  transform(chunk, controller) { appendFileSync(process.env.AGENT_LOG, chunk); controller.enqueue(chunk); },
}));
if (process.argv[2] === "--version") process.stdout.write("peer 2.0\n");
else app.connect(acp.ndJsonStream(Writable.toWeb(process.stdout), input));
