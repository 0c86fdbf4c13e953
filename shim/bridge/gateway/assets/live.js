// The steps of the session that is shown, and what is streamed until it is one.

const STEP_PAGE_SIZE = 200; // steps that are drawn at first, and so many more at each "show earlier"
const MAX_DRAWN_STEPS = 600; // at the end of the session; then the oldest are taken away again, to `STEP_PAGE_SIZE`
const MAX_STEPS = 20000; // steps that the page keeps; as many as an exported page has
const GROUP_SIZE = 20; // steps that are laid out together
const NEAR_END_PX = 120; // points: who is so near to the end goes on with it

/** What the page knows of the steps: none yet. `from` is the first that is drawn, `left` how many the server left out. */
function createEmptySteps() {
  return { order: [], numbers: new Map(), from: 0, left: 0, startedAt: 0, synced: false, live: [] };
}

/** A step's time: of the day, where that is known. */
function stamp(step) {
  const at = currentSession.startedAt ? currentSession.startedAt + step.at : 0;
  const padNumber = (number) => String(number).padStart(2, "0");
  const day = new Date(at);
  return element("time", { class: "when", datetime: at ? day.toISOString() : null }, at ? `${padNumber(day.getHours())}:${padNumber(day.getMinutes())}` : formatClock(step.at));
}

/** A step that is new, or that is not any more what it was. */
function addStep(step) {
  if (LIVE_ENDING_KINDS.has(step.kind)) removeLive(step.kind === "result" ? null : getParentCall(step));
  const existing = currentSession.numbers.get(step.number);
  if (existing) return replaceStep(existing, step);
  const item = { step, node: null, details: null, body: null, fill: null, visible: -1, touched: false };
  currentSession.numbers.set(step.number, item);
  const last = currentSession.order[currentSession.order.length - 1];
  if (!currentSession.synced || !last || last.step.number < step.number) currentSession.order.push(item);
  else {
    currentSession.order.splice(currentSession.order.findIndex((other) => other.step.number > step.number), 0, item);
    if (currentSession.synced) drawSteps(currentSession.order.length - currentSession.from);
    return;
  }
  if (currentSession.order.length > MAX_STEPS) removeOldestSteps();
  if (!currentSession.synced) return;
  appendStep(item);
  announceStep(step);
}

/** Tell who hears the page what is new, when it is whole. */
function announceStep(step) {
  if (step.depth) return;
  if (step.kind === "text") tell(formatLine(textOf(step.trees || []), 300));
  else if (step.kind === "error") tell(`Error: ${formatLine(whole(step.text), 300)}`);
  else if (step.kind === "call") tell(formatLine(`${step.name} ${step.main || ""}`, 120));
}

function replaceStep(item, step) {
  const previousNode = item.node;
  const unfolded = item.touched && item.details ? item.details.open : null;
  Object.assign(item, { step, node: null, details: null, body: null, fill: null });
  if (!previousNode) return;
  drawStep(item);
  if (unfolded !== null && item.details) item.details.open = unfolded;
  const focused = previousNode.contains(document.activeElement);
  previousNode.replaceWith(item.node);
  if (focused) (item.node.querySelector("summary") || item.node).focus({ preventScroll: true });
}

function drawStep(item) {
  (DRAW[item.step.kind] || DRAW.note)(item);
  if (item.details) {
    item.details.addEventListener("click", () => (item.touched = true));
    if (item.step.kind === "call" && !item.step.outcome) item.node.classList.add("going");
  }
  return item.node;
}

function appendStep(item) {
  if (find("loading")) find("loading").remove();
  const steps = find("steps");
  let group = steps.lastElementChild;
  if (!group || group.childElementCount >= GROUP_SIZE || !group.classList.contains("group")) {
    group = element("div", { class: "group" });
    steps.append(group);
  }
  group.append(drawStep(item));
  if (currentSession.follow && currentSession.order.length - currentSession.from > MAX_DRAWN_STEPS) drawSteps();
}

/** Draw the last steps anew, and no others. */
function drawSteps(maxSteps = STEP_PAGE_SIZE) {
  currentSession.from = Math.max(0, currentSession.order.length - maxSteps);
  for (const item of currentSession.order) item.node = null;
  const groups = createGroups(currentSession.from, currentSession.order.length);
  find("steps").replaceChildren(...groups);
  if (!currentSession.order.length) find("steps").append(element("p", { class: "none", id: "loading" }, getEmptyText()));
  drawEarlier();
}

/** Return the text for a session without steps: the reason if the session failed before its first line. */
function getEmptyText() {
  const { facts } = currentSession;
  if (facts.state === "failed" && facts.detail) return `The session failed before its first output: ${formatLine(facts.detail, 500)}`;
  return "No output yet.";
}

