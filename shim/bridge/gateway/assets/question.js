// Questions of a session: with all that decides them in sight, until somebody settled them.

const questions = new Map(); // by their id: { data, node, sent, settled, from }; the last three of an answer on its way
const SETTLED_MS = 8000; // that the page says who settled a question
const MAX_HINT_WAIT_MS = 12 * 60 * 60 * 1000; // for a longer wait the time of day would be ambiguous
const GRACE_MS = 500; // from when questions come or move until one is answered: a click or a key just then was meant for something else
const OUTCOME_TEXTS = { allow: "allowed", deny: "denied", timeout: "denied: no answer in time", interrupt: "cancelled by an interrupt", cancelled: "withdrawn", ended: "denied: the session ended" };

function clearQuestions() {
  questions.clear();
  if (find("asked")) find("asked").replaceChildren();
}

/** A question is open. Said again for one that is known, it changes nothing that was typed. */
function addQuestion(data) {
  if (questions.has(data.question)) return;
  const entry = { data, node: null };
  entry.node = createQuestionCard(entry);
  questions.set(data.question, entry);
  find("asked").append(entry.node);
  drawQuestionCounts();
  const title = formatQuestionTitle(data);
  tell(`${title} ${formatLine(data.main || data.message || "", 120)}`);
  const focused = document.activeElement;
  const typing = focused && (focused.matches("textarea, input, select") || find("asked").contains(focused) || find("side").contains(focused));
  if (!typing && !document.querySelector("dialog[open]")) entry.node.focus({ preventScroll: true });
  scrollToEnd();
}

/** Only these questions are open now. */
function removeOtherQuestions(ids) {
  for (const id of [...questions.keys()]) if (!ids.includes(id)) removeQuestion(id);
}

function removeQuestion(id) {
  const entry = questions.get(id);
  if (!entry) return null;
  const focused = entry.from || entry.node.contains(document.activeElement);
  questions.delete(id);
  entry.node.remove();
  drawQuestionCounts();
  if (focused) (find("asked").firstElementChild || find("text") || find("main")).focus({ preventScroll: true });
  return entry;
}

function drawQuestionCounts() {
  const entries = [...questions.values()];
  entries.forEach((entry, at) => (entry.node.querySelector(".count").textContent = entries.length > 1 ? `${at + 1} of ${entries.length}` : ""));
  blockAnswers();
}

/** Questions stand elsewhere than they did: for a moment nothing answers them. */
function blockAnswers() {
  const container = find("asked");
  container.classList.add("moved");
  clearTimeout(currentSession.movedTimer);
  currentSession.movedTimer = setTimeout(() => container.classList.remove("moved"), GRACE_MS);
}

/** Somebody settled a question. Whether this page did, or another one, is in the answer to what this one sent. */
function settleQuestion({ question, by, how }) {
  const entry = questions.get(question);
  if (!entry) return; // it was said already
  if (entry.sent && isPageClient(by)) entry.settled = { by, how };
  else closeQuestion(entry, how, describeClient(by));
}

/** A question is settled: say who did it, and how. */
function closeQuestion(entry, how, who) {
  if (!removeQuestion(entry.data.question)) return;
  const title = formatLine(entry.data.tool || "The question", 60);
  showOutcome(`${title}: ${OUTCOME_TEXTS[how] || how}${who && (how === "allow" || how === "deny") ? ` ${who}` : ""}`);
}

/** A client in a person's words: what tells two of a kind apart (a random word, a process) says nothing to a person. */
function describeClient(client) {
  const name = formatLine(client || "", 60);
  if (isPageClient(name)) return "in another browser";
  if (/^shim bridge answer [0-9a-f]{8}(-[0-9]+)?$/.test(name)) return "in a terminal with shim bridge answer";
  if (/^terminal [0-9]+(-[0-9]+)?$/.test(name)) return "in a terminal";
  return name && `by ${name}`;
}

function showOutcome(text) {
  const line = find("settled");
  if (!line) return;
  clearTimeout(currentSession.settledTimer);
  line.textContent = text;
  line.hidden = false;
  tell(text);
  currentSession.settledTimer = setTimeout(() => {
    line.hidden = true;
    if (questions.size) blockAnswers(); // they stand above the line
  }, SETTLED_MS);
}

function formatQuestionTitle(data) {
  if (data.kind === "ask") return "A question for you";
  if (data.kind === "elicitation") return `${data.tool || "A server"} asks`;
  return `Allow ${data.tool}?`; // never cut: the end of a name decides as much as its beginning
}

