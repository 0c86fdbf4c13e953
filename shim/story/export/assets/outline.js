// What a reader looks for first: the turns, and what failed. Each is a link to its step.

const MAX_ENTRIES = 500; // of a list; a longer one says how many more there are
const MAX_OPEN_ENTRIES = 8; // a list with no more entries than this stands open

function isFailedTurn(step) {
  return step.kind === "result" && (step.facts || []).some(([name]) => name === "failed");
}

/** Whether a step is a failure that somebody may look for. */
function isFailure({ step }) {
  return step.outcome === "failed" || step.kind === "error" || isFailedTurn(step);
}

/** The turns in their order, each with its first step, and its result if it has one. */
function listTurns() {
  const turnsByNumber = new Map();
  for (const item of items) {
    const { step } = item;
    if (!step.turn) continue;
    if (!turnsByNumber.has(step.turn)) turnsByNumber.set(step.turn, { number: step.turn, first: item, title: "", result: null });
    const turn = turnsByNumber.get(step.turn);
    if (step.kind === "prompt" && !turn.title) turn.title = whole(step.text).split("\n")[0];
    if (step.kind === "result") turn.result = item;
  }
  return [...turnsByNumber.values()];
}

function renderEntry(item, sign, title, summary, duration, className) {
  const { step } = item;
  return element(
    "li",
    { class: className },
    element(
      "a",
      { href: `#step-${step.number}`, onclick: () => (leaveReplay(), scrollToItem(item)) },
      element("span", { class: "sign", role: "img", "aria-label": sign[1] }, sign[0]),
      element("span", { class: "name" }, title),
      element("span", { class: "main" }, summary),
      element("span", { class: "took" }, duration),
      element("time", null, formatClock(step.at)),
    ),
  );
}

function renderTurnEntry({ number, first, title, result }) {
  const facts = Object.fromEntries((result && result.step.facts) || []);
  const [sign, className] = !result ? [OUTCOMES.unanswered, "open"] : facts.failed ? [OUTCOMES.failed, "wrong"] : [OUTCOMES.ok, ""];
  return renderEntry(first, sign, `Turn ${number}`, title, facts.time || "", className);
}

function renderFailureEntry(item) {
  const { step } = item;
  const facts = Object.fromEntries(step.facts || []);
  if (step.kind === "result") return renderEntry(item, OUTCOMES.failed, `Turn ${step.turn || 1} failed`, facts.errors || facts.failed, "", "wrong");
  if (step.kind === "error") return renderEntry(item, OUTCOMES.failed, "Error", whole(step.text).split("\n")[0], "", "wrong");
  return renderEntry(item, OUTCOMES[step.outcome], step.name, step.main || "", formatDuration(getRunTime(step)), "wrong");
}

/** A list that can be folded, or nothing if it has no entries. */
function renderList(title, entries, renderItem) {
  if (!entries.length) return [];
  const hiddenCount = entries.length - MAX_ENTRIES;
  const remainder = hiddenCount > 0 ? element("li", { class: "label" }, `and ${grouped(hiddenCount)} more`) : "";
  return [element("details", { open: entries.length <= MAX_OPEN_ENTRIES }, element("summary", null, title), element("ol", null, entries.slice(0, MAX_ENTRIES).map(renderItem), remainder))];
}

function renderOutline() {
  const sessionTurns = listTurns();
  // Words of an error stand in its turn's result again.
  const turnsWithError = new Set(items.filter(({ step }) => step.kind === "error").map(({ step }) => step.turn));
  const failures = items.filter((item) => item.step.outcome === "denied" || (isFailure(item) && !(item.step.kind === "result" && turnsWithError.has(item.step.turn))));
  const sections = [
    ...renderList(counted(sessionTurns.length, "turn"), sessionTurns.length > 1 ? sessionTurns : [], renderTurnEntry),
    ...renderList(`${grouped(failures.length)} failed or denied`, failures, renderFailureEntry),
  ];
  return sections.length ? [element("nav", { class: "outline", "aria-label": "Turns and failures" }, sections)] : [];
}
