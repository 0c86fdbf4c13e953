// Loaded into pi with `-e`, so that no tool runs before it was judged. PI_GATE is JSON and says by whom.
// {"asks": true}: pi is driven by its RPC, and each call is put to its client. A client that heard no hello of this file
// must prompt nothing. {"folders", "names", "paths"}: nobody can be asked, in the mode acceptEdits; tools look at files and
// change them inside of the folders only, as the real claude does without a question, but not files that make programs
// run: those with one of the names, or with one of the paths in theirs.
// In both ways a path that pi reads in its own way is refused: what was judged has to be what is opened.
import { existsSync, lstatSync, realpathSync } from "node:fs";
import { basename, dirname, join, resolve, sep } from "node:path";

const LOOK = new Set(["read", "grep", "find", "ls"]);
const CHANGE = new Set(["edit", "write"]);
const OWN = new Set([...LOOK, ...CHANGE, "bash"]);
const OURS = "claude-shim"; // in the place of a title
const { asks, folders, names, paths } = JSON.parse(process.env.PI_GATE);

// Where a path leads, its links resolved as far as there is something; undefined for a link to nothing.
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

// Why pi might open another file than the one that a path names to everybody else; undefined where it opens that one.
function misread(tool, said) {
  if (typeof said !== "string" || !(CHANGE.has(tool) || LOOK.has(tool))) return undefined;
  const plainly = "Not run: name the path plainly, absolute or relative to the working directory, ";
  if (/^[@~]|^file:|[^\S ]/u.test(said)) return `${plainly}without @, ~ or file: in front of it and with plain spaces.`;
  const path = resolve(said);
  const other = path.replace(/ (AM|PM)\./gi, "\u202F$1.").normalize("NFD").replaceAll("'", "\u2019");
  if (CHANGE.has(tool) || other === path || existsSync(path)) return undefined;
  return `${plainly}in its exact spelling: there is no ${said}.`; // pi would look for the other spelling
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
  return { block: true, reason: `The use of ${said} has been denied: this mode does not go outside of the session's folders.` };
}

// An extension that comes later may change the input too: what it changes would not be what was allowed, so it fails.
function frozen(value) {
  if (value === null || typeof value !== "object") return;
  Object.values(value).forEach(frozen);
  Object.freeze(value);
}

// Whether an extension has put a tool of its own in the place of one of pi's.
function replaced(pi, name) {
  if (!OWN.has(name)) return false;
  return pi.getAllTools().find((tool) => tool.name === name)?.sourceInfo?.source !== "builtin";
}

// The answer is JSON: `allow`, with another `input` where it was changed, or the `reason` of a denial.
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
