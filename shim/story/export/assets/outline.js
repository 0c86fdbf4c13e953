// What a reader looks for first: the turns, and what failed. Each is a link to its step.

const LISTED = 500; // of a list; a longer one says how many more there are
const OPEN_LIST = 8; // a list with no more entries than this stands open

function failedTurn(step) {
  return step.kind === "result" && (step.facts || []).some(([name]) => name === "failed");
}

/** Whether a step is a failure that somebody may look for. */
function wrong({ step }) {
  return step.outcome === "failed" || step.kind === "error" || failedTurn(step);
}

/** The turns in their order, each with its first step, and its result if it has one. */
function turns() {
  const found = new Map();
  for (const item of items) {
    const { step } = item;
    if (!step.turn) continue;
    if (!found.has(step.turn)) found.set(step.turn, { number: step.turn, first: item, title: "", result: null });
    const turn = found.get(step.turn);
    if (step.kind === "prompt" && !turn.title) turn.title = whole(step.text).split("\n")[0];
    if (step.kind === "result") turn.result = item;
  }
  return [...found.values()];
}

function entry(item, sign, name, main, took, kind) {
  const { step } = item;
  return element(
    "li",
    { class: kind },
    element(
      "a",
      { href: `#step-${step.number}`, onclick: () => (leaveReplay(), jump(item)) },
      element("span", { class: "sign", role: "img", "aria-label": sign[1] }, sign[0]),
      element("span", { class: "name" }, name),
      element("span", { class: "main" }, main),
      element("span", { class: "took" }, took),
      element("time", null, clock(step.at)),
    ),
  );
}

function turnEntry({ number, first, title, result }) {
  const facts = Object.fromEntries((result && result.step.facts) || []);
  const [sign, kind] = !result ? [OUTCOMES.unanswered, "open"] : facts.failed ? [OUTCOMES.failed, "wrong"] : [OUTCOMES.ok, ""];
  return entry(first, sign, `Turn ${number}`, title, facts.time || "", kind);
}

function failureEntry(item) {
  const { step } = item;
  const facts = Object.fromEntries(step.facts || []);
  if (step.kind === "result") return entry(item, OUTCOMES.failed, `Turn ${step.turn || 1} failed`, facts.errors || facts.failed, "", "wrong");
  if (step.kind === "error") return entry(item, OUTCOMES.failed, "Error", whole(step.text).split("\n")[0], "", "wrong");
  return entry(item, OUTCOMES[step.outcome], step.name, step.main || "", lasting((step.until || step.at) - step.at), "wrong");
}

/** A list that can be folded, or nothing if it has no entries. */
function list(title, found, draw) {
  if (!found.length) return [];
  const left = found.length - LISTED;
  const rest = left > 0 ? element("li", { class: "label" }, `and ${grouped(left)} more`) : "";
  return [element("details", { open: found.length <= OPEN_LIST }, element("summary", null, title), element("ol", null, found.slice(0, LISTED).map(draw), rest))];
}

function outline() {
  const all = turns();
  // Words of an error stand in its turn's result again.
  const said = new Set(items.filter(({ step }) => step.kind === "error").map(({ step }) => step.turn));
  const stopped = items.filter((item) => item.step.outcome === "denied" || (wrong(item) && !(item.step.kind === "result" && said.has(item.step.turn))));
  const lists = [
    ...list(counted(all.length, "turn"), all.length > 1 ? all : [], turnEntry),
    ...list(`${grouped(stopped.length)} failed or denied`, stopped, failureEntry),
  ];
  return lists.length ? [element("nav", { class: "outline", "aria-label": "Turns and failures" }, lists)] : [];
}
