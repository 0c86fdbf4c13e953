// The Markdown that models write, as nodes. Whatever is not known here stays text: HTML, images, unusual links.
// The text is anybody's, so nothing here takes longer than its length, times one of these bounds.

const NESTED = 8; // lists, quotes and emphasis inside each other
const LINK_CHARACTERS = 2000; // of a link, its text included
const EMPHASIS_CHARACTERS = 2000;

const MARKER = /^( {0,12})([-*+]|[0-9]{1,9}[.)])( +|$)/;

function markdown(text) {
  const fragment = document.createDocumentFragment();
  fragment.append(...blocks(text.split("\n"), 0));
  return fragment;
}

function blocks(lines, depth) {
  const nodes = [];
  let at = 0;
  while (at < lines.length) {
    const line = lines[at];
    if (!line.trim()) {
      at += 1;
      continue;
    }
    let made;
    if (fenceOf(line)) made = fenced(lines, at);
    else if (depth < NESTED && line.startsWith(">")) made = quoted(lines, at, depth);
    else if (headingOf(line)) made = [heading(line), at + 1];
    else if (isRule(line)) made = [element("hr"), at + 1];
    else if (depth < NESTED && MARKER.test(line)) made = listed(lines, at, depth);
    else if (isTable(lines, at)) made = tabled(lines, at);
    else made = paragraph(lines, at, depth);
    nodes.push(made[0]);
    at = made[1];
  }
  return nodes;
}

