// The list of sessions: what waits for a person first, then what works, then what is idle, then what has ended.

const GROUPS = [["asks", "Waiting for you"], ["works", "Working"], ["idle", "Idle"], ["ended", "Ended"]];
const REFRESH_MS = 2000; // between two looks at the list while it is seen
const REFRESH_HIDDEN_MS = 10000; // while it is not: for notifications
const MAX_LISTED_ENDED = 50; // of those that have ended; a filter finds the others

const list = { sessions: [], vendors: [], signature: "", timer: 0, refreshing: false, loaded: false, showsAll: false, groups: new Map() };

/** The group of a session: `state` and `status` are the real claude's words. */
function getGroup(session) {
  if (session.alive === false || (!session.status && ["done", "failed", "stopped"].includes(session.state))) return "ended";
  if (session.status === "waiting") return "asks";
  return session.status === "busy" ? "works" : "idle";
}

function getSessionName(session) {
  return formatLine(session.name || session.title || "", 120) || `Session ${escapeControls(session.id || "")}`;
}

const SIGNS = { asks: ["?", "needs input"], works: ["•", "working"], idle: ["✓", "idle"], ended: ["–", "ended"], failed: ["✗", "failed"], stopped: ["■", "stopped"] };

const BLOCKED = ["!", "needs attention"]; // the session is idle, and its work is not done

function getSign(session) {
  const group = getGroup(session);
  const kind = session.state === "failed" && group !== "asks" && group !== "works" ? "failed" : group === "ended" && session.state === "stopped" ? "stopped" : group;
  const blocked = kind === "idle" && session.state === "blocked";
  return [kind, ...(blocked ? BLOCKED : SIGNS[kind])];
}

/** What a session waits for or does, in a line. */
function describeActivity(session) {
  if (getGroup(session) === "asks") return formatLine(session.needs || session.waitingFor || "a question");
  if (session.state === "blocked") return formatLine(session.needs || session.detail || "");
  return formatLine(session.detail || session.needs || "");
}

/** When a session changed last, in milliseconds since 1970; 0 if that is not known. */
function getLastChange(session) {
  return session.updated || session.started || session.created || 0;
}

/** The name of another machine, and whether it answers; "" for the server's machine. */
function formatMachine(session) {
  if (!session.machine) return "";
  return formatLine(session.machine, 40) + (session.away === null ? "" : " (away)");
}

function createEntry(session, now) {
  const [kind, sign, label] = getSign(session);
  const vendor = formatLine(session.vendor || "", 40);
  const moment = getLastChange(session);
  return element(
    "li",
    { class: `entry ${kind}` },
    element(
      "a",
      { href: `#s/${encodeURIComponent(session.id)}`, "aria-current": currentSession.id === session.id ? "page" : null, "data-id": session.id },
      element("span", { class: "sign", role: "img", "aria-label": label }, sign),
      element("span", { class: "name", dir: "auto" }, getSessionName(session)),
      element("span", { class: "age" }, moment ? formatAge(moment, now) : ""),
      element("span", { class: "what", dir: "auto" }, describeActivity(session) || label),
      element("span", { class: "where" }, [formatMachine(session), vendor, getLastPart(session.cwd)].filter(Boolean).join(" · ")),
    ),
  );
}

function matchesFilter(session, query) {
  return [session.id, session.name, session.machine, session.vendor, session.cwd, session.needs, session.detail].some((text) => typeof text === "string" && text.toLowerCase().includes(query));
}

/** Draw the list, unless it would look the same; the focus stays where it is. */
function drawList() {
  const query = find("filter").value.trim().toLowerCase();
  const now = Date.now();
  const sessions = query ? list.sessions.filter((session) => matchesFilter(session, query)) : list.sessions;
  const signature = JSON.stringify([sessions, currentSession.id, query, list.showsAll, list.loaded, Math.floor(now / 30000)]);
  if (signature === list.signature) return;
  list.signature = signature;
  const focused = document.activeElement && document.activeElement.dataset ? document.activeElement.dataset.id : null;
  const groups = GROUPS.map(([kind, title]) => {
    const members = sessions.filter((session) => getGroup(session) === kind).sort((first, second) => getLastChange(second) - getLastChange(first));
    const listed = kind === "ended" && !query && !list.showsAll ? members.slice(0, MAX_LISTED_ENDED) : members;
    if (!members.length) return "";
    const more = members.length > listed.length ? element("button", { type: "button", class: "more", onclick: () => ((list.showsAll = true), drawList()) }, `Show ${grouped(members.length - listed.length)} more`) : "";
    return element("section", { class: kind }, element("h2", null, title, element("small", null, ` ${grouped(members.length)}`)), element("ul", null, listed.map((session) => createEntry(session, now))), more);
  });
  find("list").replaceChildren(...groups.filter(Boolean));
  if (!sessions.length && list.loaded) find("list").append(createEmptyNote(query));
  if (focused) {
    const sameLink = [...document.querySelectorAll("#list a")].find((link) => link.dataset.id === focused);
    if (sameLink) sameLink.focus({ preventScroll: true });
  }
  const waitingCount = list.sessions.filter((session) => getGroup(session) === "asks").length;
  document.title = `${waitingCount ? `(${waitingCount}) ` : ""}${currentSession.id ? getCurrentName() : "Sessions"}`;
}