function createQuestionCard(entry) {
  const { data } = entry;
  const id = `question-${createId()}`;
  const errorLine = element("p", { class: "wrong", role: "alert", hidden: true });
  const content = data.kind === "ask" && data.asked ? createChoiceForm(entry, errorLine) : data.kind === "elicitation" ? createElicitationForm(entry, errorLine) : createPermissionForm(entry, errorLine);
  return element(
    "section",
    { class: `asking-card ${data.kind}`, tabindex: -1, role: "group", "aria-labelledby": id },
    element("h2", { id }, element("span", { class: "sign", "aria-hidden": "true" }, "?"), formatQuestionTitle(data), element("small", { class: "count" })),
    content,
    errorLine,
  );
}

// -- may a tool run? -----------------------------------------------------------------------------------------------

function createPermissionForm(entry, errorLine) {
  const { data } = entry;
  const message = element("textarea", { rows: 1, placeholder: "Reason, or what to do instead (optional)", "aria-label": "Message to the agent, sent with the denial" });
  const denial = element("div", { class: "denial", hidden: true }, message, element("button", { type: "button", class: "bad", onclick: () => sendAnswer(entry, errorLine, { behavior: "deny", message: message.value.trim() || undefined }) }, "Deny"));
  const input = element("div", { class: "input", tabindex: 0, role: "group", "aria-label": "What the call would do" }, createQuestionInput(data));
  if (isWatchOnly()) return [input, element("p", { class: "hint" }, "This page is read-only.")];
  const always = data.always || [];
  const deny = element("button", { type: "button", class: "bad", "aria-expanded": "false" }, "Deny");
  const denyWithMessage = element("button", { type: "button", class: "plain", "aria-expanded": "false" }, "Deny with a message …");
  deny.removeAttribute("aria-expanded");
  deny.addEventListener("click", () => sendAnswer(entry, errorLine, { behavior: "deny" }));
  denyWithMessage.addEventListener("click", () => {
    denial.hidden = !denial.hidden;
    denyWithMessage.setAttribute("aria-expanded", String(!denial.hidden));
    if (!denial.hidden) message.focus();
  });
  message.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !isComposing(event)) {
      event.preventDefault();
      sendAnswer(entry, errorLine, { behavior: "deny", message: message.value.trim() || undefined });
    }
  });
  return [
    input,
    element(
      "div",
      { class: "choose" },
      element("button", { type: "button", class: "strong", onclick: () => sendAnswer(entry, errorLine, { behavior: "allow" }) }, "Allow"),
      always.length ? element("button", { type: "button", class: "always", onclick: () => sendAnswer(entry, errorLine, { behavior: "allow", always: true }) }, "Always") : "",
      deny,
      denyWithMessage,
    ),
    always.length ? element("p", { class: "hint" }, "Always, in this session: ", always.map((rule, at) => [at ? ", " : "", element("code", null, rule)])) : "",
    denial,
  ];
}

/** A text that is broken into lines: no stop of the tabulator, because it never scrolls by itself. */
function createWrappedText(text) {
  return element("pre", null, element("code", null, text));
}

/** Return a hint that says when a question is denied if it is not answered, or "" for a long wait. */
function createTimeoutHint({ at, until }) {
  if (!until || until - at > MAX_HINT_WAIT_MS) return "";
  const time = new Date(until).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  return element("p", { class: "hint" }, `Denied at ${time} if there is no answer.`);
}

/** All of the input, nothing folded and nothing cut: `fields` has what the diff does not say. */
function createQuestionInput(data) {
  const fields = data.fields || [];
  const isCommand = fields.length === 1 && fields[0][0] === "command" && !data.diff; // what is known by itself
  return [
    data.message ? element("p", { class: "said" }, data.message) : "",
    fields.map(([name, value]) => (isCommand ? createWrappedText(value) : labelled(name, createWrappedText(value)))),
    data.diff ? difference(data.diff) : "",
    data.path ? labelled("outside the allowed folders", createWrappedText(data.path)) : "",
    data.reason ? element("p", { class: "hint" }, data.reason) : "",
    createTimeoutHint(data),
  ];
}

// -- a choice of the model's ------------------------------------------------------------------------------------------