function createGroups(from, to) {
  const groups = [];
  for (let at = from; at < to; at += GROUP_SIZE) {
    groups.push(element("div", { class: "group" }, currentSession.order.slice(at, Math.min(at + GROUP_SIZE, to)).map(drawStep)));
  }
  return groups;
}

function drawEarlier() {
  const earlier = find("earlier");
  earlier.hidden = !currentSession.from && !currentSession.left;
  earlier.textContent = `Show earlier (${grouped(currentSession.from + currentSession.left)} more)`;
}

/** More of what was before; what is seen stays where it is. */
function showEarlier() {
  if (!currentSession.from && currentSession.left) {
    removeLive();
    Object.assign(currentSession, createEmptySteps());
    find("earlier").textContent = "Loading …";
    return openStream(MAX_STEPS); // all that the server tells; the end of it is drawn first
  }
  const scroll = find("scroll");
  const to = currentSession.from;
  const below = scroll.scrollHeight - scroll.scrollTop;
  currentSession.from = Math.max(0, to - STEP_PAGE_SIZE);
  currentSession.follow = false;
  find("steps").prepend(...createGroups(currentSession.from, to));
  scroll.scrollTop = scroll.scrollHeight - below;
  drawEarlier();
  tell(`${counted(to - currentSession.from, "earlier step")} shown`);
  currentSession.order[to - 1].node.focus({ preventScroll: true });
}

function removeOldestSteps() {
  const removed = currentSession.order.splice(0, MAX_STEPS / 10);
  for (const item of removed) currentSession.numbers.delete(item.step.number);
  currentSession.from = Math.max(0, currentSession.from - removed.length);
}

// -- what is streamed: it stands at the end until the step comes that it becomes ----------------------------------------

const LIVE_ENDING_KINDS = new Set(["text", "thinking", "call", "result", "error"]);
const MAX_LIVE_CHARACTERS = 20000; // of a streamed text; its step says all of it

/** The call that a nested agent's step serves; 0 for the main one. */
function getParentCall(step) {
  return step.depth ? step.above || 0 : 0;
}

function appendLive({ above, kind, text, name, begin }) {
  let open = currentSession.live.findLast((part) => part.above === above);
  if (!open || begin || open.kind !== kind) {
    if (!begin && !text) return;
    open = { above, kind, text: "", node: null, textNode: document.createTextNode("") };
    open.node = createLiveStep(open, name);
    currentSession.live.push(open);
    find("live").append(open.node);
  }
  if (!text || open.text.length > MAX_LIVE_CHARACTERS) return;
  open.text += text;
  if (kind === "thinking") open.textNode.data = open.text.slice(-160).replace(/\s+/g, " ");
  else open.textNode.appendData(text);
  open.node.hidden = false;
}

function createLiveStep({ above, kind, textNode }, name) {
  const depth = above ? " nested" : "";
  if (kind === "call") return element("article", { class: `step call going${depth}` }, element("div", { class: "summary" }, element("span", { class: "sign" }, "…"), element("span", { class: "name" }, name || "A call")));
  if (kind === "thinking") return element("article", { class: `step thinking going${depth}`, hidden: true }, element("div", { class: "summary" }, element("span", { class: "name" }, "Thinking"), element("span", { class: "main" }, element("bdi", null, textNode))));
  return element("article", { class: `step text growing${depth}`, hidden: true }, element("div", { class: "body prose" }, element("div", { class: "said", dir: "auto" }, textNode)));
}

/** What was streamed is a step now: all of it, or that of one agent. */
function removeLive(above = null) {
  currentSession.live = currentSession.live.filter((open) => {
    if (above !== null && open.above !== above) return true;
    open.node.remove();
    return false;
  });
}

// -- the end of the session is where a reader is, until the reader goes elsewhere ----------------------------------

function scrollToEnd() {
  const scroll = find("scroll");
  if (!scroll) return;
  if (currentSession.follow) scroll.scrollTop = scroll.scrollHeight;
  else find("latest").hidden = false;
}

function listenToScroll() {
  const scroll = find("scroll");
  scroll.addEventListener("scroll", () => {
    if (scroll !== find("scroll")) return; // it was left, and its last event comes late
    currentSession.follow = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < NEAR_END_PX;
    if (currentSession.follow) find("latest").hidden = true;
  }, { passive: true });
  const resizeObserver = new ResizeObserver(() => currentSession.synced && currentSession.follow && scrollToEnd());
  for (const name of ["scroll", "steps", "live"]) resizeObserver.observe(find(name));
  find("earlier").addEventListener("click", showEarlier);
  find("latest").addEventListener("click", () => {
    currentSession.follow = true;
    if (currentSession.order.length - currentSession.from > MAX_DRAWN_STEPS) drawSteps();
    scrollToEnd();
    find("latest").hidden = true;
    scroll.focus({ preventScroll: true });
  });
  find("stop").addEventListener("click", stopSession);
}
