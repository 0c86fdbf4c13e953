// The Claude Agent SDK for TypeScript with a session store in memory: the same as store_client.py, which explains it.
// The first argument is the SDK's module, the second says what to run.

import { pathToFileURL } from "node:url";

const { query } = await import(pathToFileURL(process.argv[2]));
const start = JSON.parse(process.argv[3]);
const report = (fields) => process.stdout.write(JSON.stringify(fields) + "\n");

const content = new Map();
const name = (key) => JSON.stringify([key.projectKey, key.sessionId, key.subpath ?? ""]);
const sessionStore = {
  async append(key, entries) {
    content.set(name(key), [...(content.get(name(key)) ?? []), ...entries]);
  },
  async load(key) {
    return content.get(name(key)) ?? null;
  },
};

let resume;
for (const run of start.runs) {
  const stderr = [];
  const options = {
    pathToClaudeCodeExecutable: start.claude,
    cwd: start.cwd,
    env: { ...process.env, ...run.environment },
    sessionStore,
    resume,
    stderr: (text) => stderr.push(text),
  };
  for await (const message of query({ prompt: run.prompt, options })) {
    if (message.type === "result") {
      resume = message.session_id;
      report({ session: resume, result: message.result, stderr });
    }
  }
}
report({ store: [...content].map(([key, entries]) => [...JSON.parse(key), entries]) });
