// Questions of a session: with all that decides them in sight, until somebody settled them.

const questions = new Map(); // by their id: { data, node, sent, settled, from }; the last three of an answer on its way
const SETTLED_MS = 8000; // that the page says who settled a question
const MAX_SHOWN_WAIT_MS = 12 * 60 * 60 * 1000; // for a longer wait the time of day would be ambiguous
const GRACE_MS = 500; // from when questions come or move until one is answered: a click or a key just then was meant for something else
const HOW = { allow: "allowed", deny: "denied", timeout: "denied: nobody answered in time", interrupt: "cancelled by an interrupt", cancelled: "withdrawn", ended: "denied: the session ended" };

function forgetQuestions() {
  questions.clear();
  if (find("asked")) find("asked").replaceChildren();
}

/** A question is open. Said again for one that is known, it changes nothing that was typed. */
function askPerson(data) {
  if (questions.has(data.question)) return;
  const entry = { data, node: null };
  entry.node = questionCard(entry);
  questions.set(data.question, entry);
  find("asked").append(entry.node);
  countQuestions();
  const title = questionTitle(data);
  tell(`${title} ${oneLine(data.main || data.message || "", 120)}`);
  const focused = document.activeElement;
  const typing = focused && (focused.matches("textarea, input, select") || find("asked").contains(focused) || find("side").contains(focused));
  if (!typing && !document.querySelector("dialog[open]")) entry.node.focus({ preventScroll: true });
  endSteps();
}

/** Only these questions are open now. */
function keepQuestions(ids) {
  for (const id of [...questions.keys()]) if (!ids.includes(id)) dropQuestion(id);
}

function dropQuestion(id) {
  const entry = questions.get(id);
  if (!entry) return null;
  const focused = entry.from || entry.node.contains(document.activeElement);
  questions.delete(id);
  entry.node.remove();
  countQuestions();
  if (focused) (find("asked").firstElementChild || find("text") || find("main")).focus({ preventScroll: true });
  return entry;
}

function countQuestions() {
  const all = [...questions.values()];
  all.forEach((entry, at) => (entry.node.querySelector(".count").textContent = all.length > 1 ? `${at + 1} of ${all.length}` : ""));
  holdAnswers();
}

/** Questions stand elsewhere than they did: for a moment nothing answers them. */
function holdAnswers() {
  const asked = find("asked");
  asked.classList.add("moved");
  clearTimeout(shown.movedTimer);
  shown.movedTimer = setTimeout(() => asked.classList.remove("moved"), GRACE_MS);
}

/** Somebody settled a question. Whether this page did, or another one, is in the answer to what this one sent. */
function settleQuestion({ question, by, how }) {
  const entry = questions.get(question);
  if (!entry) return; // it was said already
  if (entry.sent && ofPage(by)) entry.settled = { by, how };
  else closeQuestion(entry, how, byWhom(by));
}

/** A question is settled: say who did it, and how. */
function closeQuestion(entry, how, who) {
  if (!dropQuestion(entry.data.question)) return;
  const title = oneLine(entry.data.tool || "The question", 60);
  saySettled(`${title}: ${HOW[how] || how}${who && (how === "allow" || how === "deny") ? ` ${who}` : ""}`);
}

/** A client in a person's words: what tells two of a kind apart (a random word, a process) says nothing to a person. */
function byWhom(client) {
  const name = oneLine(client || "", 60);
  if (ofPage(name)) return "by another page";
  if (/^shim bridge answer [0-9a-f]{8}(-[0-9]+)?$/.test(name)) return "from a terminal, by shim bridge answer";
  if (/^terminal [0-9]+(-[0-9]+)?$/.test(name)) return "from a terminal";
  return name && `by ${name}`;
}

function saySettled(text) {
  const line = find("settled");
  if (!line) return;
  clearTimeout(shown.settledTimer);
  line.textContent = text;
  line.hidden = false;
  tell(text);
  shown.settledTimer = setTimeout(() => {
    line.hidden = true;
    if (questions.size) holdAnswers(); // they stand above the line
  }, SETTLED_MS);
}

function questionTitle(data) {
  if (data.kind === "ask") return "A question for you";
  if (data.kind === "elicitation") return `${data.tool || "A server"} asks`;
  return `May ${data.tool} run?`; // never cut: the end of a name decides as much as its beginning
}

