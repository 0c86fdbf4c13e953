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
function renderCode(text, label) {
  return element("pre", { tabindex: 0, "data-language": label || null }, element("code", null, text));
}

/** A unified diff, each line with its colour. */
function difference(text) {
  const kinds = { "+": "added", "-": "removed", "@": "place" };
  const lines = text.split("\n").map((line) => element("span", { class: kinds[line[0]] || "same" }, `${line}\n`));
  return element("pre", { class: "diff", tabindex: 0 }, element("code", null, lines));
}

/** Markdown that was read when the page was made: texts, and elements as [tag, attributes unless there are none, …]. */
function renderTrees(trees, budget = { left: Infinity }) {
  const nodes = [];
  for (const tree of trees) {
    if (budget.left <= 0) break;
    if (typeof tree === "string") {
      nodes.push(tree.slice(0, budget.left));
      budget.left -= tree.length;
    } else {
      const [attributes, children] = splitTree(tree);
      nodes.push(element(tree[0], attributes, renderTrees(children, budget)));
    }
  }
  return nodes;
}

function splitTree([, first, ...rest]) {
  if (first === undefined) return [null, []];
  return typeof first === "string" || Array.isArray(first) ? [null, [first, ...rest]] : [first, rest];
}

/** The words of drawn Markdown, a line for each of its blocks. */
function textOf(trees) {
  return trees.map((tree) => (typeof tree === "string" ? tree : textOf(splitTree(tree)[1]) + (INLINE.has(tree[0]) ? "" : "\n"))).join("");
}

/** How many lines a text takes on a screen, about. */
function countLines(text) {
  return text ? text.split("\n").reduce((sum, line) => sum + 1 + Math.floor(line.length / LINE_CHARACTERS), 0) : 0;
}

/** A long block shows its beginning, and a button for the rest. */
function clipText(text, renderBlock) {
  const textLines = text.split("\n");
  if (textLines.length <= LONG_LINES + 4) return [renderBlock(text)];
  const block = renderBlock(textLines.slice(0, LONG_LINES).join("\n"));
  const button = element("button", { type: "button", class: "more" }, `Show all ${counted(textLines.length, "line")}`);
  button.addEventListener("click", () => {
    const fullBlock = renderBlock(text);
    button.previousSibling.replaceWith(fullBlock);
    button.remove();
    fullBlock.focus();
  });
  return [block, button];
}

function labelled(label, nodes, className) {
  return element("div", { class: `part ${className || ""}` }, element("div", { class: "label" }, label), nodes);
}

function renderArticle(item, className, ...children) {
  const { step } = item;
  const depth = step.depth ? ` nested depth-${step.depth}` : "";
  item.node = element("article", { class: `step ${className}${depth}`, id: `step-${step.number}`, tabindex: -1 }, stamp(step), children);
  return item.node;
}

/** A step that can be folded: `summary` is always seen, `fill` makes its body when it is opened first. */
function renderFoldingStep(item, className, isOpen, summary, fill) {
  item.body = element("div", { class: "body" });
  item.fill = () => {
    item.fill = null;
    item.body.append(...fill());
  };
  item.details = element("details", { open: isOpen, ontoggle: () => item.details.open && item.fill && item.fill() }, summary, item.body);
  if (isOpen) item.fill();
  return renderArticle(item, className, item.details);
}

function renderPlainStep(item, className, label, renderBody) {
  item.body = element("div", { class: "body prose" });
  item.fill = () => {
    item.fill = null;
    item.body.replaceChildren(...renderBody());
  };
  item.fill();
  return renderArticle(item, className, label ? element("div", { class: "label" }, label) : "", item.body);
}

function renderFacts(step) {
  const facts = (step.facts || []).map(([name, value]) => element("div", { class: name }, element("dt", null, name), element("dd", null, value)));
  return facts.length ? [element("dl", { class: "facts" }, facts)] : [];
}

const OUTCOMES = { ok: ["✓", "done"], failed: ["✗", "failed"], denied: ["⊘", "denied"], unanswered: ["…", "no result"] };

