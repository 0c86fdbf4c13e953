// The list of sessions: what waits for a person first, then what works, then what is idle, then what has ended.

const GROUPS = [["asks", "Waiting for you"], ["works", "Working"], ["idle", "Idle"], ["ended", "Ended"]];
const LOOK_MS = 2000; // between two looks at the list while it is seen
const LOOK_HIDDEN_MS = 10000; // while it is not: for notifications
const LISTED_ENDED = 50; // of those that have ended; a filter finds the others

const list = { sessions: [], vendors: [], drawn: "", timer: 0, looking: false, loaded: false, all: false, waits: new Map() };

/** The group of a session: `state` and `status` are the real claude's words. */
function groupOf(session) {
  if (session.alive === false || (!session.status && ["done", "failed", "stopped"].includes(session.state))) return "ended";
  if (session.status === "waiting") return "asks";
  return session.status === "busy" ? "works" : "idle";
}

function nameOf(session) {
  return oneLine(session.name || session.title || "", 120) || `Session ${plain(session.id || "")}`;
}

const SIGNS = { asks: ["?", "waits for you"], works: ["•", "working"], idle: ["✓", "idle"], ended: ["–", "ended"], failed: ["✗", "failed"], stopped: ["■", "stopped"] };

const BLOCKED = ["!", "needs you"]; // the session is idle, and its work is not done

function signOf(session) {
  const group = groupOf(session);
  const kind = session.state === "failed" && group !== "asks" && group !== "works" ? "failed" : group === "ended" && session.state === "stopped" ? "stopped" : group;
  const blocked = kind === "idle" && session.state === "blocked";
  return [kind, ...(blocked ? BLOCKED : SIGNS[kind])];
}

/** What a session waits for or does, in a line. */
function doing(session) {
  if (groupOf(session) === "asks") return oneLine(session.needs || session.waitingFor || "a question");
  if (session.state === "blocked") return oneLine(session.needs || session.detail || "");
  return oneLine(session.detail || session.needs || "");
}

function sessionEntry(session, now) {
  const [kind, sign, words] = signOf(session);
  const vendor = oneLine(session.vendor || "", 40);
  const moment = session.updated || session.started || session.created;
  return element(
    "li",
    { class: `entry ${kind}` },
    element(
      "a",
      { href: `#s/${encodeURIComponent(session.id)}`, "aria-current": shown.id === session.id ? "page" : null, "data-id": session.id },
      element("span", { class: "sign", role: "img", "aria-label": words }, sign),
      element("span", { class: "name", dir: "auto" }, nameOf(session)),
      element("span", { class: "age" }, moment ? ago(moment, now) : ""),
      element("span", { class: "what", dir: "auto" }, doing(session) || words),
      element("span", { class: "where" }, [vendor, lastPart(session.cwd)].filter(Boolean).join(" · ")),
    ),
  );
}

function found(session, words) {
  return [session.id, session.name, session.vendor, session.cwd, session.needs, session.detail].some((text) => typeof text === "string" && text.toLowerCase().includes(words));
}

/** Draw the list, unless it would look the same; the focus stays where it is. */
function drawList() {
  const words = find("filter").value.trim().toLowerCase();
  const now = Date.now();
  const sessions = words ? list.sessions.filter((session) => found(session, words)) : list.sessions;
  const looks = JSON.stringify([sessions, shown.id, words, list.all, list.loaded, Math.floor(now / 30000)]);
  if (looks === list.drawn) return;
  list.drawn = looks;
  const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.id : null;
  const groups = GROUPS.map(([kind, title]) => {
    const all = sessions.filter((session) => groupOf(session) === kind).sort((one, other) => (other.started || 0) - (one.started || 0));
    const some = kind === "ended" && !words && !list.all ? all.slice(0, LISTED_ENDED) : all;
    if (!all.length) return "";
    const more = all.length > some.length ? element("button", { type: "button", class: "more", onclick: () => ((list.all = true), drawList()) }, `Show ${grouped(all.length - some.length)} more`) : "";
    return element("section", { class: kind }, element("h2", null, title, element("small", null, ` ${grouped(all.length)}`)), element("ul", null, some.map((session) => sessionEntry(session, now))), more);
  });
  find("list").replaceChildren(...groups.filter(Boolean));
  if (!sessions.length && list.loaded) find("list").append(noSessions(words));
  if (focused) {
    const again = [...document.querySelectorAll("#list a")].find((link) => link.dataset.id === focused);
    if (again) again.focus({ preventScroll: true });
  }
  const asking = list.sessions.filter((session) => groupOf(session) === "asks").length;
  document.title = `${asking ? `(${asking}) ` : ""}${shown.id ? shownName() : "Sessions"}`;
}