function questionCard(entry) {
  const { data } = entry;
  const id = `question-${freshId()}`;
  const failed = element("p", { class: "wrong", role: "alert", hidden: true });
  const inside = data.kind === "ask" && data.asked ? choices(entry, failed) : data.kind === "elicitation" ? elicited(entry, failed) : permission(entry, failed);
  return element(
    "section",
    { class: `asking-card ${data.kind}`, tabindex: -1, role: "group", "aria-labelledby": id },
    element("h2", { id }, element("span", { class: "sign", "aria-hidden": "true" }, "?"), questionTitle(data), element("small", { class: "count" })),
    inside,
    failed,
  );
}

// -- may a tool run? -----------------------------------------------------------------------------------------------

function permission(entry, failed) {
  const { data } = entry;
  const message = element("textarea", { rows: 1, placeholder: "Why not, or what instead (optional)", "aria-label": "A message with the denial" });
  const denial = element("div", { class: "denial", hidden: true }, message, element("button", { type: "button", class: "bad", onclick: () => answer(entry, failed, { behavior: "deny", message: message.value.trim() || undefined }) }, "Deny"));
  const input = element("div", { class: "input", tabindex: 0, role: "group", "aria-label": "What it would do" }, questionInput(data));
  if (watching()) return [input, element("p", { class: "hint" }, "This page may only watch.")];
  const always = data.always || [];
  const deny = element("button", { type: "button", class: "bad", "aria-expanded": "false" }, "Deny");
  const why = element("button", { type: "button", class: "plain", "aria-expanded": "false" }, "Deny with a message …");
  deny.removeAttribute("aria-expanded");
  deny.addEventListener("click", () => answer(entry, failed, { behavior: "deny" }));
  why.addEventListener("click", () => {
    denial.hidden = !denial.hidden;
    why.setAttribute("aria-expanded", String(!denial.hidden));
    if (!denial.hidden) message.focus();
  });
  message.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && !event.shiftKey && !isComposing(event)) {
      event.preventDefault();
      answer(entry, failed, { behavior: "deny", message: message.value.trim() || undefined });
    }
  });
  return [
    input,
    element(
      "div",
      { class: "choose" },
      element("button", { type: "button", class: "strong", onclick: () => answer(entry, failed, { behavior: "allow" }) }, "Allow"),
      always.length ? element("button", { type: "button", class: "always", onclick: () => answer(entry, failed, { behavior: "allow", always: true }) }, "Always") : "",
      deny,
      why,
    ),
    always.length ? element("p", { class: "hint" }, "Always, in this session: ", always.map((one, at) => [at ? ", " : "", element("code", null, one)])) : "",
    denial,
  ];
}

/** A text that is broken into lines: no stop of the tabulator, because it never scrolls by itself. */
function wrapped(text) {
  return element("pre", null, element("code", null, text));
}

/** Return a hint that says when a question is denied if it is not answered, or "" for a long wait. */
function timeoutHint({ at, until }) {
  if (!until || until - at > MAX_SHOWN_WAIT_MS) return "";
  const time = new Date(until).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
  return element("p", { class: "hint" }, `Denied at ${time} if nobody answers.`);
}

/** All of the input, nothing folded and nothing cut: `fields` has what the diff does not say. */
function questionInput(data) {
  const fields = data.fields || [];
  const alone = fields.length === 1 && fields[0][0] === "command" && !data.diff; // what is known by itself
  return [
    data.message ? element("p", { class: "said" }, data.message) : "",
    fields.map(([name, value]) => (alone ? wrapped(value) : labelled(name, wrapped(value)))),
    data.diff ? difference(data.diff) : "",
    data.path ? labelled("outside the allowed folders", wrapped(data.path)) : "",
    data.reason ? element("p", { class: "hint" }, data.reason) : "",
    timeoutHint(data),
  ];
}

// -- a choice of the model's ------------------------------------------------------------------------------------------