function fenceOf(line) {
  const found = /^ {0,3}(`{3,}|~{3,})(.*)$/.exec(line);
  return found && !(found[1][0] === "`" && found[2].includes("`")) ? found : null;
}

function fenced(lines, at) {
  const [, fence, language] = fenceOf(lines[at]);
  const kept = [];
  at += 1;
  while (at < lines.length) {
    const line = lines[at].trim();
    at += 1;
    if (line.startsWith(fence) && line === fence[0].repeat(line.length)) break;
    kept.push(lines[at - 1]);
  }
  const word = language.trim().split(" ")[0];
  const text = kept.join("\n");
  return [word === "diff" ? difference(text) : code(text, word), at];
}

/** A block of text as it is. */
function code(text, label) {
  return element("pre", { tabindex: 0, "data-language": label || null }, element("code", null, text));
}

/** A unified diff, each line with its colour. */
function difference(text) {
  const kinds = { "+": "added", "-": "removed", "@": "place" };
  const lines = text.split("\n").map((line) => element("span", { class: kinds[line[0]] || "same" }, `${line}\n`));
  return element("pre", { class: "diff", tabindex: 0 }, element("code", null, lines));
}

function headingOf(line) {
  return /^(#{1,6})(?: (.*))?$/.exec(line);
}

function heading(line) {
  const [, signs, text] = headingOf(line);
  return element(`h${Math.min(signs.length + 2, 6)}`, null, inline(text || "", 0));
}

function isRule(line) {
  const signs = line.replaceAll(" ", "");
  return signs.length >= 3 && "-*_".includes(signs[0]) && signs === signs[0].repeat(signs.length);
}

function quoted(lines, at, depth) {
  const kept = [];
  while (at < lines.length && lines[at].startsWith(">")) {
    kept.push(lines[at].slice(lines[at][1] === " " ? 2 : 1));
    at += 1;
  }
  return [element("blockquote", null, blocks(kept, depth + 1)), at];
}

function listed(lines, at, depth) {
  const first = MARKER.exec(lines[at]);
  const ordered = /[0-9]/.test(first[2]);
  const list = element(ordered ? "ol" : "ul", { start: ordered ? parseInt(first[2], 10) : null });
  while (at < lines.length) {
    const marker = MARKER.exec(lines[at]);
    if (!marker || /[0-9]/.test(marker[2]) !== ordered || marker[1].length > first[1].length + 1) break;
    if (marker[1].length < first[1].length || isRule(lines[at])) break;
    const width = marker[0].length;
    const kept = [lines[at].slice(width)];
    at += 1;
    while (at < lines.length) {
      const line = lines[at];
      const indent = line.length - line.trimStart().length;
      if (!line.trim()) {
        const next = lines[at + 1] || "";
        if (!next.trim() || next.length - next.trimStart().length <= marker[1].length) break;
      } else if (indent <= marker[1].length && (MARKER.test(line) || startsBlock(line) || !kept[kept.length - 1])) {
        break;
      }
      kept.push(line.slice(Math.min(indent, width)));
      at += 1;
    }
    list.append(item(kept, depth));
    while (at < lines.length && !lines[at].trim() && MARKER.test(lines[at + 1] || "")) at += 1;
  }
  return [list, at];
}

function item(lines, depth) {
  const task = /^\[([ xX])\] /.exec(lines[0]);
  if (task) lines[0] = lines[0].slice(task[0].length);
  const nodes = blocks(lines, depth + 1);
  const begin = nodes[0] && nodes[0].tagName === "P" ? [...nodes[0].childNodes] : nodes.slice(0, 1);
  return element("li", { class: task ? "task" : null }, task ? (task[1] === " " ? "☐ " : "☑ ") : "", begin, nodes.slice(1));
}

function cells(line) {
  const row = line.trim().replace(/^\|/, "").replace(/\|$/, "");
  return row.split("|").map((cell) => cell.trim());
}

function isTable(lines, at) {
  const below = lines[at + 1];
  if (!lines[at].includes("|") || !below || !below.includes("-")) return false;
  return cells(below).every((cell) => /^:?-+:?$/.test(cell)) && cells(below).length === cells(lines[at]).length;
}

function tabled(lines, at) {
  const row = (line, tag) => element("tr", null, cells(line).map((cell) => element(tag, null, inline(cell, 0))));
  const head = element("thead", null, row(lines[at], "th"));
  const body = element("tbody");
  at += 2;
  while (at < lines.length && lines[at].includes("|")) {
    body.append(row(lines[at], "td"));
    at += 1;
  }
  return [element("div", { class: "table", tabindex: 0 }, element("table", null, head, body)), at];
}

function startsBlock(line) {
  return Boolean(fenceOf(line) || line.startsWith(">") || headingOf(line) || isRule(line));
}

function paragraph(lines, at, depth) {
  const kept = [lines[at]];
  at += 1;
  while (at < lines.length && lines[at].trim() && !startsBlock(lines[at]) && !isTable(lines, at)) {
    if (depth < NESTED && MARKER.test(lines[at])) break;
    kept.push(lines[at]);
    at += 1;
  }
  return [element("p", null, inline(kept.map((line) => line.trim()).join("\n"), 0)), at];
}

// -- inside a line ---------------------------------------------------------------------------------------------

const SPECIAL = /[\\`*_~[!<h]/g;

function inline(text, depth) {
  const nodes = [];
  let plain = "";
  let at = 0;
  const put = (node, end) => {
    if (plain) nodes.push(document.createTextNode(plain));
    plain = "";
    nodes.push(node);
    at = end;
  };
  while (at < text.length) {
    SPECIAL.lastIndex = at;
    const next = SPECIAL.exec(text);
    const stop = next ? next.index : text.length;
    plain += text.slice(at, stop);
    at = stop;
    if (at === text.length) break;
    const found = spanAt(text, at, depth);
    if (found && typeof found[0] === "string") {
      plain += found[0];
      at = found[1];
    } else if (found) {
      put(found[0], found[1]);
    } else {
      plain += text[at];
      at += 1;
    }
  }
  if (plain) nodes.push(document.createTextNode(plain));
  return nodes;
}

/** What begins at a place: a node or a text, and where it ends; null for nothing. */
function spanAt(text, at, depth) {
  const sign = text[at];
  if (sign === "\\") return /[!-/:-@[-`{-~]/.test(text[at + 1] || "") ? [text[at + 1], at + 2] : null;
  if (sign === "`") return codeSpan(text, at);
  if (sign === "<") return bracketed(text, at);
  if (sign === "h") return /[A-Za-z0-9]/.test(text[at - 1] || "") ? null : bareLink(text, at);
  if (depth >= NESTED) return null;
  if (sign === "[") return linkSpan(text, at, depth);
  if (sign === "!") return text[at + 1] === "[" ? imageSpan(text, at, depth) : null;
  return emphasis(text, at, depth);
}

function runAt(text, at) {
  let end = at + 1;
  while (text[end] === text[at]) end += 1;
  return text.slice(at, end);
}

function codeSpan(text, at) {
  const ticks = runAt(text, at);
  let end = at + ticks.length;
  while ((end = text.indexOf(ticks, end)) >= 0) {
    const closing = runAt(text, end);
    if (closing.length === ticks.length) {
      const inside = text.slice(at + ticks.length, end);
      const trimmed = inside.startsWith(" ") && inside.endsWith(" ") && inside.trim() ? inside.slice(1, -1) : inside;
      return [element("code", null, trimmed), end + ticks.length];
    }
    end += closing.length;
  }
  return [ticks, at + ticks.length];
}

function emphasis(text, at, depth) {
  const run = runAt(text, at);
  const size = Math.min(run.length, 2);
  const signs = run.slice(0, size);
  const tag = { "~": "del", 1: "em", 2: "strong" }[run[0] === "~" ? "~" : size];
  const word = /[\p{L}\p{N}]/u;
  if (run.length > 3 || signs === "~" || /\s/.test(text[at + run.length] || " ")) return [run, at + run.length];
  if (run[0] === "_" && word.test(text[at - 1] || "")) return [run, at + run.length];
  const limit = Math.min(text.length, at + EMPHASIS_CHARACTERS);
  for (let end = at + size + 1; end <= limit - size; end += 1) {
    if (!text.startsWith(signs, end) || /\s/.test(text[end - 1])) continue;
    if (run[0] === "_" && word.test(text[end + size] || "")) continue;
    if (size === 1 && text[end + 1] === signs) {
      end += 1; // a pair inside: not ours
      continue;
    }
    if (size === 2 && text[end + 2] === run[0]) continue;
    return [element(tag, null, inline(text.slice(at + size, end), depth + 1)), end + size];
  }
  return [run, at + run.length];
}

/** `[text](address "title")`: where its parts are. */
function linkParts(text, at) {
  let open = 0;
  let end = at;
  const limit = Math.min(text.length, at + LINK_CHARACTERS);
  for (; end < limit; end += 1) {
    if (text[end] === "\\") end += 1;
    else if (text[end] === "[") open += 1;
    else if (text[end] === "]" && --open === 0) break;
  }
  if (end >= limit || text[end + 1] !== "(") return null;
  const close = closing(text, end + 1, limit);
  if (close < 0) return null;
  const address = text.slice(end + 2, close).trim().split(/\s/)[0].replace(/^<|>$/g, "");
  return { label: text.slice(at + 1, end), address, end: close + 1 };
}

function closing(text, at, limit) {
  let open = 0;
  for (let end = at; end < limit; end += 1) {
    if (text[end] === "(") open += 1;
    else if (text[end] === ")" && --open === 0) return end;
  }
  return -1;
}

function linkSpan(text, at, depth) {
  const parts = linkParts(text, at);
  if (!parts) return null;
  const made = link(parts.address, inline(parts.label, NESTED));
  return made ? [made, parts.end] : [text.slice(at, parts.end), parts.end];
}

function imageSpan(text, at) {
  const parts = linkParts(text, at + 1);
  if (!parts) return null;
  const made = link(parts.address, [`image: ${parts.label || parts.address}`]);
  return [made || text.slice(at, parts.end), parts.end];
}

/** A link that shows where it leads; only to the web. */
function link(address, children) {
  let url;
  try {
    url = new URL(address);
  } catch {
    return null;
  }
  if (url.protocol !== "https:" && url.protocol !== "http:") return null;
  return element("a", { href: url.href, title: url.href, rel: "noopener noreferrer nofollow", target: "_blank" }, children);
}

function bracketed(text, at) {
  const end = text.slice(at, at + LINK_CHARACTERS).indexOf(">");
  const address = end > 0 ? text.slice(at + 1, at + end) : "";
  const made = /^https?:\/\/\S+$/.test(address) ? link(address, [address]) : null;
  return made && [made, at + end + 1];
}

function bareLink(text, at) {
  if (!text.startsWith("http://", at) && !text.startsWith("https://", at)) return null;
  let address = /^[^\s<>"`]+/.exec(text.slice(at, at + LINK_CHARACTERS))[0];
  while (/[.,:;!?*_~'\])]$/.test(address) && !(address.endsWith(")") && address.includes("("))) address = address.slice(0, -1);
  const made = link(address, [address]);
  return made && [made, at + address.length];
}
