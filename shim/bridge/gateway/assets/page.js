// The page: where it is, whether the server is there, keys and colours, and the beginning.

const REST_MS = 30000; // that nobody looks before the page lets go of its stream; the list goes on, for notifications

// What an address shows: "" the list, "new" the start of a session, "s/ID" a session.
function followAddress() {
  const address = location.hash.slice(1);
  if (takeToken(address)) return;
  if (document.body.dataset.view === "login") return;
  const match = /^s\/([0-9A-Za-z%._-]{1,100})$/.exec(address);
  const id = match ? decodeAddress(match[1]) : "";
  if (id && id === currentSession.id) return;
  const before = document.body.dataset.view;
  if (id) {
    document.body.dataset.view = "session";
    showSession(id);
  } else if (address === "new") showStartForm();
  else showNoSession();
  drawList();
  if (id || before === "session" || before === "begin") find(id ? "main" : address === "new" ? "prompt" : "list").focus({ preventScroll: true });
}

// A token in the address without `token=`: about 43 characters, or the time and the signature of a printed address.
// A token with a missing part matches too, so that it is removed from the address.
const BARE_TOKEN = /^(?:[A-Za-z0-9_-]{30,50}|[0-9a-f]{6,10}\.[0-9a-f]{40,64})$/;

/** A part of an address without its escapes; as it is if they are wrong. */
function decodeAddress(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Exchange a token in the address (`#token=…`, or the token alone) for a cookie, and remove it from the history. */
function takeToken(address) {
  const text = decodeAddress(address).replace(/^[#?/\s]+|[/\s]+$/g, "");
  const token = new URLSearchParams(text).get("token") || (BARE_TOKEN.test(text) ? text : "");
  if (!token) return false;
  history.replaceState(null, "", location.pathname);
  exchangeToken(token.trim());
  return true;
}

/** Say whether the server is there; once it is again, streams go on at once. */
function setConnected(connected) {
  const line = find("line");
  if (connected === line.hidden) return;
  line.hidden = connected;
  line.textContent = connected ? "" : "Reconnecting… Your typed text is kept.";
  document.body.classList.toggle("away", !connected);
  if (connected) {
    tell("Reconnected");
    if (currentSession.stream) currentSession.stream.reconnect();
  }
}

function resumePage() {
  refreshList();
  if (currentSession.stream) currentSession.stream.reconnect();
}

// -- keys ------------------------------------------------------------------------------------------------------------

const KEYS = {
  "?": ["this list", showKeys],
  s: ["the list of sessions", () => (matchMedia("(max-width: 50rem)").matches ? (location.hash = "#") : (document.querySelector("#list a[aria-current], #list a") || find("list")).focus())],
  j: ["the next session", () => openNeighbour(1)],
  k: ["the previous session", () => openNeighbour(-1)],
  n: ["start a session", () => (location.hash = "#new")],
  "/": ["filter the sessions", () => find("filter").focus()],
  q: ["the open permission prompt", () => find("asked") && find("asked").firstElementChild && find("asked").firstElementChild.focus()],
  m: ["your message", () => find("text") && find("text").focus()],
  e: ["show earlier steps", () => find("earlier") && !find("earlier").hidden && showEarlier()],
};

function openNeighbour(offset) {
  const links = [...document.querySelectorAll("#list a")];
  const at = links.findIndex((link) => link.dataset.id === currentSession.id);
  const next = links[Math.max(0, Math.min(links.length - 1, at + offset))];
  if (next) location.hash = next.getAttribute("href");
}

function showKeys() {
  const dialog = find("keys");
  const single = element("input", { type: "checkbox", id: "single" });
  single.checked = readStored(localStorage, "keys") !== "off";
  single.addEventListener("change", () => storeValue(localStorage, "keys", single.checked ? "" : "off"));
  dialog.replaceChildren(
    element("h2", { id: "keys-title" }, "Keys"),
    element("dl", null, Object.entries(KEYS).map(([key, [description]]) => element("div", null, element("dt", null, element("kbd", null, key)), element("dd", null, description)))),
    element("dl", null, [["Enter", "send"], ["Shift Enter", "a new line"], ["Tab", "to the next control"]].map(([key, description]) => element("div", null, element("dt", null, element("kbd", null, key)), element("dd", null, description)))),
    element("label", { class: "option" }, single, element("span", null, "Enable single-key shortcuts")),
    element("div", { class: "tools" }, element("span", { class: "gap" }), element("button", { type: "button", class: "strong", onclick: () => dialog.close() }, "Close")),
  );
  if (!dialog.open) dialog.showModal();
}

async function logOut() {
  await sendRequest("POST", "/logout", {}).catch(() => null);
  proof.store(""); // without it the cookie opens nothing, should the server not have heard
  leaveSession();
  askForToken();
}

function listenToKeys() {
  document.addEventListener("keydown", (event) => {
    const typing = event.target.matches && event.target.matches("textarea, input, select");
    if (event.key === "Escape" && typing && event.target.id === "filter") {
      event.target.value = "";
      drawList();
      event.target.blur();
    }
    if (typing || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    const binding = KEYS[event.key];
    if (!binding || readStored(localStorage, "keys") === "off" || document.body.dataset.view === "login") return;
    event.preventDefault();
    binding[1]();
  });
}

function listenToTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const button = find("theme");
  const apply = () => {
    const chosen = readStored(localStorage, "theme");
    const dark = chosen ? chosen === "dark" : system.matches;
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    button.setAttribute("aria-pressed", String(dark));
    button.title = dark ? "Light mode" : "Dark mode";
  };
  button.addEventListener("click", () => {
    const theme = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    storeValue(localStorage, "theme", (theme === "dark") === system.matches ? "" : theme);
    apply();
  });
  system.addEventListener("change", apply);
  apply();
}

// -- the beginning ------------------------------------------------------------------------------------------------------

listenToTheme();
listenToKeys();
find("help").addEventListener("click", showKeys);
find("leave").addEventListener("click", logOut);
find("filter").addEventListener("input", drawList);
find("skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address is the session's
  (find("scroll") || find("main")).focus();
});
addEventListener("hashchange", followAddress);
addEventListener("online", resumePage);
addEventListener("pageshow", (event) => {
  if (event.persisted) resumePage(); // out of the browser's memory, with what was shown when the page was left
});
addEventListener("offline", () => {
  setConnected(false);
  if (currentSession.stream) currentSession.stream.cut();
});
document.addEventListener("visibilitychange", () => {
  clearTimeout(currentSession.restTimer);
  if (!document.hidden) resumePage();
  else currentSession.restTimer = setTimeout(() => currentSession.stream && currentSession.stream.rest(), REST_MS);
});
if (navigator.serviceWorker) navigator.serviceWorker.addEventListener("message", (event) => (location.hash = String(event.data.address).replace(/^\/#/, "")));
listenToBell();
if (!takeToken(location.hash.slice(1)) && !takeToken(location.search)) startPage();
document.documentElement.dataset.ready = "yes";
