// One session that is shown: what it is called, what it does, who drives it, and what the server says of it.

const TOLD = 500; // steps of the past that the page asks for at first

const shown = { id: "", facts: {}, stream: null };

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
  const state = { asks: "Waits for you", works: "Working", idle: "Idle", ended: "Ended", failed: "Failed", stopped: "Stopped" }[kind];
  chip.textContent = words === BLOCKED[1] ? "Needs you" : state;
  chip.title = doing(facts) || words;
  find("stop").hidden = watching() || groupOf(facts) === "ended";
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
