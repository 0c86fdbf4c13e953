// The steps of the session that is shown, and what is streamed until it is one.

const DRAWN = 200; // steps that are drawn at first, and so many more at each "show earlier"
const DRAWN_MOST = 600; // at the end of the session; then the oldest are taken away again, to `DRAWN`
const KEPT = 20000; // steps that the page keeps; as many as an exported page has
const GROUP = 20; // steps that are laid out together
const NEAR_END = 120; // points: who is so near to the end goes on with it

/** What the page knows of the steps: none yet. `from` is the first that is drawn, `left` how many the server left out. */
function noSteps() {
  return { order: [], numbers: new Map(), from: 0, left: 0, began: 0, synced: false, live: [] };
}

/** A step's time: of the day, where that is known. */
function stamp(step) {
  const at = shown.began ? shown.began + step.at : 0;
  const two = (number) => String(number).padStart(2, "0");
  const day = new Date(at);
  return element("time", { class: "when", datetime: at ? day.toISOString() : null }, at ? `${two(day.getHours())}:${two(day.getMinutes())}` : clock(step.at));
}

/** A step that is new, or that is not any more what it was. */
function takeStep(step) {
  if (ENDS_LIVE.has(step.kind)) dropLive(step.kind === "result" ? null : nestedIn(step));
  const known = shown.numbers.get(step.number);
  if (known) return changeStep(known, step);
  const item = { step, node: null, details: null, body: null, fill: null, shown: -1, touched: false };
  shown.numbers.set(step.number, item);
  const last = shown.order[shown.order.length - 1];
  if (!shown.synced || !last || last.step.number < step.number) shown.order.push(item);
  else {
    shown.order.splice(shown.order.findIndex((other) => other.step.number > step.number), 0, item);
    if (shown.synced) drawSteps(shown.order.length - shown.from);
    return;
  }
  if (shown.order.length > KEPT) forgetOldest();
  if (!shown.synced) return;
  appendStep(item);
  announce(step);
}

/** Tell who hears the page what is new, when it is whole. */
function announce(step) {
  if (step.depth) return;
  if (step.kind === "text") tell(oneLine(textOf(step.trees || []), 300));
  else if (step.kind === "error") tell(`Error: ${oneLine(whole(step.text), 300)}`);
  else if (step.kind === "call") tell(oneLine(`${step.name} ${step.main || ""}`, 120));
}

function changeStep(item, step) {
  const was = item.node;
  const unfolded = item.touched && item.details ? item.details.open : null;
  Object.assign(item, { step, node: null, details: null, body: null, fill: null });
  if (!was) return;
  drawStep(item);
  if (unfolded !== null && item.details) item.details.open = unfolded;
  const focused = was.contains(document.activeElement);
  was.replaceWith(item.node);
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
  if (!group || group.childElementCount >= GROUP || !group.classList.contains("group")) {
    group = element("div", { class: "group" });
    steps.append(group);
  }
  group.append(drawStep(item));
  if (shown.follow && shown.order.length - shown.from > DRAWN_MOST) drawSteps();
}

/** Draw the last steps anew, and no others. */
function drawSteps(most = DRAWN) {
  shown.from = Math.max(0, shown.order.length - most);
  for (const item of shown.order) item.node = null;
  const groups = groupsOf(shown.from, shown.order.length);
  find("steps").replaceChildren(...groups);
  if (!shown.order.length) find("steps").append(element("p", { class: "none", id: "loading" }, noStepsText()));
  drawEarlier();
}

/** Return the text for a session without steps: the reason if the session failed before its first line. */
function noStepsText() {
  const { facts } = shown;
  if (facts.state === "failed" && facts.detail) return `The session failed before its first line: ${oneLine(facts.detail, 500)}`;
  return "Nothing was said yet.";
}

function groupsOf(from, to) {
  const groups = [];
  for (let at = from; at < to; at += GROUP) {
    groups.push(element("div", { class: "group" }, shown.order.slice(at, Math.min(at + GROUP, to)).map(drawStep)));
  }
  return groups;
}

function drawEarlier() {
  const earlier = find("earlier");
  earlier.hidden = !shown.from && !shown.left;
  earlier.textContent = `Show earlier (${grouped(shown.from + shown.left)} more)`;
}