const DRAW = {
  start(item) {
    const facts = item.step.facts || [];
    const model = facts.find(([name]) => name === "model");
    const summary = element("summary", null, element("span", { class: "name" }, "Session starts"), element("span", { class: "main" }, model ? model[1] : ""));
    return renderFoldingStep(item, "start", false, summary, () => renderFacts(item.step));
  },
  prompt(item) {
    return renderPlainStep(item, "prompt", "Prompt", () => clipText(whole(item.step.text), (text) => element("div", { class: "said", dir: "auto" }, text)));
  },
  text(item) {
    return renderPlainStep(item, "text", "", () => renderTrees(item.step.trees || []));
  },
  thinking(item) {
    const { step } = item;
    const timeLabel = step.until > step.at ? `Thought for ${formatDuration(step.until - step.at)}` : "Thought";
    const summary = element("summary", null, element("span", { class: "name" }, timeLabel), element("span", { class: "main", dir: "auto" }, textOf(step.trees || []).slice(0, 200).split("\n")[0]));
    return renderFoldingStep(item, "thinking", false, summary, () => [element("div", { class: "prose" }, renderTrees(step.trees || []))]);
  },
  call(item) {
    const { step } = item;
    const [sign, outcomeLabel] = OUTCOMES[step.outcome] || ["…", "running"];
    const output = whole(step.output);
    const diff = whole(step.diff);
    const fields = (step.fields || []).map(([name, value]) => [name, whole(value)]);
    const extraFields = fields.filter(([, value]) => value !== step.main);
    const lineCount = countLines(output) + extraFields.reduce((sum, [, value]) => sum + countLines(value), 0);
    const isOpen = step.outcome === "failed" || (diff ? countLines(diff) <= OPEN_DIFF_LINES : lineCount > 0 && lineCount <= OPEN_LINES);
    const summary = element(
      "summary",
      null,
      element("span", { class: "sign", role: "img", "aria-label": outcomeLabel }, sign),
      element("span", { class: "name" }, step.name),
      element("span", { class: "main" }, step.main || ""),
      element("span", { class: "took" }, step.until > step.at ? formatDuration(getRunTime(step)) : ""),
    );
    const fill = () => [
      ...fields.filter(([, value]) => !step.main || value !== step.main || value.includes("\n") || value.length > 60).map(([name, value]) => labelled(name, clipText(value, (text) => renderCode(text)))),
      ...(diff ? clipText(diff, difference) : []),
      ...(output ? [labelled(step.outcome === "failed" ? "error" : "output", clipText(output, (text) => renderCode(text)), "output")] : []),
    ];
    return renderFoldingStep(item, `call ${step.outcome || "running"}`, isOpen, summary, fill);
  },
  question(item) {
    const { step } = item;
    const summary = element("summary", null, element("span", { class: "sign", role: "img", "aria-label": "question" }, "?"), element("span", { class: "name" }, `May ${step.name} run?`), element("span", { class: "main" }, step.main || ""));
    return renderFoldingStep(item, "question", false, summary, () => [
      ...(step.diff ? clipText(whole(step.diff), difference) : []),
      ...(step.fields || []).map(([name, value]) => labelled(name, clipText(whole(value), (text) => renderCode(text)))),
    ]);
  },
  answer(item) {
    const decision = { allow: "Allowed", deny: "Denied" }[whole(item.step.text)] || whole(item.step.text);
    const label = item.step.name ? `${decision}: ${item.step.name}` : decision;
    return renderPlainStep(item, `answer ${whole(item.step.text) === "deny" ? "denied" : ""}`, "", () => [element("span", { class: "name" }, label), ...renderFacts(item.step)]);
  },
  note(item) {
    const text = whole(item.step.text);
    if (!item.step.facts) return renderPlainStep(item, "note", "", () => clipText(text, (part) => element("div", { class: "said", dir: "auto" }, part)));
    const summary = element("summary", null, element("span", { class: "note-text", dir: "auto" }, text));
    return renderFoldingStep(item, "note", false, summary, () => renderFacts(item.step));
  },
  error(item) {
    return renderPlainStep(item, "error", "Error", () => clipText(whole(item.step.text), (text) => element("div", { class: "said", dir: "auto" }, text)));
  },
  result(item) {
    const { step } = item;
    const facts = step.facts || [];
    const hasFailed = facts.some(([name]) => name === "failed");
    const label = `Turn ${step.turn || 1} ${hasFailed ? "failed" : "done"}`;
    return renderPlainStep(item, `result ${hasFailed ? "failed" : ""}`, label, () => [...renderFacts(step), ...renderTrees(step.trees || [])]);
  },
};
