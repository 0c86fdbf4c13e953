// Programs of npm's that start a claude, one after another prompt: a JSON line for each, {text} or {error}.
// Arguments: the folder with `node_modules`, the program's name, and JSON {prompts, model, cwd, abort}.
// With `abort` the reply is given up after its first piece of text.

import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [folder, program, given] = process.argv.slice(2);
const { prompts, model, cwd, abort } = JSON.parse(given);
const load = (name) => import(pathToFileURL(createRequire(`${folder}/`).resolve(name)));
const print = (line) => process.stdout.write(JSON.stringify(line) + "\n");

const PROGRAMS = {
  /** Vercel's AI SDK, by its provider for Claude Code; it passes on only some of the environment. */
  async "ai-sdk-provider-claude-code"() {
    const { streamText } = await load("ai");
    const provider = `${folder}/node_modules/ai-sdk-provider-claude-code/dist/index.js`;
    const { createClaudeCode } = await import(pathToFileURL(provider));
    const claude = createClaudeCode({ defaultSettings: { cwd } });
    let resume;
    return async (prompt) => {
      const aborting = new AbortController();
      const errors = [];
      const run = streamText({
        model: claude(model, { resume }),
        prompt,
        abortSignal: aborting.signal,
        onError: ({ error }) => errors.push(error),
      });
      let text = "";
      for await (const piece of run.textStream) {
        text += piece;
        if (abort) aborting.abort();
      }
      if (errors.length) throw errors[0];
      if (!abort) resume = (await run.providerMetadata)["claude-code"].sessionId;
      return text;
    };
  },

  /** A port of the Python SDK, which takes claude from PATH. */
  async "@instantlyeasy/claude-code-sdk-ts"() {
    const { claude } = await load("@instantlyeasy/claude-code-sdk-ts");
    let session;
    return async (prompt) => {
      const asked = claude().withModel(model).inDirectory(cwd);
      if (session) asked.withSessionId(session);
      const parser = asked.query(prompt);
      session = (await parser.getSessionId()) ?? session;
      return parser.asText();
    };
  },
};

const ask = await PROGRAMS[program]();
for (const prompt of prompts) {
  try {
    print({ text: await ask(prompt) });
  } catch (error) {
    print({ error: String(error?.message ?? error) });
  }
}
process.exit(0);
