// One session as it happens: its steps, what it is called, and who drives it.

const TOLD = 500; // steps of the past that the page asks for at first
const DRAWN = 200; // steps that are drawn at first, and so many more at each "show earlier"
const DRAWN_MOST = 600; // at the end of the session; then the oldest are taken away again, to `DRAWN`
const KEPT = 20000; // steps that the page keeps; as many as an exported page has
const GROUP = 20; // steps that are laid out together
const NEAR_END = 120; // points: who is so near to the end goes on with it

const shown = { id: "", facts: {}, stream: null };

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

function shownName() {
  return nameOf({ ...shown.facts, id: shown.id });
}

/** Leave the session that is shown. */
function leaveSession() {
  if (shown.stream) shown.stream.close();
  Object.assign(shown, { id: "", facts: {}, stream: null, follow: true }, noSteps());
  forgetQuestions();
}

function showSession(id) {
  leaveSession();
  shown.id = id;
  shown.facts = { ...(list.sessions.find((session) => session.id === id) || {}) };
  find("main").replaceChildren(sessionFrame());
  drawHead();
  listenToComposer();
  listenToScroll();
  find("steps").append(element("p", { class: "none", id: "loading" }, "Loading the session …"));
  openStream();
}

/** Listen to the session; `last` is how many steps of the past are wanted. */
function openStream(last = TOLD) {
  const { id } = shown;
  if (shown.stream) shown.stream.close();
  shown.stream = new Stream(`/sessions/${encodeURIComponent(id)}/steps?last=${last}`, heardOfSession, (connected, refused) => {
    if (shown.id !== id) return;
    if (refused && refused.status === 404) return showWrong("There is no such session", "It was removed, or the address is not right.");
    if (refused && refused.status !== 401) return showWrong("The session cannot be shown", refused.message);
    if (!refused) reached(connected);
  });
}

function sessionFrame() {
  return element(
    "section",
    { class: "session", "aria-labelledby": "name" },
    element(
      "div",
      { class: "top" },
      element("a", { class: "button back", href: "#", "aria-label": "All sessions", title: "All sessions (s)" }, "‹"),
      element("div", { class: "title" }, element("h1", { id: "name" }), element("p", { class: "over" }, element("span", { class: "chip", id: "chip" }), element("span", { id: "about" }))),
      element("button", { type: "button", id: "stop", class: "quiet" }, "Stop"),
    ),
    element(
      "div",
      { id: "scroll", tabindex: 0, role: "region", "aria-label": "What was said and done" },
      element("button", { type: "button", id: "earlier", class: "more", hidden: true }),
      element("div", { id: "steps" }),
      element("div", { id: "live" }),
    ),
    element("div", { class: "dock" }, element("button", { type: "button", id: "latest", class: "button", hidden: true }, "↓ Latest"), element("div", { id: "asked" }), element("p", { id: "settled", hidden: true }), composerForm()),
  );
}

/** The head: what the session is, what it does, who drives. */
function drawHead() {
  const { facts } = shown;
  if (!find("name")) return;
  const listed = list.sessions.find((session) => session.id === shown.id);
  if (listed) for (const key of ["alive", "state", "status", "waitingFor", "needs", "detail"]) listed[key] = facts[key];
  find("name").textContent = shownName();
  find("name").title = shownName();
  const about = find("about");
  const cost = facts.totals && facts.totals.cost ? `$${facts.totals.cost.toFixed(4)}` : "";
  about.textContent = [facts.vendor, facts.model, cost, facts.cwd].map((text) => oneLine(text || "")).filter(Boolean).join(" · ");
  about.title = oneLine(facts.cwd || "", 1000);
  const [kind, , words] = signOf(facts);
  const chip = find("chip");
  chip.className = `chip ${kind}`;
  chip.textContent = { asks: "Waits for you", works: "Working", idle: "Idle", ended: "Ended", failed: "Failed", stopped: "Stopped" }[kind];
  chip.title = doing(facts) || words;
  find("stop").hidden = groupOf(facts) === "ended";
  drawComposer();
  drawList();
}

// -- what the server says -----------------------------------------------------------------------------------------

const HEARD = {
  welcome(data) {
    const { state, ...facts } = data;
    Object.assign(shown.facts, facts, state, { alive: true });
    keepQuestions(data.questions || []);
    dropLive();
    drawHead();
  },
  about(data) {
    if (!shown.order.length) shown.left = data.left_out || 0;
    shown.began = shown.began || data.began || 0;
    shown.facts.title = data.title;
    drawHead();
  },
  step: takeStep,
  live: growLive,
  gap({ reason }) {
    dropLive();
    if (reason === "slow") return; // no step is missing
    Object.assign(shown, noSteps());
    find("steps").replaceChildren();
  },
  synced() {
    if (shown.synced) return;
    shown.synced = true;
    shown.order.sort((one, other) => one.step.number - other.step.number);
    drawSteps();
  },
  question: askPerson,
  settled(data) {
    if (data.how === "interrupt") dropLive();
    settleQuestion(data);
  },
  state(data) {
    const before = groupOf(shown.facts);
    Object.assign(shown.facts, data);
    if (before === "works" && groupOf(shown.facts) === "idle") tell("The turn is over");
    drawHead();
  },
  driver(data) {
    shown.facts.driver = data.client;
    drawComposer();
  },
  mode(data) {
    if (shown.facts.mode && shown.facts.mode !== data.mode) saySettled(`The permission mode is ${MODES[data.mode] || oneLine(data.mode, 40)} now`);
    shown.facts.mode = data.mode;
    drawComposer();
  },
  totals(data) {
    shown.facts.totals = data;
    if (data.model) shown.facts.model = shown.facts.model || data.model;
    drawHead();
  },
  bye() {
    const before = shown.facts.alive;
    Object.assign(shown.facts, { alive: false, status: null });
    dropLive();
    forgetQuestions();
    drawHead();
    if (before === false) return; // it was said already
    look();
    tell("The session has ended");
  },
};

function heardOfSession(event, data) {
  if (HEARD[event]) HEARD[event](data);
  if (shown.synced) endSteps();
}

// -- the steps ----------------------------------------------------------------------------------------------------

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
  if (!shown.order.length) find("steps").append(element("p", { class: "none", id: "loading" }, "Nothing was said yet."));
  drawEarlier();
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
  return element("article", { class: `step text growing${depth}`, hidden: true }, element("div", { class: "body prose" }, element("div", { class: "said" }, words)));
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