function createEmptyNote(query) {
  if (query) return element("p", { class: "none" }, `No session matches “${query}”.`);
  return element("p", { class: "none" }, "No sessions yet. ", element("a", { href: "#new" }, "Start one"), ", or type ", element("code", null, 'claude --bg "…"'), " in a terminal.");
}

/** Look at the list now, and again after a while. */
async function refreshList() {
  if (list.refreshing) return;
  list.refreshing = true;
  clearTimeout(list.timer);
  try {
    const response = await sendRequest("GET", "/sessions");
    list.sessions = Array.isArray(response) ? response : response.sessions || [];
    if (list.loaded && document.body.dataset.view === "none" && Boolean(list.sessions.length) !== list.hasSessions) showNoSession();
    list.hasSessions = Boolean(list.sessions.length);
    list.loaded = true;
    setConnected(true);
    if (!list.vendors.length) await loadAccess();
    notifyOfChanges();
    drawList();
    const listedSession = list.sessions.find((session) => session.id === currentSession.id);
    if (listedSession && listedSession.alive && currentSession.stream && currentSession.stream.state === "parked" && !document.hidden) currentSession.stream.reconnect();
    if (listedSession && !listedSession.alive && currentSession.facts.alive === false) Object.assign(currentSession.facts, listedSession), drawHead();
  } catch (error) {
    if (error.status !== 401) setConnected(false);
  } finally {
    list.refreshing = false;
    if (document.body.dataset.view !== "login") list.timer = setTimeout(refreshList, document.hidden ? REFRESH_HIDDEN_MS : REFRESH_MS);
  }
}

// -- notifications -----------------------------------------------------------------------------------------------

const notifications = { enabled: false, worker: null };

/** Notify of what waits since the last look, while nobody looks at this page. */
function notifyOfChanges() {
  const before = list.groups;
  list.groups = new Map(list.sessions.map((session) => [session.id, getGroup(session)]));
  for (const session of list.sessions) {
    const group = getGroup(session);
    const previousGroup = before.get(session.id);
    if (previousGroup === undefined || previousGroup === group) continue;
    if (group === "asks") notifyPerson(session, `${getSessionName(session)} asks`, describeActivity(session));
    else if (previousGroup === "works" || previousGroup === "asks") notifyOfEnd(session, previousGroup);
  }
}

/** Notify of a turn that is over, or that stopped because nobody answered its question in time. */
function notifyOfEnd(session, previousGroup) {
  const { state } = session;
  if (previousGroup === "asks" && state !== "blocked" && state !== "failed") return; // somebody answered
  if (getGroup(session) === "works") return;
  notifyPerson(session, `${getSessionName(session)} ${state === "failed" ? "failed" : state === "blocked" ? "needs attention" : "is done"}`, describeActivity(session));
}

function notifyPerson(session, title, body) {
  if (!notifications.enabled || !document.hidden || !("Notification" in window) || Notification.permission !== "granted") return;
  const options = { body: body.slice(0, 160), tag: `shim-${session.id}`, data: { id: session.id } };
  if (notifications.worker) {
    notifications.worker.showNotification(title.slice(0, 100), options).catch(() => {});
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
function getWorkerUrl() {
  const address = "/assets/worker.js";
  return window.trustedTypes ? trustedTypes.createPolicy("worker", { createScriptURL: () => address }).createScriptURL(address) : address;
}

async function listenToBell() {
  const bell = find("bell");
  if (!("Notification" in window)) return;
  bell.hidden = false;
  if ("serviceWorker" in navigator && isSecureContext) {
    notifications.worker = await navigator.serviceWorker.register(getWorkerUrl()).catch(() => null);
  }
  const draw = () => {
    notifications.enabled = Notification.permission === "granted" && readStored(localStorage, "bell") === "yes";
    bell.setAttribute("aria-pressed", String(notifications.enabled));
    bell.title = notifications.enabled ? "Notifications are on" : Notification.permission === "denied" ? "The browser blocks notifications from this page" : "Notify me of permission prompts";
  };
  bell.addEventListener("click", async () => {
    const allowed = await Notification.requestPermission();
    storeValue(localStorage, "bell", allowed === "granted" && !notifications.enabled ? "yes" : "");
    draw();
    tell(bell.title);
  });
  draw();
}
