// One session that is shown: what it is called, what it does, who drives it, and what the server says of it.

const INITIAL_PAST_STEPS = 500; // steps of the past that the page asks for at first

const currentSession = { id: "", facts: {}, stream: null };

function getCurrentName() {
  return getSessionName({ ...currentSession.facts, id: currentSession.id });
}

/** Leave the session that is shown. */
function leaveSession() {
  if (currentSession.stream) currentSession.stream.close();
  Object.assign(currentSession, { id: "", facts: {}, stream: null, follow: true }, createEmptySteps());
  clearQuestions();
}

function showSession(id) {
  leaveSession();
  currentSession.id = id;
  currentSession.facts = { ...(list.sessions.find((session) => session.id === id) || {}) };
  find("main").replaceChildren(createSessionFrame());
  drawHead();
  listenToComposer();
  listenToScroll();
  find("steps").append(element("p", { class: "none", id: "loading" }, "Loading the session …"));
  openStream();
}

/** Listen to the session; `last` is how many steps of the past are wanted. */
function openStream(last = INITIAL_PAST_STEPS) {
  const { id } = currentSession;
  if (currentSession.stream) currentSession.stream.close();
  currentSession.stream = new Stream(`/sessions/${encodeURIComponent(id)}/steps?last=${last}`, handleFrame, (connected, error) => {
    if (currentSession.id !== id) return;
    if (error && error.status === 404) return showError("Session not found", "It was removed, or the address is wrong.");
    if (error && error.status !== 401) return showError("The session cannot be shown", error.message);
    if (!error) setConnected(connected);
  });
}

function createSessionFrame() {
  return element(
    "section",
    { class: "session", "aria-labelledby": "name" },
    element(
      "div",
      { class: "top" },
      element("a", { class: "button back", href: "#", "aria-label": "All sessions", title: "All sessions (s)" }, "‹"),
      element("div", { class: "title" }, element("h1", { id: "name" }), element("p", { class: "over" }, element("span", { class: "chip", id: "chip" }), element("span", { id: "about" }))),
      element("button", { type: "button", id: "stop", class: "quiet" }, "End session"),
    ),
    element(
      "div",
      { id: "scroll", tabindex: 0, role: "region", "aria-label": "Session history" },
      element("button", { type: "button", id: "earlier", class: "more", hidden: true }),
      element("div", { id: "steps" }),
      element("div", { id: "live" }),
    ),
    element("div", { class: "dock" }, element("button", { type: "button", id: "latest", class: "button", hidden: true }, "↓ Latest"), element("div", { id: "asked" }), element("p", { id: "settled", hidden: true }), createComposer()),
  );
}

/** The head: what the session is, what it does, who drives. */
function drawHead() {
  const { facts } = currentSession;
  if (!find("name")) return;
  const listedSession = list.sessions.find((session) => session.id === currentSession.id);
  if (listedSession) for (const key of ["alive", "state", "status", "waitingFor", "needs", "detail"]) listedSession[key] = facts[key];
  find("name").textContent = getCurrentName();
  find("name").title = getCurrentName();
  const about = find("about");
  const cost = facts.totals && facts.totals.cost ? `$${facts.totals.cost.toFixed(4)}` : "";
  about.textContent = [facts.vendor, facts.model, cost, facts.cwd].map((text) => formatLine(text || "")).filter(Boolean).join(" · ");
  about.title = formatLine(facts.cwd || "", 1000);
  const [kind, , label] = getSign(facts);
  const chip = find("chip");
  chip.className = `chip ${kind}`;
  const state = { asks: "Needs input", works: "Working", idle: "Idle", ended: "Ended", failed: "Failed", stopped: "Stopped" }[kind];
  chip.textContent = label === BLOCKED[1] ? "Needs attention" : state;
  chip.title = describeActivity(facts) || label;
  find("stop").hidden = isWatchOnly() || getGroup(facts) === "ended";
  drawComposer();
  drawList();
}

// -- what the server says -----------------------------------------------------------------------------------------

const FRAME_HANDLERS = {
  welcome(data) {
    const { state, ...facts } = data;
    Object.assign(currentSession.facts, facts, state, { alive: true });
    removeOtherQuestions(data.questions || []);
    removeLive();
    drawHead();
  },
  about(data) {
    if (!currentSession.order.length) currentSession.left = data.left_out || 0;
    currentSession.startedAt = currentSession.startedAt || data.began || 0;
    currentSession.facts.title = data.title;
    drawHead();
  },
  step: addStep,
  live: appendLive,
  gap({ reason }) {
    removeLive();
    if (reason === "slow") return; // no step is missing
    Object.assign(currentSession, createEmptySteps());
    find("steps").replaceChildren();
  },
  synced() {
    if (currentSession.synced) return;
    currentSession.synced = true;
    currentSession.order.sort((first, second) => first.step.number - second.step.number);
    drawSteps();
  },
  question: addQuestion,
  settled(data) {
    if (data.how === "interrupt") removeLive();
    settleQuestion(data);
  },
  state(data) {
    const before = getGroup(currentSession.facts);
    Object.assign(currentSession.facts, data);
    if (before === "works" && getGroup(currentSession.facts) === "idle") tell("The turn has ended");
    drawHead();
  },
  driver(data) {
    currentSession.facts.driver = data.client;
    drawComposer();
  },
  mode(data) {
    if (currentSession.facts.mode && currentSession.facts.mode !== data.mode) showOutcome(`Permission mode: ${MODES[data.mode] || formatLine(data.mode, 40)}`);
    currentSession.facts.mode = data.mode;
    drawComposer();
  },
  totals(data) {
    currentSession.facts.totals = data;
    if (data.model) currentSession.facts.model = currentSession.facts.model || data.model;
    drawHead();
  },
  bye() {
    const before = currentSession.facts.alive;
    Object.assign(currentSession.facts, { alive: false, status: null });
    removeLive();
    clearQuestions();
    drawHead();
    if (before === false) return; // it was said already
    refreshList();
    tell("The session has ended");
  },
};

function handleFrame(event, data) {
  if (FRAME_HANDLERS[event]) FRAME_HANDLERS[event](data);
  if (currentSession.synced) scrollToEnd();
}