function choices(entry, failed) {
  const asked = entry.data.asked.filter((one) => one && typeof one === "object");
  const groups = asked.map((one) => {
    const kind = one.multiSelect ? "checkbox" : "radio";
    const name = freshId();
    const own = element("input", { type: "text", class: "own", dir: "auto", placeholder: "Another answer", "aria-label": `Another answer to: ${oneLine(one.question)}`, autocomplete: "off" });
    const options = (Array.isArray(one.options) ? one.options : []).map((option) => {
      const label = typeof option === "string" ? option : String(option.label || "");
      const input = element("input", { type: kind, name, value: label });
      if (kind === "radio") input.addEventListener("change", () => (own.value = ""));
      return [input, element("label", { class: "option" }, input, element("span", { dir: "auto" }, label, option.description ? element("small", { dir: "auto" }, String(option.description)) : ""))];
    });
    if (kind === "radio") own.addEventListener("input", () => own.value && options.forEach(([input]) => (input.checked = false)));
    const node = element("fieldset", null, element("legend", null, String(one.question || one.header || "")), options.map(([, label]) => label), own);
    return { question: String(one.question || ""), node, said: () => [...options.filter(([input]) => input.checked).map(([input]) => input.value), own.value.trim()].filter(Boolean).join(", ") };
  });
  const send = () => {
    const answers = Object.fromEntries(groups.map(({ question, said }) => [question, said()]));
    if (Object.values(answers).some((said) => !said)) return wrongIn(failed, "Each question needs an answer.");
    answer(entry, failed, { behavior: "allow", input: { questions: entry.data.asked, answers } });
  };
  const form = element("form", { class: "input" }, questionInput(entry.data), groups.map(({ node }) => node));
  if (watching()) return [form];
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  return [form, element("div", { class: "choose" }, element("button", { type: "button", class: "strong", onclick: send }, "Answer"), element("button", { type: "button", class: "bad", onclick: () => answer(entry, failed, { behavior: "deny" }) }, "Do not answer"))];
}

/** What a server asks a person for: a field for each property. */
function elicited(entry, failed) {
  const properties = Object.entries((entry.data.schema && entry.data.schema.properties) || {}).slice(0, 50);
  const rows = properties.map(([name, property]) => {
    const about = property && typeof property === "object" ? property : {};
    const label = String(about.title || name);
    const input = Array.isArray(about.enum)
      ? element("select", null, about.enum.map((one) => element("option", { value: String(one) }, String(one))))
      : element("input", { type: about.type === "boolean" ? "checkbox" : ["number", "integer"].includes(about.type) ? "number" : "text", dir: "auto", autocomplete: "off", step: about.type === "number" ? "any" : null });
    const said = () => (about.type === "boolean" ? input.checked : ["number", "integer"].includes(about.type) ? (input.value === "" ? undefined : Number(input.value)) : input.value);
    return { name, said, node: element("label", { class: "row" }, element("span", { class: "label", dir: "auto" }, label), input, about.description ? element("small", { dir: "auto" }, String(about.description)) : "") };
  });
  const send = () => answer(entry, failed, { behavior: "allow", input: Object.fromEntries(rows.map(({ name, said }) => [name, said()]).filter(([, value]) => value !== undefined)) });
  if (watching()) return [element("div", { class: "input" }, questionInput(entry.data))];
  return [
    element("div", { class: "input" }, questionInput(entry.data), rows.map(({ node }) => node)),
    element("div", { class: "choose" }, element("button", { type: "button", class: "strong", onclick: send }, "Answer"), element("button", { type: "button", class: "bad", onclick: () => answer(entry, failed, { behavior: "deny" }) }, "Decline")),
  ];
}

// -- the answer ---------------------------------------------------------------------------------------------------

function wrongIn(node, text) {
  node.textContent = text;
  node.hidden = false;
}

/** Send an answer. The first one counts: if somebody was first, the page says who. */
async function answer(entry, failed, body) {
  if (find("asked").classList.contains("moved")) return;
  const session = shown.id;
  const buttons = entry.node.querySelectorAll("button, input, select, textarea");
  entry.from = entry.node.contains(document.activeElement) ? document.activeElement : null; // what is disabled loses the focus
  for (const button of buttons) button.disabled = true;
  failed.hidden = true;
  entry.sent = true;
  try {
    const told = await ask("POST", `/sessions/${encodeURIComponent(session)}/answers`, { question: entry.data.question, ...body });
    if (shown.id !== session) return;
    closeQuestion(entry, body.behavior, "by you");
    return told;
  } catch (refused) {
    if (shown.id !== session) return;
    entry.sent = false;
    for (const button of buttons) button.disabled = false;
    if (entry.from) entry.from.focus();
    entry.from = null;
    const settled = refused.body.how ? refused.body : entry.settled;
    if (settled) settleQuestion({ question: entry.data.question, by: settled.by, how: settled.how });
    else wrongIn(failed, `${refused.message} The question is still open here.`);
  }
}
