// The box below a session: the next message, its mode and model, an interrupt, and who drives.

const MODES = { default: "Ask before changes", acceptEdits: "Accept edits", plan: "Plan only", dontAsk: "Deny instead of asking", auto: "Auto", bypassPermissions: "Never ask" };
const ID_CHARACTERS = 36; // of a UUID
const MAX_INPUT_HEIGHT_PX = 192; // the box grows to this height, then it scrolls

const sendingSessions = new Set(); // the sessions to which a message is on its way

function createComposer() {
  return element(
    "form",
    { id: "composer", "aria-label": "Your message" },
    element("p", { id: "drives", hidden: true }),
    element("p", { id: "over", class: "over", hidden: true }, "This session has ended. Its history is kept."),
    element("p", { id: "failed", class: "wrong", role: "alert", hidden: true }),
    element("textarea", { id: "text", rows: 1, placeholder: "Send a message…", "aria-label": "Message. Enter sends, Shift+Enter starts a new line", enterkeyhint: "enter", autocomplete: "off" }),
    element(
      "div",
      { class: "tools" },
      element("label", { class: "pick" }, element("span", { class: "unseen" }, "Permission mode"), element("select", { id: "mode" })),
      element("label", { class: "pick", id: "models" }, element("span", { class: "unseen" }, "Model"), element("select", { id: "model" })),
      element("span", { class: "gap" }),
      element("button", { type: "button", id: "interrupt", class: "plain", hidden: true }, "Interrupt"),
      element("button", { type: "submit", id: "send", class: "strong" }, "Send"),
    ),
  );
}

/** Draw what the session allows now. */
function drawComposer() {
  if (!find("composer")) return;
  const { facts } = currentSession;
  const ended = getGroup(facts) === "ended";
  find("interrupt").hidden = isWatchOnly() || !["works", "asks"].includes(getGroup(facts));
  const driver = facts.driver && !isPageClient(facts.driver) ? formatLine(facts.driver, 60) : "";
  const driverLine = find("drives");
  driverLine.hidden = !driver || isWatchOnly();
  if (!driverLine.hidden && driverLine.dataset.who !== driver) {
    driverLine.replaceChildren(element("span", null, element("strong", null, driver), " has control of this session"), element("button", { type: "button", class: "plain", onclick: takeControl }, "Take control"));
  }
  driverLine.dataset.who = driver;
  find("text").placeholder = isWatchOnly() ? "This page is read-only" : ended ? "Send a message to restart it…" : "Send a message…";
  find("text").disabled = find("send").disabled = isWatchOnly();
  if (!sendingSessions.has(currentSession.id)) find("send").textContent = ended ? "Resume" : "Send";
  find("over").hidden = !ended;
  for (const label of document.querySelectorAll(".pick")) label.classList.toggle("off", ended);
  drawModes(facts);
  drawModels(facts);
}

/** Whether a client of the session is a page, this one or another: the first is called "web", a second "web-2". */
function isPageClient(client) {
  return /^web(-[0-9]+)?$/.test(client || "");
}

function drawModes(facts) {
  const select = find("mode");
  const modes = ["default", "acceptEdits", "plan", ...(facts.bypass || facts.mode === "bypassPermissions" ? ["bypassPermissions"] : [])];
  if (facts.mode && !modes.includes(facts.mode)) modes.push(facts.mode);
  const signature = modes.join();
  if (select.dataset.looks !== signature) select.replaceChildren(...modes.map((mode) => element("option", { value: mode }, MODES[mode] || formatLine(mode, 40))));
  select.dataset.looks = signature;
  if (document.activeElement !== select) select.value = facts.mode || "default";
  select.disabled = isWatchOnly();
}

function drawModels(facts) {
  const select = find("model");
  const models = Array.isArray(facts.models) ? facts.models : [];
  const names = new Map(models.filter((model) => model && model.value).map((model) => [String(model.value), formatLine(model.displayName || model.value, 40)]));
  if (facts.model && !names.has(facts.model)) names.set(facts.model, formatLine(facts.model, 40));
  find("models").hidden = names.size < 2;
  const signature = JSON.stringify([...names]);
  if (select.dataset.looks !== signature) select.replaceChildren(...[...names].map(([value, name]) => element("option", { value }, name)));
  select.dataset.looks = signature;
  if (document.activeElement !== select) select.value = facts.model || "";
  select.disabled = isWatchOnly();
}