function noSessions(words) {
  if (words) return element("p", { class: "none" }, `No session has “${words}”.`);
  return element("p", { class: "none" }, "No session yet. ", element("a", { href: "#new" }, "Start one"), ", or type ", element("code", null, 'claude --bg "…"'), " in a terminal.");
}

/** Look at the list now, and again after a while. */
async function look() {
  if (list.looking) return;
  list.looking = true;
  clearTimeout(list.timer);
  try {
    const told = await ask("GET", "/sessions");
    list.sessions = Array.isArray(told) ? told : told.sessions || [];
    if (list.loaded && document.body.dataset.view === "none" && Boolean(list.sessions.length) !== list.some) showNothing();
    list.some = Boolean(list.sessions.length);
    list.loaded = true;
    reached(true);
    if (!list.vendors.length) await aboutMe();
    notifyOfNew();
    drawList();
    const now = list.sessions.find((session) => session.id === shown.id);
    if (now && now.alive && shown.stream && shown.stream.state === "parked" && !document.hidden) shown.stream.again();
    if (now && !now.alive && shown.facts.alive === false) Object.assign(shown.facts, now), drawHead();
  } catch (refused) {
    if (refused.status !== 401) reached(false);
  } finally {
    list.looking = false;
    if (document.body.dataset.view !== "login") list.timer = setTimeout(look, document.hidden ? LOOK_HIDDEN_MS : LOOK_MS);
  }
}

// -- notifications -----------------------------------------------------------------------------------------------

const notes = { wanted: false, worker: null };

/** Notify of what waits since the last look, while nobody looks at this page. */
function notifyOfNew() {
  const before = list.waits;
  list.waits = new Map(list.sessions.map((session) => [session.id, groupOf(session)]));
  for (const session of list.sessions) {
    const group = groupOf(session);
    const was = before.get(session.id);
    if (was === undefined || was === group) continue;
    if (group === "asks") notify(session, `${nameOf(session)} asks`, doing(session));
    else if (was === "works" || was === "asks") notifyOfEnd(session, was);
  }
}

/** Notify of a turn that is over, or that stopped because nobody answered its question in time. */
function notifyOfEnd(session, was) {
  const { state } = session;
  if (was === "asks" && state !== "blocked" && state !== "failed") return; // somebody answered
  if (groupOf(session) === "works") return;
  notify(session, `${nameOf(session)} ${state === "failed" ? "failed" : state === "blocked" ? "needs you" : "is done"}`, doing(session));
}

function notify(session, title, body) {
  if (!notes.wanted || !document.hidden || !("Notification" in window) || Notification.permission !== "granted") return;
  const options = { body: body.slice(0, 160), tag: `shim-${session.id}`, data: { id: session.id } };
  if (notes.worker) {
    notes.worker.showNotification(title.slice(0, 100), options).catch(() => {});
    return;
  }
  try {
    const note = new Notification(title.slice(0, 100), options);
    note.onclick = () => {
      window.focus();
      location.hash = `#s/${encodeURIComponent(session.id)}`;
      note.close();
    };
  } catch {
    // A phone's browser takes them from a worker only, and the worker needs TLS or this machine.
  }
}

/** The one script that the page's rules let it begin. */
function workerAddress() {
  const address = "/assets/worker.js";
  return window.trustedTypes ? trustedTypes.createPolicy("worker", { createScriptURL: () => address }).createScriptURL(address) : address;
}

async function listenToBell() {
  const bell = find("bell");
  if (!("Notification" in window)) return;
  bell.hidden = false;
  if ("serviceWorker" in navigator && isSecureContext) {
    notes.worker = await navigator.serviceWorker.register(workerAddress()).catch(() => null);
  }
  const draw = () => {
    notes.wanted = Notification.permission === "granted" && kept(localStorage, "bell") === "yes";
    bell.setAttribute("aria-pressed", String(notes.wanted));
    bell.title = notes.wanted ? "Notifications are on" : Notification.permission === "denied" ? "The browser forbids notifications of this page" : "Notify me of questions";
  };
  bell.addEventListener("click", async () => {
    const allowed = await Notification.requestPermission();
    keep(localStorage, "bell", allowed === "granted" && !notes.wanted ? "yes" : "");
    draw();
    tell(bell.title);
  });
  draw();
}
