// The steps of a session, exported or live: one article each. What is folded is drawn when somebody opens it.
// The page has to say what stands for a step's time: `stamp(step)`.

const OPEN_LINES = 8; // a call with no more lines than this stands open
const OPEN_DIFF_LINES = 60; // a change is what people look for
const LINE_CHARACTERS = 80;
const LONG_LINES = 24; // what is longer shows this much, and a button for the rest
const INLINE = new Set(["a", "code", "del", "em", "strong", "span"]);

/** The text of a field, with a word about what was left out of it. */
function whole(value) {
  if (!value) return "";
  if (typeof value === "string") return value;
  const [head, left, tail] = value;
  return `${head}\n… ${counted(left, "character")} left out …\n${tail}`;
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

/** Markdown that was read when the page was made: texts, and elements as [tag, attributes unless there are none, …]. */
function nodesOf(trees, room = { left: Infinity }) {
  const nodes = [];
  for (const tree of trees) {
    if (room.left <= 0) break;
    if (typeof tree === "string") {
      nodes.push(tree.slice(0, room.left));
      room.left -= tree.length;
    } else {
      const [attributes, inside] = parts(tree);
      nodes.push(element(tree[0], attributes, nodesOf(inside, room)));
    }
  }
  return nodes;
}

function parts([, first, ...rest]) {
  if (first === undefined) return [null, []];
  return typeof first === "string" || Array.isArray(first) ? [null, [first, ...rest]] : [first, rest];
}

/** The words of drawn Markdown, a line for each of its blocks. */
function textOf(trees) {
  return trees.map((tree) => (typeof tree === "string" ? tree : textOf(parts(tree)[1]) + (INLINE.has(tree[0]) ? "" : "\n"))).join("");
}

/** How many lines a text takes on a screen, about. */
function lines(text) {
  return text ? text.split("\n").reduce((sum, line) => sum + 1 + Math.floor(line.length / LINE_CHARACTERS), 0) : 0;
}

/** A long block shows its beginning, and a button for the rest. */
function clipped(text, draw) {
  const all = text.split("\n");
  if (all.length <= LONG_LINES + 4) return [draw(text)];
  const block = draw(all.slice(0, LONG_LINES).join("\n"));
  const more = element("button", { type: "button", class: "more" }, `Show all ${counted(all.length, "line")}`);
  more.addEventListener("click", () => {
    const full = draw(text);
    more.previousSibling.replaceWith(full);
    more.remove();
    full.focus();
  });
  return [block, more];
}

function labelled(label, nodes, name) {
  return element("div", { class: `part ${name || ""}` }, element("div", { class: "label" }, label), nodes);
}

function article(item, name, ...children) {
  const { step } = item;
  const depth = step.depth ? ` nested depth-${step.depth}` : "";
  item.node = element("article", { class: `step ${name}${depth}`, id: `step-${step.number}`, tabindex: -1 }, stamp(step), children);
  return item.node;
}

/** A step that can be folded: `summary` is always seen, `fill` makes its body when it is opened first. */
function folding(item, name, open, summary, fill) {
  item.body = element("div", { class: "body" });
  item.fill = () => {
    item.fill = null;
    item.body.append(...fill());
  };
  item.details = element("details", { open, ontoggle: () => item.details.open && item.fill && item.fill() }, summary, item.body);
  if (open) item.fill();
  return article(item, name, item.details);
}

function plainStep(item, name, label, draw) {
  item.body = element("div", { class: "body prose" });
  item.fill = () => {
    item.fill = null;
    item.body.replaceChildren(...draw());
  };
  item.fill();
  return article(item, name, label ? element("div", { class: "label" }, label) : "", item.body);
}

function listedFacts(step) {
  const facts = (step.facts || []).map(([name, value]) => element("div", { class: name }, element("dt", null, name), element("dd", null, value)));
  return facts.length ? [element("dl", { class: "facts" }, facts)] : [];
}

const OUTCOMES = { ok: ["✓", "done"], failed: ["✗", "failed"], denied: ["⊘", "denied"], unanswered: ["…", "no result"] };

const DRAW = {
  start(item) {
    const facts = item.step.facts || [];
    const model = facts.find(([name]) => name === "model");
    const summary = element("summary", null, element("span", { class: "name" }, "Session starts"), element("span", { class: "main" }, model ? model[1] : ""));
    return folding(item, "start", false, summary, () => listedFacts(item.step));
  },
  prompt(item) {
    return plainStep(item, "prompt", "Prompt", () => clipped(whole(item.step.text), (text) => element("div", { class: "said", dir: "auto" }, text)));
  },
  text(item) {
    return plainStep(item, "text", "", () => nodesOf(item.step.trees || []));
  },
  thinking(item) {
    const { step } = item;
    const took = step.until > step.at ? `Thought for ${lasting(step.until - step.at)}` : "Thought";
    const summary = element("summary", null, element("span", { class: "name" }, took), element("span", { class: "main", dir: "auto" }, textOf(step.trees || []).slice(0, 200).split("\n")[0]));
    return folding(item, "thinking", false, summary, () => [element("div", { class: "prose" }, nodesOf(step.trees || []))]);
  },
  call(item) {
    const { step } = item;
    const [sign, word] = OUTCOMES[step.outcome] || ["…", "running"];
    const output = whole(step.output);
    const diff = whole(step.diff);
    const fields = (step.fields || []).map(([name, value]) => [name, whole(value)]);
    const hidden = fields.filter(([, value]) => value !== step.main);
    const size = lines(output) + hidden.reduce((sum, [, value]) => sum + lines(value), 0);
    const open = step.outcome === "failed" || (diff ? lines(diff) <= OPEN_DIFF_LINES : size > 0 && size <= OPEN_LINES);
    const summary = element(
      "summary",
      null,
      element("span", { class: "sign", role: "img", "aria-label": word }, sign),
      element("span", { class: "name" }, step.name),
      element("span", { class: "main" }, step.main || ""),
      element("span", { class: "took" }, step.until > step.at ? lasting(step.until - step.at) : ""),
    );
    const fill = () => [
      ...fields.filter(([, value]) => !step.main || value !== step.main || value.includes("\n") || value.length > 60).map(([name, value]) => labelled(name, clipped(value, (text) => code(text)))),
      ...(diff ? clipped(diff, difference) : []),
      ...(output ? [labelled(step.outcome === "failed" ? "error" : "output", clipped(output, (text) => code(text)), "output")] : []),
    ];
    return folding(item, `call ${step.outcome || "running"}`, open, summary, fill);
  },
  question(item) {
    const { step } = item;
    const summary = element("summary", null, element("span", { class: "sign", role: "img", "aria-label": "question" }, "?"), element("span", { class: "name" }, `May ${step.name} run?`), element("span", { class: "main" }, step.main || ""));
    return folding(item, "question", false, summary, () => [
      ...(step.diff ? clipped(whole(step.diff), difference) : []),
      ...(step.fields || []).map(([name, value]) => labelled(name, clipped(whole(value), (text) => code(text)))),
    ]);
  },
  answer(item) {
    const said = { allow: "Allowed", deny: "Denied" }[whole(item.step.text)] || whole(item.step.text);
    const name = item.step.name ? `${said}: ${item.step.name}` : said;
    return plainStep(item, `answer ${whole(item.step.text) === "deny" ? "denied" : ""}`, "", () => [element("span", { class: "name" }, name), ...listedFacts(item.step)]);
  },
  note(item) {
    const text = whole(item.step.text);
    if (!item.step.facts) return plainStep(item, "note", "", () => clipped(text, (part) => element("div", { class: "said", dir: "auto" }, part)));
    const summary = element("summary", null, element("span", { class: "note-text", dir: "auto" }, text));
    return folding(item, "note", false, summary, () => listedFacts(item.step));
  },
  error(item) {
    return plainStep(item, "error", "Error", () => clipped(whole(item.step.text), (text) => element("div", { class: "said", dir: "auto" }, text)));
  },
  result(item) {
    const { step } = item;
    const facts = step.facts || [];
    const failed = facts.some(([name]) => name === "failed");
    const label = `Turn ${step.turn || 1} ${failed ? "failed" : "done"}`;
    return plainStep(item, `result ${failed ? "failed" : ""}`, label, () => [...listedFacts(step), ...nodesOf(step.trees || [])]);
  },
};
