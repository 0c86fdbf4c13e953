// An extension of pi, loaded with `-e`, that checks each tool call before it runs. The variable PI_GATE is JSON and
// selects one of two modes.
// {"asks": true}: pi is driven by its RPC, and the client is asked about each call. The client must not send a prompt
// before it has received the status of this extension.
// {"folders", "names", "paths"}: the mode acceptEdits in one-shot mode, in which no person can be asked. Tools may only
// read and change files inside the folders, as the real claude does without a prompt. They may not change files that run
// programs: a path that contains one of the names as a component, or one of the paths.
// In both modes a path is refused if pi would interpret it in its own way, because the checked path must be the one that
// is opened.
import { existsSync, lstatSync, realpathSync } from "node:fs";
import { basename, dirname, join, resolve, sep } from "node:path";

const LOOK = new Set(["read", "grep", "find", "ls"]);
const CHANGE = new Set(["edit", "write"]);
const OWN = new Set([...LOOK, ...CHANGE, "bash"]);
const OURS = "claude-shim"; // in place of a title
const { asks, folders, names, paths } = JSON.parse(process.env.PI_GATE);

// Return the path with all links in its existing part resolved, or undefined for a link whose target does not exist.
function real(path) {
  try {
    return realpathSync(path);
  } catch {
    const folder = dirname(path);
    if (folder === path) return path;
    if (lstatSync(path, { throwIfNoEntry: false })) return undefined;
    const above = real(folder);
    return above && join(above, basename(path));
  }
}

function inside(path) {
  return folders.map(real).some((folder) => path === folder || path.startsWith(folder === sep ? sep : folder + sep));
}

// Return why pi might open a file other than the one that the path names, or undefined.
function misread(tool, said) {
  if (typeof said !== "string" || !(CHANGE.has(tool) || LOOK.has(tool))) return undefined;
  const plainly = "Not run: write the path plainly, absolute or relative to the working directory, ";
  if (/^[@~]|^file:|[^\S ]/u.test(said)) return `${plainly}without a leading @, ~ or file:, and with plain spaces.`;
  const path = resolve(said);
  const other = path.replace(/ (AM|PM)\./gi, "\u202F$1.").normalize("NFD").replaceAll("'", "\u2019");
  if (CHANGE.has(tool) || other === path || existsSync(path)) return undefined;
  return `${plainly}in its exact spelling. There is no file ${said}.`; // pi would search for the other spelling
}

function allowed(tool, said) {
  if (!CHANGE.has(tool) && !LOOK.has(tool)) return true;
  if (typeof said !== "string") return false;
  const path = real(resolve(said));
  if (!path || !inside(path)) return false;
  return LOOK.has(tool) || !isProtected(path.toLowerCase());
}

// Return whether a lower-case path contains a name that makes programs run, or is in the settings folder of claude-shim.
function isProtected(path) {
  return path.split(sep).some((name) => names.includes(name)) || paths.some((part) => `${path}/`.includes(part.toLowerCase()));
}

function judge({ toolName, input }) {
  const said = input?.path ?? (LOOK.has(toolName) ? "." : undefined);
  const reason = misread(toolName, said);
  if (reason) return { block: true, reason };
  if (allowed(toolName, said)) return undefined;
  return { block: true, reason: `The use of ${said} has been denied: this mode does not allow paths outside the session's folders.` };
}

// Make an object immutable. Another extension could change the input after it was allowed; now its change fails.
function frozen(value) {
  if (value === null || typeof value !== "object") return;
  Object.values(value).forEach(frozen);
  Object.freeze(value);
}

// Return whether an extension has replaced a built-in tool of pi.
function replaced(pi, name) {
  if (!OWN.has(name)) return false;
  return pi.getAllTools().find((tool) => tool.name === name)?.sourceInfo?.source !== "builtin";
}

// Ask the client about a call. Its answer is JSON: `allow`, with `input` if it was changed, or the `reason` of a denial.
async function ask(pi, { toolName, toolCallId, parentToolCallId, input }, { ui }) {
  const misunderstood = misread(toolName, input?.path);
  if (misunderstood) return { block: true, reason: misunderstood };
  const told = { call: toolCallId, parent: parentToolCallId, tool: toolName, input };
  const call = JSON.stringify(replaced(pi, toolName) ? { ...told, replaced: true } : told);
  const answer = JSON.parse((await ui.input(OURS, call)) ?? "{}");
  if (answer.allow !== true) return { block: true, reason: answer.reason || "The call was denied." };
  if (answer.input) {
    for (const key of Object.keys(input)) delete input[key];
    Object.assign(input, answer.input);
  }
  frozen(input);
  return undefined;
}

export default function (pi) {
  if (asks) pi.on("session_start", (_event, { ui }) => ui.setStatus(OURS, "asks"));
  pi.on("tool_call", asks ? (event, context) => ask(pi, event, context) : judge);
}