function createChoiceForm(entry, errorLine) {
  const formQuestions = entry.data.asked.filter((question) => question && typeof question === "object");
  const groups = formQuestions.map((question) => {
    const kind = question.multiSelect ? "checkbox" : "radio";
    const name = createId();
    const freeText = element("input", { type: "text", class: "own", dir: "auto", placeholder: "Another answer", "aria-label": `Another answer to: ${formatLine(question.question)}`, autocomplete: "off" });
    const options = (Array.isArray(question.options) ? question.options : []).map((option) => {
      const label = typeof option === "string" ? option : String(option.label || "");
      const input = element("input", { type: kind, name, value: label });
      if (kind === "radio") input.addEventListener("change", () => (freeText.value = ""));
      return [input, element("label", { class: "option" }, input, element("span", { dir: "auto" }, label, option.description ? element("small", { dir: "auto" }, String(option.description)) : ""))];
    });
    if (kind === "radio") freeText.addEventListener("input", () => freeText.value && options.forEach(([input]) => (input.checked = false)));
    const node = element("fieldset", null, element("legend", null, String(question.question || question.header || "")), options.map(([, label]) => label), freeText);
    return { question: String(question.question || ""), node, readValue: () => [...options.filter(([input]) => input.checked).map(([input]) => input.value), freeText.value.trim()].filter(Boolean).join(", ") };
  });
  const send = () => {
    const answers = Object.fromEntries(groups.map(({ question, readValue }) => [question, readValue()]));
    if (Object.values(answers).some((value) => !value)) return showErrorIn(errorLine, "Each question needs an answer.");
    sendAnswer(entry, errorLine, { behavior: "allow", input: { questions: entry.data.asked, answers } });
  };
  const form = element("form", { class: "input" }, createQuestionInput(entry.data), groups.map(({ node }) => node));
  if (isWatchOnly()) return [form];
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  return [form, element("div", { class: "choose" }, element("button", { type: "button", class: "strong", onclick: send }, "Answer"), element("button", { type: "button", class: "bad", onclick: () => sendAnswer(entry, errorLine, { behavior: "deny" }) }, "Do not answer"))];
}

/** What a server asks a person for: a field for each property. */
function createElicitationForm(entry, errorLine) {
  const properties = Object.entries((entry.data.schema && entry.data.schema.properties) || {}).slice(0, 50);
  const rows = properties.map(([name, property]) => {
    const definition = property && typeof property === "object" ? property : {};
    const label = String(definition.title || name);
    const input = Array.isArray(definition.enum)
      ? element("select", null, definition.enum.map((option) => element("option", { value: String(option) }, String(option))))
      : element("input", { type: definition.type === "boolean" ? "checkbox" : ["number", "integer"].includes(definition.type) ? "number" : "text", dir: "auto", autocomplete: "off", step: definition.type === "number" ? "any" : null });
    const readValue = () => (definition.type === "boolean" ? input.checked : ["number", "integer"].includes(definition.type) ? (input.value === "" ? undefined : Number(input.value)) : input.value);
    return { name, readValue, node: element("label", { class: "row" }, element("span", { class: "label", dir: "auto" }, label), input, definition.description ? element("small", { dir: "auto" }, String(definition.description)) : "") };
  });
  const send = () => sendAnswer(entry, errorLine, { behavior: "allow", input: Object.fromEntries(rows.map(({ name, readValue }) => [name, readValue()]).filter(([, value]) => value !== undefined)) });
  if (isWatchOnly()) return [element("div", { class: "input" }, createQuestionInput(entry.data))];
  return [
    element("div", { class: "input" }, createQuestionInput(entry.data), rows.map(({ node }) => node)),
    element("div", { class: "choose" }, element("button", { type: "button", class: "strong", onclick: send }, "Answer"), element("button", { type: "button", class: "bad", onclick: () => sendAnswer(entry, errorLine, { behavior: "deny" }) }, "Decline")),
  ];
}

// -- the answer ---------------------------------------------------------------------------------------------------

function showErrorIn(node, text) {
  node.textContent = text;
  node.hidden = false;
}

/** Send an answer. The first one counts: if somebody was first, the page says who. */
async function sendAnswer(entry, errorLine, body) {
  if (find("asked").classList.contains("moved")) return;
  const session = currentSession.id;
  const buttons = entry.node.querySelectorAll("button, input, select, textarea");
  entry.from = entry.node.contains(document.activeElement) ? document.activeElement : null; // what is disabled loses the focus
  for (const button of buttons) button.disabled = true;
  errorLine.hidden = true;
  entry.sent = true;
  try {
    const response = await sendRequest("POST", `/sessions/${encodeURIComponent(session)}/answers`, { question: entry.data.question, ...body });
    if (currentSession.id !== session) return;
    closeQuestion(entry, body.behavior, "by you");
    return response;
  } catch (error) {
    if (currentSession.id !== session) return;
    entry.sent = false;
    for (const button of buttons) button.disabled = false;
    if (entry.from) entry.from.focus();
    entry.from = null;
    const settled = error.body.how ? error.body : entry.settled;
    if (settled) settleQuestion({ question: entry.data.question, by: settled.by, how: settled.how });
    else showErrorIn(errorLine, `${error.message} The permission prompt is still open.`);
  }
}