function resizeInput() {
  const box = find("text");
  box.style.height = "auto";
  box.style.height = `${Math.min(box.scrollHeight + 2, MAX_INPUT_HEIGHT_PX)}px`;
}

function showSendError(text) {
  const line = find("failed");
  if (!line) return;
  line.hidden = !text;
  line.replaceChildren(...(Array.isArray(text) ? text : [text]));
}

/** A request about the session that is shown; null if it failed, and the page said why. */
async function postToSession(action, body, hint = "") {
  const session = currentSession.id;
  try {
    const response = await sendRequest("POST", `/sessions/${encodeURIComponent(session)}/${action}`, body);
    if (currentSession.id === session) showSendError("");
    return response || {};
  } catch (error) {
    if (currentSession.id !== session || error.status === 401) return null;
    if (error.body.driver && error.status === 409) {
      currentSession.facts.driver = error.body.driver;
      drawComposer();
      showSendError(`${formatLine(error.body.driver, 60)} has control of this session. Take control to ${action === "messages" ? "send the message" : "do this"}.`);
    } else showSendError(`${error.message}${hint}`);
    return null;
  }
}

/** The id under which a text is sent to a session: the same one until it is there, also after the page was loaded again. */
function getDraftId(session, text) {
  const lastSent = readStored(sessionStorage, `sent.${session}`);
  const id = lastSent.slice(ID_CHARACTERS) === text ? lastSent.slice(0, ID_CHARACTERS) : createId();
  storeValue(sessionStorage, `sent.${session}`, id + text);
  return id;
}

/** Send what was typed. It stays in the box until the server has it; sent twice with one id, it is one message. */
async function sendMessage() {
  const box = find("text");
  const text = box.value.trim();
  if (!text || sendingSessions.has(currentSession.id) || box.disabled) return;
  const session = currentSession.id;
  sendingSessions.add(session);
  find("send").disabled = true;
  find("send").textContent = "Sending …";
  const response = await postToSession("messages", { text, id: getDraftId(session, text), wake: getGroup(currentSession.facts) === "ended" || undefined }, " Your message was kept.");
  sendingSessions.delete(session);
  if (response) storeValue(sessionStorage, `sent.${session}`, "");
  if (currentSession.id !== session) {
    if (response) storeValue(sessionStorage, `draft.${session}`, "");
    return;
  }
  drawComposer();
  if (response && response.woken) refreshList();
  if (!response) return;
  const currentBox = find("text"); // another one, if the session was left and shown again meanwhile
  if (currentBox.value.trim() === text) {
    currentBox.value = "";
    storeValue(sessionStorage, `draft.${session}`, "");
    resizeInput();
  }
  currentSession.follow = true;
  scrollToEnd();
}

async function takeControl() {
  if (!(await postToSession("take", {}))) return;
  tell("You have control of this session");
  find("text").focus();
}

async function stopSession() {
  if (!confirm("End this session? You can resume it later.")) return;
  if (await postToSession("stop", {})) refreshList();
}

function listenToComposer() {
  const box = find("text");
  box.value = readStored(sessionStorage, `draft.${currentSession.id}`);
  box.addEventListener("input", () => {
    storeValue(sessionStorage, `draft.${currentSession.id}`, box.value);
    resizeInput();
  });
  const touch = matchMedia("(pointer: coarse)");
  box.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || isComposing(event) || (touch.matches && !event.ctrlKey && !event.metaKey)) return;
    event.preventDefault();
    sendMessage();
  });
  find("composer").addEventListener("submit", (event) => {
    event.preventDefault();
    sendMessage();
  });
  find("interrupt").addEventListener("click", async () => {
    if (await postToSession("interrupt", {})) tell("Interrupted");
  });
  find("mode").addEventListener("change", () => changeSetting("mode", { mode: find("mode").value }));
  find("model").addEventListener("change", () => changeSetting("model", { model: find("model").value }));
  resizeInput();
}

async function changeSetting(name, body) {
  const response = await postToSession(name, body);
  if (response) currentSession.facts[name] = body[name];
  find(name).blur();
  drawComposer();
  if (response) tell(`The ${name} is ${find(name).selectedOptions[0] ? find(name).selectedOptions[0].textContent : body[name]}`);
}