/** More of what was before; what is seen stays where it is. */
function showEarlier() {
  if (!shown.from && shown.left) {
    dropLive();
    Object.assign(shown, noSteps());
    find("earlier").textContent = "Loading …";
    return openStream(KEPT); // all that the server tells; the end of it is drawn first
  }
  const scroll = find("scroll");
  const to = shown.from;
  const below = scroll.scrollHeight - scroll.scrollTop;
  shown.from = Math.max(0, to - DRAWN);
  shown.follow = false;
  find("steps").prepend(...groupsOf(shown.from, to));
  scroll.scrollTop = scroll.scrollHeight - below;
  drawEarlier();
  tell(`${counted(to - shown.from, "earlier step")} shown`);
  shown.order[to - 1].node.focus({ preventScroll: true });
}

function forgetOldest() {
  const gone = shown.order.splice(0, KEPT / 10);
  for (const item of gone) shown.numbers.delete(item.step.number);
  shown.from = Math.max(0, shown.from - gone.length);
}

// -- what is streamed: it stands at the end until the step comes that it becomes ----------------------------------------

const ENDS_LIVE = new Set(["text", "thinking", "call", "result", "error"]);
const LIVE_CHARACTERS = 20000; // of a streamed text; its step says all of it

/** The call that a nested agent's step serves; 0 for the main one. */
function nestedIn(step) {
  return step.depth ? step.above || 0 : 0;
}

function growLive({ above, kind, text, name, begin }) {
  let open = shown.live.findLast((one) => one.above === above);
  if (!open || begin || open.kind !== kind) {
    if (!begin && !text) return;
    open = { above, kind, text: "", node: null, words: document.createTextNode("") };
    open.node = liveStep(open, name);
    shown.live.push(open);
    find("live").append(open.node);
  }
  if (!text || open.text.length > LIVE_CHARACTERS) return;
  open.text += text;
  if (kind === "thinking") open.words.data = open.text.slice(-160).replace(/\s+/g, " ");
  else open.words.appendData(text);
  open.node.hidden = false;
}

function liveStep({ above, kind, words }, name) {
  const depth = above ? " nested" : "";
  if (kind === "call") return element("article", { class: `step call going${depth}` }, element("div", { class: "summary" }, element("span", { class: "sign" }, "…"), element("span", { class: "name" }, name || "A call")));
  if (kind === "thinking") return element("article", { class: `step thinking going${depth}`, hidden: true }, element("div", { class: "summary" }, element("span", { class: "name" }, "Thinking"), element("span", { class: "main" }, element("bdi", null, words))));
  return element("article", { class: `step text growing${depth}`, hidden: true }, element("div", { class: "body prose" }, element("div", { class: "said", dir: "auto" }, words)));
}

/** What was streamed is a step now: all of it, or that of one agent. */
function dropLive(above = null) {
  shown.live = shown.live.filter((open) => {
    if (above !== null && open.above !== above) return true;
    open.node.remove();
    return false;
  });
}

// -- the end of the session is where a reader is, until the reader goes elsewhere ----------------------------------

function endSteps() {
  const scroll = find("scroll");
  if (!scroll) return;
  if (shown.follow) scroll.scrollTop = scroll.scrollHeight;
  else find("latest").hidden = false;
}

function listenToScroll() {
  const scroll = find("scroll");
  scroll.addEventListener("scroll", () => {
    if (scroll !== find("scroll")) return; // it was left, and its last event comes late
    shown.follow = scroll.scrollHeight - scroll.scrollTop - scroll.clientHeight < NEAR_END;
    if (shown.follow) find("latest").hidden = true;
  }, { passive: true });
  const grown = new ResizeObserver(() => shown.synced && shown.follow && endSteps());
  for (const name of ["scroll", "steps", "live"]) grown.observe(find(name));
  find("earlier").addEventListener("click", showEarlier);
  find("latest").addEventListener("click", () => {
    shown.follow = true;
    if (shown.order.length - shown.from > DRAWN_MOST) drawSteps();
    endSteps();
    find("latest").hidden = true;
    scroll.focus({ preventScroll: true });
  });
  find("stop").addEventListener("click", stopSession);
}
