// Runs cases of options and methods of the Claude Agent SDK for TypeScript, and reports what a user of the SDK sees.
// The first argument is the SDK's module. The second is JSON: the claude, a folder for the cases, and their names (or null).
// A case belongs to an option or a method: the part of its name before the first space. One line of JSON is written per case.

import { execFileSync, spawn } from "node:child_process";
import { existsSync, mkdirSync, readdirSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import path from "node:path";
import { pathToFileURL } from "node:url";

const { query, tool, createSdkMcpServer } = await import(pathToFileURL(process.argv[2]));
const { z } = createRequire(process.argv[2])("zod");
const start = JSON.parse(process.argv[3] ?? "{}");
const CASE_MILLISECONDS = 90_000;
const METHOD_MILLISECONDS = 30_000;
const SESSION = "11111111-2222-4333-8444-555555555555";
const UNKNOWN_SESSION = "11111111-2222-4333-8444-666666666666";

const text = (content) => ({ content: [{ type: "text", text: content }] });
const sdkServer = (more = []) =>
  createSdkMcpServer({ name: "s", version: "1", tools: [tool("greet", "Greets.", {}, async () => text("greeted")), ...more] });
const stdioServer = () => ({ type: "stdio", command: start.python, args: [start.server] });
const hook = (event, output, matcher) => ({ [event]: [{ matcher, hooks: [async () => output] }] });
const allowEverything = async (name, input) => ({ behavior: "allow", updatedInput: input });

// `prompt` and `options` describe a run, `files` are written before it, and `sees` are texts that a request to the
// model must contain. `of` are facts about the run beyond its kinds of messages and its end. `before` is an earlier run.
// `only` are the facts that the option is about, if vendors differ in others. `aliases` are other names by which a session may say that an option has no effect.
const touch = (name) => `[[shell]] touch ${name}`;
const allowed = { allowedTools: ["Bash"] };
const earlier = { prompt: "[[text]] the word is apricot" };
const twoEarlier = [earlier, { prompt: "[[text]] the word is blackberry" }];
const DENIED_BASH = { permissions: { deny: ["Bash"] } };
const hasBash = (run) => ({ bash: run.init?.tools?.includes("Bash") });
const skill = { ".claude/skills/sk/SKILL.md": "---\nname: sk\ndescription: A skill about plums\n---\nskill text\n" };
const project = { ".claude/settings.json": JSON.stringify(DENIED_BASH) };
const plugin = {
  "plugin/.claude-plugin/plugin.json": '{"name": "plug", "version": "1.0.0", "description": "d"}',
  "plugin/commands/hey.md": "[[text]] hey of a plugin\n",
};
const hookEvents = ["PreToolUse", "PostToolUse", "UserPromptSubmit", "Stop"];

const cases = {
  abortController: { prompt: "[[slow]]", abort: true },
  additionalDirectories: ({ folder }) => ({
    prompt: `[[write]] ${folder}-added/made.txt`,
    options: { additionalDirectories: [`${folder}-added`], permissionMode: "acceptEdits" },
    of: () => ({ made: existsSync(`${folder}-added/made.txt`) }),
  }),
  projectConfigRoot: ({ folder }) => ({
    options: { projectConfigRoot: `${folder}/trusted` },
    files: { "trusted/.claude/commands/kept.md": "kept\n", ".claude/commands/dropped.md": "dropped\n" },
    of: (run) => ({ commands: ["kept", "dropped"].filter((name) => run.init?.slash_commands?.includes(name)) }),
    aliases: ["--project-config-root"],
  }),
  agent: { options: { agent: "reviewer", agents: { reviewer: { description: "d", prompt: "You review plums." } } }, sees: ["You review plums."] },
  agents: {
    options: { agents: { reviewer: { description: "Reviews plums", prompt: "p" } } },
    of: (run) => ({ listed: run.init?.agents?.includes("reviewer") }),
  },
  allowedTools: { prompt: touch("made"), options: allowed },
  canUseTool: { prompt: touch("made"), options: { canUseTool: allowEverything } },
  "canUseTool deny": { prompt: touch("made"), options: { canUseTool: async () => ({ behavior: "deny", message: "not today" }) }, sees: ["not today"] },
  continue: { before: [earlier], options: { continue: true }, sees: ["apricot"], same: true },
  cwd: ({ folder }) => ({ of: (run) => ({ cwd: run.init?.cwd === folder }) }),
  disallowedTools: { options: { disallowedTools: ["Bash"] }, of: hasBash },
  toolAliases: { options: { toolAliases: { Bash: "mcp__x__bash" } } },
  tools: { options: { tools: ["Bash", "Read"] }, of: (run) => ({ bash: run.init?.tools?.includes("Bash"), others: run.init?.tools?.filter((name) => !["Bash", "Read"].includes(name)) }) },
  "tools preset": { options: { tools: { type: "preset", preset: "claude_code" } }, of: hasBash },
  "tools empty": { options: { tools: [] }, of: (run) => ({ tools: run.init?.tools }) },
  env: { prompt: touch("$PROBE"), options: { env: { ...process.env, PROBE: "made" }, ...allowed } },
  executable: { options: { executable: "node" } },
  executableArgs: { options: { executableArgs: ["--no-warnings"] }, aliases: ["--no-warnings"] },
  extraArgs: { options: { extraArgs: { "no-such-flag": null } }, aliases: ["--no-such-flag"] },
  "extraArgs known": { options: { extraArgs: { "append-system-prompt": "likes plums" } }, sees: ["likes plums"] },
  fallbackModel: { options: { fallbackModel: "haiku" }, prompt: "[[unavailable]] haiku" },
  enableFileCheckpointing: { options: { enableFileCheckpointing: true }, aliases: ["CLAUDE_CODE_ENABLE_SDK_FILE_CHECKPOINTING"] },
  toolConfig: { options: { toolConfig: { askUserQuestion: { previewFormat: "html" } }, canUseTool: allowEverything }, sees: ["HTML"], aliases: ["CLAUDE_CODE_QUESTION_PREVIEW_FORMAT"] },
  forkSession: ({ first }) => ({ before: [earlier], options: { resume: first, forkSession: true }, sees: ["apricot"], same: true }),
  betas: { options: { betas: ["context-1m-2025-08-07"] } },
  hooks: {
    prompt: touch("made"),
    options: { ...allowed, hooks: Object.assign({}, ...hookEvents.map((event) => hook(event, {}))) },
   
  },
  "hooks deny": {
    prompt: touch("made"),
    options: {
      ...allowed,
      hooks: hook("PreToolUse", { hookSpecificOutput: { hookEventName: "PreToolUse", permissionDecision: "deny", permissionDecisionReason: "too sour" } }, "Bash"),
    },
    sees: ["too sour"],
  },
  "hooks context": { options: { hooks: hook("UserPromptSubmit", { hookSpecificOutput: { hookEventName: "UserPromptSubmit", additionalContext: "plums are ripe" } }) }, sees: ["plums are ripe"] },
  "hooks block": { options: { hooks: hook("UserPromptSubmit", { decision: "block", reason: "too sour" }) } },
  onElicitation: { options: { onElicitation: async () => ({ action: "decline" }) } },
  onUserDialog: { options: { onUserDialog: async () => ({}), supportedDialogKinds: ["x"] } },
  supportedDialogKinds: { options: { onUserDialog: async () => ({}), supportedDialogKinds: ["refusal_fallback_prompt"] } },
  perTaskStopAffordance: { options: { perTaskStopAffordance: true } },
  persistSession: { options: { persistSession: false }, of: (run) => ({ stored: isStored(run) }) },
  "persistSession true": { of: (run) => ({ stored: isStored(run) }) },
  sessionStore: ({ store }) => ({ options: { sessionStore: store }, of: () => ({ types: store.list() }) }),
  sessionStoreFlush: ({ store }) => ({ options: { sessionStore: store, sessionStoreFlush: "eager" }, of: () => ({ types: store.list() }) }),
  loadTimeoutMs: { options: { resume: SESSION, loadTimeoutMs: 50, sessionStore: { append: async () => {}, load: () => new Promise(() => {}) } } },
  includeHookEvents: { options: { includeHookEvents: true, hooks: hook("UserPromptSubmit", {}) } },
  "includeHookEvents settings": {
    prompt: touch("made"),
    options: { includeHookEvents: true, ...allowed, settings: { hooks: { PreToolUse: [{ matcher: "Bash", hooks: [{ type: "command", command: "true" }] }] } } },
  },
  includePartialMessages: { options: { includePartialMessages: true } },
  forwardSubagentText: {
    prompt: "[[agent]] reviewer",
    options: { forwardSubagentText: true, agents: { reviewer: { description: "d", prompt: "p" } }, canUseTool: allowEverything },
    of: (run) => ({ forwarded: run.subagentText }),
    only: ["end", "forwarded"],
    aliases: ["agents"],
  },
  "forwardSubagentText false": {
    prompt: "[[agent]] reviewer",
    options: { agents: { reviewer: { description: "d", prompt: "p" } }, canUseTool: allowEverything },
    of: (run) => ({ forwarded: run.subagentText }),
    only: ["end", "forwarded"],
    aliases: ["agents"],
  },
  verbatimPrompts: { prompt: "/cost", options: { verbatimPrompts: true }, of: (run) => ({ command: run.local }) },
  "verbatimPrompts false": { prompt: "/cost", of: (run) => ({ command: run.local }) },
  thinking: { options: { thinking: { type: "enabled", budgetTokens: 2000 } }, aliases: ["--max-thinking-tokens"] },
  "thinking adaptive": { options: { thinking: { type: "adaptive" } } },
  "thinking disabled": { options: { thinking: { type: "disabled" } } },
  effort: { options: { effort: "low" }, sees: ['effort": "low'] },
  maxThinkingTokens: { options: { maxThinkingTokens: 1500 } , aliases: ["--thinking"] },
  maxTurns: { prompt: touch("made"), options: { maxTurns: 1, ...allowed } },
  maxBudgetUsd: { options: { maxBudgetUsd: 0.00001 } },
  taskBudget: { options: { taskBudget: { total: 50_000 } } },
  mcpServers: {
    aliases: ["--mcp-config"],
    prompt: "[[mcp]] srv__get_it {\"path\": \"made\"}",
    options: { mcpServers: { srv: stdioServer() }, allowedTools: ["mcp__srv"] },
  },
  "mcpServers sdk": { prompt: "[[mcp]] s__greet {}", options: { mcpServers: { s: sdkServer() }, allowedTools: ["mcp__s"] }, sees: ["greeted"], aliases: ["MCP servers"] },
  mcpServersDelivery: {
    aliases: ["MCP servers"],
    prompt: "[[mcp]] srv__get_it {\"path\": \"made\"}",
    options: { mcpServersDelivery: "initialize", mcpServers: { srv: stdioServer() }, allowedTools: ["mcp__srv"] },
  },
  model: { options: { model: "haiku" }, sees: ["haiku"], aliases: ["model_asked"] },
  outputFormat: {
    prompt: '[[json]] {"n": 7}',
    options: { outputFormat: { type: "json_schema", schema: { type: "object", properties: { n: { type: "number" } }, required: ["n"] } } },
    of: (run) => ({ structured: run.result?.structured_output }),
  },
  pathToClaudeCodeExecutable: {},
  permissionMode: { prompt: touch("made"), options: { permissionMode: "default" }, of: readMode },
  "permissionMode acceptEdits": ({ folder }) => ({ prompt: `[[write]] ${folder}/made`, options: { permissionMode: "acceptEdits" }, of: readMode }),
  "permissionMode dontAsk": { prompt: touch("made"), options: { permissionMode: "dontAsk" }, of: readMode, only: ["mode", "made", "denied", "end"] },
  "permissionMode plan": { prompt: touch("made"), options: { permissionMode: "plan" }, of: readMode, only: ["mode", "made", "end"] },
  "permissionMode auto": { options: { permissionMode: "auto" }, of: readMode, aliases: ["permission mode auto"] },
  planModeInstructions: { options: { planModeInstructions: "plan with plums", permissionMode: "plan" } },
  allowDangerouslySkipPermissions: {
    prompt: touch("made"),
    options: { allowDangerouslySkipPermissions: true, permissionMode: "bypassPermissions", env: { ...process.env, IS_SANDBOX: "0" } },
    of: readMode,
    aliases: ["bypassPermissions"],
  },
  "allowDangerouslySkipPermissions sandbox": {
    prompt: touch("made"),
    options: { allowDangerouslySkipPermissions: true, permissionMode: "bypassPermissions", env: { ...process.env, IS_SANDBOX: "1" } },
    of: readMode,
  },
  permissionPromptToolName: {
    prompt: touch("made"),
    options: {
      permissionPromptToolName: "mcp__s__ask",
      mcpServers: {
        s: sdkServer([tool("ask", "Asks.", { tool_name: z.string(), input: z.any(), tool_use_id: z.string().optional() }, async ({ input }) => text(JSON.stringify({ behavior: "allow", updatedInput: input })))]),
      },
    },
    aliases: ["--permission-prompt-tool"],
  },
  permissionPrompts: { prompt: touch("made"), options: { permissionPrompts: "none" } },
  plugins: ({ folder }) => ({
    prompt: "/plug:hey",
    options: { plugins: [{ type: "local", path: `${folder}/plugin` }] },
    files: plugin,
    sees: ["hey of a plugin"],
    aliases: ["--plugin-dir"],
  }),
  pluginDelivery: ({ folder }) => ({
    options: { pluginDelivery: "initialize", plugins: [{ type: "local", path: `${folder}/plugin` }] },
    files: plugin,
    of: (run) => ({ listed: run.init?.slash_commands?.includes("plug:hey") }),
    aliases: ["plugins"],
  }),
  promptSuggestions: { options: { promptSuggestions: true } },
  agentProgressSummaries: { options: { agentProgressSummaries: true } },
  resume: ({ first }) => ({ before: [earlier], options: { resume: first }, sees: ["apricot"], same: true }),
  "resume unknown": { options: { resume: UNKNOWN_SESSION } },
  sessionId: { options: { sessionId: SESSION }, of: (run) => ({ id: run.init?.session_id }) },
  resumeSessionAt: ({ first, answers }) => ({
    before: twoEarlier,
    options: { resume: first, resumeSessionAt: answers?.[0] },
    sees: ["apricot", "blackberry"],
    same: true,
  }),
  resumeDropsTurn: ({ first, answers }) => ({
    before: twoEarlier,
    options: { resume: first, resumeSessionAt: answers?.[0], resumeDropsTurn: UNKNOWN_SESSION },
    only: ["rejected"],
    of: (run) => ({ rejected: /Resume rejected by --resume-drops-turn:/.test(JSON.stringify([run.end, run.stderr])) }),
  }),
  sandbox: { options: { sandbox: { enabled: true, failIfUnavailable: false } } },
  settings: { prompt: touch("made"), options: { settings: DENIED_BASH, ...allowed }, of: hasBash, only: ["bash", "made", "end"] },
  "settings outputStyle": { options: { settings: { outputStyle: "Explanatory" } }, of: (run) => ({ style: run.init?.output_style }) },
  managedSettings: { prompt: touch("made"), options: { managedSettings: DENIED_BASH, ...allowed }, of: hasBash, only: ["bash", "made", "end"] },
  settingSources: { files: project, options: { settingSources: ["project"] }, of: hasBash },
  "settingSources none": { files: project, options: { settingSources: [] }, of: hasBash },
  skills: { files: skill, options: { skills: [] }, sees: ["A skill about plums"] },
  "skills all": { files: skill, options: { skills: "all" }, sees: ["A skill about plums"], of: (run) => ({ listed: run.init?.skills?.includes("sk") }) },
  debug: { options: { debug: true } },
  debugFile: ({ folder }) => ({ options: { debugFile: `${folder}-debug.log` }, of: () => ({ written: existsSync(`${folder}-debug.log`) }) }),
  stderr: {},
  strictMcpConfig: {
    files: { ".mcp.json": '{"mcpServers": {"p": {"command": "true"}}}' },
    options: { strictMcpConfig: true },
    of: (run) => ({ servers: run.init?.mcp_servers }),
  },
  systemPrompt: { options: { systemPrompt: "You sell plums." }, sees: ["You sell plums."] },
  "systemPrompt append": { options: { systemPrompt: { type: "preset", preset: "claude_code", append: "Sell plums too." } }, sees: ["Sell plums too."] },
  "systemPrompt list": { options: { systemPrompt: ["You sell plums.", "You buy pears."] }, sees: ["You sell plums.", "You buy pears."] },
  title: { options: { title: "My title" } },
  spawnClaudeCodeProcess: ({ spawned }) => ({
    options: {
      spawnClaudeCodeProcess: ({ command, args, cwd, env, signal }) => {
        spawned.push(command);
        return spawn(command, args, { cwd, env, signal, stdio: ["pipe", "pipe", "ignore"] });
      },
    },
    of: () => ({ spawned: spawned.length }),
  }),
};

function readMode(run) {
  return { mode: run.init?.permissionMode };
}

function isStored(run) {
  const folder = path.join(process.env.HOME, ".claude", "projects");
  const files = existsSync(folder) ? readdirSync(folder, { recursive: true }) : [];
  return files.some((file) => file.endsWith(`${run.init?.session_id}.jsonl`));
}

/** A session store in memory. `list` returns the types of the stored messages. */
function createStore() {
  const entries = [];
  return {
    append: async (key, added) => void entries.push(...added),
    load: async () => null,
    list: () => entries.map((entry) => entry.type).filter((type) => ["user", "assistant"].includes(type)),
  };
}

/** One query: what its user sees. */
async function runQuery(prompt, options, abort) {
  const run = { kinds: new Set(), stderr: "", answers: [], denied: [], calls: [], hooks: [], named: [], subagentText: false, local: false };
  const abortController = new AbortController();
  const timer = setTimeout(() => abortController.abort(), CASE_MILLISECONDS);
  const watched = watchCallbacks(options, run);
  try {
    const messages = query({ prompt, options: { abortController, pathToClaudeCodeExecutable: start.claude, stderr: (data) => (run.stderr += data), ...watched } });
    for await (const message of messages) {
      readMessage(message, run);
      if (abort && run.init) abortController.abort();
    }
  } catch (error) {
    run.end = { ...run.end, exception: clean(String(error.message)) };
  }
  clearTimeout(timer);
  return run;
}

/** The options with callbacks that record their calls. */
function watchCallbacks(options, run) {
  const watched = { ...options };
  if (options.canUseTool) {
    watched.canUseTool = (name, ...rest) => (run.calls.push(name), options.canUseTool(name, ...rest));
  }
  for (const [event, matchers] of Object.entries(options.hooks ?? {})) {
    const hooks = matchers.map((matcher) => ({ ...matcher, hooks: matcher.hooks.map((call) => (...rest) => (run.hooks.push(event), call(...rest))) }));
    watched.hooks = { ...watched.hooks, [event]: hooks };
  }
  return watched;
}

function readMessage(message, run) {
  run.kinds.add(message.type + (message.subtype && message.type !== "result" ? `/${message.subtype}` : ""));
  if (message.type === "system" && message.subtype === "init") {
    run.init = message;
    run.named.push(...(message.shim?.not_honoured ?? []).map((rule) => `${rule.what}: ${rule.reason}`));
    if (message.shim?.model_asked) run.named.push(`model_asked: ${message.shim.model_asked}`);
  } else if (message.type === "assistant") {
    run.answers.push(message.uuid);
    if (message.parent_tool_use_id && message.message.content.some((block) => block.type === "text")) run.subagentText = true;
  } else if (message.type === "result") {
    run.result = message;
    run.local = message.num_turns === 0;
    run.end = { subtype: message.subtype, is_error: message.is_error, errors: message.errors?.map(clean) };
    run.denied = (message.permission_denials ?? []).map((denial) => denial.tool_name);
  }
}

/** A text without what differs in every run. */
function clean(message) {
  return message.replaceAll(start.folder, "FOLDER").replace(/[0-9a-f]{8}-[0-9a-f-]{27}/g, "ID").slice(0, 300);
}

function writeFiles(folder, files = {}) {
  for (const [name, content] of Object.entries(files)) {
    mkdirSync(path.dirname(path.join(folder, name)), { recursive: true });
    writeFileSync(path.join(folder, name), content);
  }
}

/** Run one case. The text in its prompt identifies its requests to the model. */
async function runCase(name, number) {
  const folder = path.join(start.folder, `case${number}`);
  mkdirSync(folder);
  mkdirSync(`${folder}-added`);
  const found = { folder, store: createStore(), spawned: [] };
  const build = () => (typeof cases[name] === "function" ? cases[name](found) : cases[name]);
  const spec = build();
  if (spec.files && ".claude/settings.json" in spec.files) execFileSync("git", ["init", "-q", folder]);
  writeFiles(folder, spec.files);
  for (const before of spec.before ?? []) {
    const run = await runQuery(before.prompt, { cwd: folder, resume: found.first });
    found.first = run.init?.session_id;
    found.answers = [...(found.answers ?? []), ...run.answers];
  }
  const { options = {}, sees, of, same, aliases, only, prompt = "[[text]] hi", abort } = build();
  report({ begin: name });
  const run = await runQuery(prompt, { cwd: folder, ...options }, abort);
  const facts = { kinds: [...run.kinds].sort(), end: run.end ?? null, made: existsSync(path.join(folder, "made")), ...of?.(run) };
  for (const list of ["denied", "calls", "hooks"]) if (run[list].length) facts[list] = run[list];
  if (same) facts.sameSession = run.init?.session_id === found.first;
  const shown = only ? Object.fromEntries(only.map((fact) => [fact, facts[fact]])) : facts;
  report({ name, facts: shown, sees, aliases, named: run.named, stderr: run.stderr });
}

/** The shape of a value: its type, and the names of the members of an object or of the first item of a list. */
function describe(value) {
  if (Array.isArray(value)) return { list: typeof value[0] === "object" ? Object.keys(value[0]) : value.length ? typeof value[0] : "empty" };
  return value && typeof value === "object" ? { object: Object.keys(value) } : String(value);
}

// Calls of methods in one conversation, in this order. `say` sends a message and waits for its result.
const methods = {
  initializationResult: ({ run }) => run.initializationResult(),
  supportedCommands: ({ run }) => run.supportedCommands(),
  supportedModels: ({ run }) => run.supportedModels(),
  supportedAgents: ({ run }) => run.supportedAgents(),
  accountInfo: ({ run }) => run.accountInfo(),
  mcpServerStatus: ({ run }) => run.mcpServerStatus(),
  getContextUsage: ({ run }) => run.getContextUsage({ detail: "summary" }),
  usage_EXPERIMENTAL_MAY_CHANGE_DO_NOT_RELY_ON_THIS_API_YET: ({ run }) => run.usage_EXPERIMENTAL_MAY_CHANGE_DO_NOT_RELY_ON_THIS_API_YET({ skipBehaviors: true }),
  setPermissionMode: async ({ run, say, folder }) => {
    const answer = await run.setPermissionMode("acceptEdits");
    await say(`[[write]] ${folder}/made`);
    return `${answer?.mode}, made: ${existsSync(`${folder}/made`)}`;
  },
  "setPermissionMode default": ({ run }) => run.setPermissionMode("default"),
  setMcpPermissionModeOverride: ({ run }) => run.setMcpPermissionModeOverride("x", "default"),
  setModel: async ({ run, say }) => [await run.setModel("haiku"), (await say("[[text]] hi")).subtype].at(1),
  setMaxThinkingTokens: async ({ run, say }) => [await run.setMaxThinkingTokens(1500), (await say("[[text]] hi")).subtype].at(1),
  applyFlagSettings: async ({ run, say }) => [await run.applyFlagSettings({ effortLevel: "low" }), (await say("[[text]] hi")).subtype].at(1),
  updateSettings: ({ run }) => run.updateSettings("localSettings", { outputStyle: "Concise" }),
  reinitialize: ({ run }) => run.reinitialize(),
  readFile: ({ run, folder }) => (writeFileSync(`${folder}/a.txt`, "text"), run.readFile("a.txt")),
  reloadPlugins: ({ run }) => run.reloadPlugins(),
  reloadSkills: ({ run }) => run.reloadSkills(),
  reloadOutputStyles: ({ run }) => run.reloadOutputStyles(),
  rewindFiles: ({ run }) => run.rewindFiles(UNKNOWN_SESSION),
  seedReadState: ({ run }) => run.seedReadState("a.txt", 0),
  reconnectMcpServer: ({ run }) => run.reconnectMcpServer("x"),
  toggleMcpServer: ({ run }) => run.toggleMcpServer("x", false),
  readMcpResource: ({ run }) => run.readMcpResource("x", "ui://y"),
  setMcpServers: ({ run }) => run.setMcpServers({ srv: stdioServer() }),
  stopTask: ({ run }) => run.stopTask("x"),
  backgroundTasks: ({ run }) => run.backgroundTasks("x"),
  "backgroundTasks all": ({ run }) => run.backgroundTasks(),
  interrupt: async ({ run, say }) => {
    const result = say("[[slow]]");
    await new Promise((resolve) => setTimeout(resolve, 5_000));
    await run.interrupt();
    return (await result).subtype;
  },
  "interrupt idle": ({ run }) => run.interrupt(),
  // the end of its stream closes the conversation
  streamInput: async ({ run, say }) => {
    const result = say();
    await run.streamInput((async function* () { yield userMessage("[[text]] hi"); })());
    return (await result).subtype;
  },
  close: async ({ run }) => run.close(),
};
const METHOD_ALIASES = { setModel: ["model_asked"], applyFlagSettings: ["effortLevel"] };
const MODEL_SEES = { setModel: ["haiku"], applyFlagSettings: ['effort": "low'] };

function userMessage(content) {
  return { type: "user", message: { role: "user", content }, parent_tool_use_id: null, session_id: "" };
}

/** Call the methods in one conversation. A call that fails is reported with its error. */
async function callMethods() {
  const folder = path.join(start.folder, "methods");
  mkdirSync(folder);
  const messages = [];
  const waiting = [];
  let wake = () => {};
  let stderr = "";
  let named = [];
  async function* input() {
    for (;;) {
      while (messages.length) yield userMessage(messages.shift());
      await new Promise((resolve) => (wake = resolve));
    }
  }
  const run = query({ prompt: input(), options: { cwd: folder, pathToClaudeCodeExecutable: start.claude, stderr: (data) => (stderr += data), canUseTool: async () => ({ behavior: "deny", message: "no" }) } });
  const reading = (async () => {
    for await (const message of run) {
      if (message.shim?.model_asked) named.push(`model_asked: ${message.shim.model_asked}`);
      if (message.type === "result") waiting.shift()?.(message);
    }
  })().catch(() => {});
  const say = (content) => {
    const result = new Promise((resolve) => waiting.push(resolve));
    if (content) messages.push(content);
    wake();
    return result;
  };
  for (const [name, call] of Object.entries(methods)) {
    if (start.cases && !start.cases.includes(`${name}()`)) continue;
    report({ begin: name });
    stderr = "";
    named = [];
    const facts = await Promise.race([callMethod(call, { run, say, folder }), timeOut()]);
    report({ name: `${name}()`, facts, sees: MODEL_SEES[name.split(" ")[0]], aliases: METHOD_ALIASES[name] ?? [], named, stderr });
  }
  run.close();
  await Promise.race([reading, timeOut()]);
}

async function callMethod(call, context) {
  try {
    return { value: describe(await call(context)) };
  } catch (error) {
    return { error: clean(String(error.message)) };
  }
}

const timeOut = () => new Promise((resolve) => setTimeout(() => resolve({ value: "no answer" }), METHOD_MILLISECONDS).unref());

function report(fields) {
  process.stdout.write(JSON.stringify(fields) + "\n");
}

if (start.list) {
  report({ cases: [...Object.keys(cases), ...Object.keys(methods).map((name) => `${name}()`)] });
} else {
  for (const [number, name] of Object.keys(cases).entries()) {
    if (!start.cases || start.cases.includes(name)) await runCase(name, number);
  }
  if (!start.cases || start.cases.some((name) => name.endsWith("()"))) await callMethods();
}
process.exit(0);
