// Loaded into pi with `-e` in the mode acceptEdits: its tools look at files and change them inside of the turn's folders
// only, as the real claude does without a question. PI_GATE is JSON: the folders, and the names of files that make
// programs run.
import { existsSync, lstatSync, realpathSync } from "node:fs";
import { basename, dirname, join, resolve, sep } from "node:path";

const LOOK = new Set(["read", "grep", "find", "ls"]);
const CHANGE = new Set(["edit", "write"]);
const { folders, names } = JSON.parse(process.env.PI_GATE);

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

function allowed(tool, said) {
  if (!CHANGE.has(tool) && !LOOK.has(tool)) return true;
  if (typeof said !== "string" || /^[@~]|^file:|[^\S ]/u.test(said)) return false; // pi would read it in its own way
  if (LOOK.has(tool) && !existsSync(resolve(said))) return false; // pi would look for other spellings
  const path = real(resolve(said));
  if (!path || !inside(path)) return false;
  return LOOK.has(tool) || !path.split(sep).some((name) => names.includes(name.toLowerCase()));
}

export default function (pi) {
  pi.on("tool_call", ({ toolName, input }) => {
    const said = input?.path ?? (LOOK.has(toolName) ? "." : undefined);
    if (allowed(toolName, said)) return undefined;
    return { block: true, reason: `The use of ${said} has been denied: this mode does not go outside of the session's folders.` };
  });
}
