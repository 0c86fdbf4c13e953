// The session of this file: its steps, links to them, and what brings one before the reader's eyes.

const session = JSON.parse(find("data").textContent);
const items = session.steps.map((step) => ({ step, node: null, details: null, body: null, fill: null, renderedPermille: -1 }));
const numbered = new Map(items.map((item) => [item.step.number, item]));

/** The link to a step: the time when it happened. A click copies it, too. */
function stamp(step) {
  const fragment = `#step-${step.number}`;
  return element(
    "a",
    {
      class: "when",
      href: fragment,
      title: `Step ${step.number}: copy a link to this step`,
      "aria-label": `Step ${step.number} at ${formatClock(step.at)}: copy a link to this step`,
      onclick: () => copyText(new URL(fragment, location.href).href),
    },
    formatClock(step.at),
  );
}

function copyText(text) {
  const announceCopy = () => tell("Link copied");
  if (navigator.clipboard) navigator.clipboard.writeText(text).then(announceCopy, () => {});
}

function openItem(item) {
  if (item.fill) item.fill();
  if (item.details) item.details.open = true;
}

function foldAll(isFolded) {
  for (const item of items) {
    if (!item.details) continue;
    if (isFolded) item.details.open = false;
    else openItem(item);
  }
  tell(isFolded ? "All steps are folded" : "All steps are unfolded");
}

/** Bring a step before the reader's eyes, unfolded. */
function scrollToItem(item, { focus = true } = {}) {
  if (!item) return;
  item.node.hidden = false;
  openItem(item);
  for (const target of document.querySelectorAll(".step.target")) target.classList.remove("target");
  item.node.classList.add("target");
  // Twice: what is not seen has only a guessed height until it is near.
  item.node.scrollIntoView({ block: "center" });
  requestAnimationFrame(() => item.node.scrollIntoView({ block: item.node.offsetHeight > innerHeight * 0.7 ? "start" : "center" }));
  if (focus) item.node.focus({ preventScroll: true });
}

/** The step that goes on at a moment, or the last one before it. */
function findItemAt(ms) {
  let item = items[0];
  for (const candidate of items) {
    if (candidate.step.at > ms) break;
    item = candidate;
  }
  return item;
}
