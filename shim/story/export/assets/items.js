// The session of this file: its steps, links to them, and what brings one before the reader's eyes.

const session = JSON.parse(find("data").textContent);
const items = session.steps.map((step) => ({ step, node: null, details: null, body: null, fill: null, shown: -1 }));
const numbered = new Map(items.map((item) => [item.step.number, item]));

/** The link to a step: the time when it happened. A click copies it, too. */
function stamp(step) {
  const address = `#step-${step.number}`;
  return element(
    "a",
    {
      class: "when",
      href: address,
      title: `Step ${step.number}: copy a link to it`,
      "aria-label": `Step ${step.number} at ${clock(step.at)}, copy a link to it`,
      onclick: () => copy(new URL(address, location.href).href),
    },
    clock(step.at),
  );
}

function copy(text) {
  const done = () => tell("Link copied");
  if (navigator.clipboard) navigator.clipboard.writeText(text).then(done, () => {});
}

function open(item) {
  if (item.fill) item.fill();
  if (item.details) item.details.open = true;
}

function foldAll(wanted) {
  for (const item of items) {
    if (!item.details) continue;
    if (wanted) item.details.open = false;
    else open(item);
  }
  tell(wanted ? "All steps are folded" : "All steps are unfolded");
}

/** Bring a step before the reader's eyes, unfolded. */
function jump(item, { focus = true } = {}) {
  if (!item) return;
  item.node.hidden = false;
  open(item);
  for (const other of document.querySelectorAll(".step.target")) other.classList.remove("target");
  item.node.classList.add("target");
  // Twice: what is not seen has only a guessed height until it is near.
  item.node.scrollIntoView({ block: "center" });
  requestAnimationFrame(() => item.node.scrollIntoView({ block: item.node.offsetHeight > innerHeight * 0.7 ? "start" : "center" }));
  if (focus) item.node.focus({ preventScroll: true });
}

/** The step that goes on at a moment, or the last one before it. */
function stepAt(ms) {
  let found = items[0];
  for (const item of items) {
    if (item.step.at > ms) break;
    found = item;
  }
  return found;
}
