// The box below a session: the next message, its mode and model, an interrupt, and who drives.

const MODES = { default: "Ask before changes", acceptEdits: "Accept edits", plan: "Plan only", dontAsk: "Deny what would ask", auto: "Auto", bypassPermissions: "Ask nothing" };
const ID_CHARACTERS = 36; // of a UUID
const ROWS_POINTS = 192; // the box grows to this height, then it scrolls

const sending = new Set(); // the sessions to which a message is on its way

function composerForm() {
  return element(
    "form",
    { id: "composer", "aria-label": "Your message" },
    element("p", { id: "drives", hidden: true }),
    element("p", { id: "over", class: "over", hidden: true }, "This session has ended; what was said is kept."),
    element("p", { id: "failed", class: "wrong", role: "alert", hidden: true }),
    element("textarea", { id: "text", rows: 1, placeholder: "Say the next thing …", "aria-label": "Message. Enter sends, Shift and Enter breaks the line", enterkeyhint: "enter", autocomplete: "off" }),
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
  const { facts } = shown;
  const ended = groupOf(facts) === "ended";
  find("interrupt").hidden = watching() || !["works", "asks"].includes(groupOf(facts));
  const other = facts.driver && !ofPage(facts.driver) ? oneLine(facts.driver, 60) : "";
  const drives = find("drives");
  drives.hidden = !other || watching();
  if (!drives.hidden && drives.dataset.who !== other) {
    drives.replaceChildren(element("span", null, element("strong", null, other), " drives this session"), element("button", { type: "button", class: "plain", onclick: takeOver }, "Take over"));
  }
  drives.dataset.who = other;
  find("text").placeholder = watching() ? "This page may only watch" : ended ? "Your message begins it again …" : "Say the next thing …";
  find("text").disabled = find("send").disabled = watching();
  if (!sending.has(shown.id)) find("send").textContent = ended ? "Go on" : "Send";
  find("over").hidden = !ended;
  for (const label of document.querySelectorAll(".pick")) label.classList.toggle("off", ended);
  drawModes(facts);
  drawModels(facts);
}

/** Whether a client of the session is a page, this one or another: the first is called "web", a second "web-2". */
function ofPage(client) {
  return /^web(-[0-9]+)?$/.test(client || "");
}

function drawModes(facts) {
  const select = find("mode");
  const all = ["default", "acceptEdits", "plan", ...(facts.bypass || facts.mode === "bypassPermissions" ? ["bypassPermissions"] : [])];
  if (facts.mode && !all.includes(facts.mode)) all.push(facts.mode);
  const looks = all.join();
  if (select.dataset.looks !== looks) select.replaceChildren(...all.map((mode) => element("option", { value: mode }, MODES[mode] || oneLine(mode, 40))));
  select.dataset.looks = looks;
  if (document.activeElement !== select) select.value = facts.mode || "default";
  select.disabled = watching();
}

function drawModels(facts) {
  const select = find("model");
  const told = Array.isArray(facts.models) ? facts.models : [];
  const names = new Map(told.filter((one) => one && one.value).map((one) => [String(one.value), oneLine(one.displayName || one.value, 40)]));
  if (facts.model && !names.has(facts.model)) names.set(facts.model, oneLine(facts.model, 40));
  find("models").hidden = names.size < 2;
  const looks = JSON.stringify([...names]);
  if (select.dataset.looks !== looks) select.replaceChildren(...[...names].map(([value, name]) => element("option", { value }, name)));
  select.dataset.looks = looks;
  if (document.activeElement !== select) select.value = facts.model || "";
  select.disabled = watching();
}

function grow() {
  const box = find("text");
  box.style.height = "auto";
  box.style.height = `${Math.min(box.scrollHeight + 2, ROWS_POINTS)}px`;
}

function failedToSend(text) {
  const line = find("failed");
  if (!line) return;
  line.hidden = !text;
  line.replaceChildren(...(Array.isArray(text) ? text : [text]));
}

/** A request about the session that is shown; null if it failed, and the page said why. */
async function tellSession(what, body, kept = "") {
  const session = shown.id;
  try {
    const told = await ask("POST", `/sessions/${encodeURIComponent(session)}/${what}`, body);
    if (shown.id === session) failedToSend("");
    return told || {};
  } catch (refused) {
    if (shown.id !== session || refused.status === 401) return null;
    if (refused.body.driver && refused.status === 409) {
      shown.facts.driver = refused.body.driver;
      drawComposer();
      failedToSend(`${oneLine(refused.body.driver, 60)} drives this session. Take over to ${what === "messages" ? "send it" : "do that"}.`);
    } else failedToSend(`${refused.message}${kept}`);
    return null;
  }
}

/** The id under which a text is sent to a session: the same one until it is there, also after the page was loaded again. */
function draftId(session, text) {
  const tried = kept(sessionStorage, `sent.${session}`);
  const id = tried.slice(ID_CHARACTERS) === text ? tried.slice(0, ID_CHARACTERS) : freshId();
  keep(sessionStorage, `sent.${session}`, id + text);
  return id;
}

/** Send what was typed. It stays in the box until the server has it; sent twice with one id, it is one message. */
async function sendMessage() {
  const box = find("text");
  const text = box.value.trim();
  if (!text || sending.has(shown.id) || box.disabled) return;
  const session = shown.id;
  sending.add(session);
  find("send").disabled = true;
  find("send").textContent = "Sending …";
  const told = await tellSession("messages", { text, id: draftId(session, text), wake: groupOf(shown.facts) === "ended" || undefined }, " Your message is still here.");
  sending.delete(session);
  if (told) keep(sessionStorage, `sent.${session}`, "");
  if (shown.id !== session) {
    if (told) keep(sessionStorage, `draft.${session}`, "");
    return;
  }
  drawComposer();
  if (told && told.woken) look();
  if (!told) return;
  const now = find("text"); // another one, if the session was left and shown again meanwhile
  if (now.value.trim() === text) {
    now.value = "";
    keep(sessionStorage, `draft.${session}`, "");
    grow();
  }
  shown.follow = true;
  endSteps();
}

async function takeOver() {
  if (!(await tellSession("take", {}))) return;
  tell("You drive this session now");
  find("text").focus();
}

async function stopSession() {
  if (!confirm("Stop this session? It can be gone on with later.")) return;
  if (await tellSession("stop", {})) look();
}

function listenToComposer() {
  const box = find("text");
  box.value = kept(sessionStorage, `draft.${shown.id}`);
  box.addEventListener("input", () => {
    keep(sessionStorage, `draft.${shown.id}`, box.value);
    grow();
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
    if (await tellSession("interrupt", {})) tell("Interrupted");
  });
  find("mode").addEventListener("change", () => changed("mode", { mode: find("mode").value }));
  find("model").addEventListener("change", () => changed("model", { model: find("model").value }));
  grow();
}

async function changed(what, body) {
  const told = await tellSession(what, body);
  if (told) shown.facts[what] = body[what];
  find(what).blur();
  drawComposer();
  if (told) tell(`The ${what} is ${find(what).selectedOptions[0] ? find(what).selectedOptions[0].textContent : body[what]}`);
}
