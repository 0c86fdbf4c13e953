// What stands in the middle when no session does: the start of one, the way in, and what went wrong.

function view(name, ...nodes) {
  leaveSession();
  document.body.dataset.view = name;
  find("main").replaceChildren(element("div", { class: `page ${name}` }, nodes));
}

function showWrong(title, text) {
  view("wrong", element("h1", null, title), element("p", null, text), element("p", null, element("a", { class: "button", href: "#" }, "All sessions")));
}

function showNothing() {
  const [title, text] = list.sessions.length
    ? ["Choose a session", "What waits for you stands at the top of the list. A session goes on, whoever looks at it."]
    : ["No session yet", "A session lives on its own on this machine. Start it here or in a terminal; watch it and answer its questions from anywhere."];
  view("none", element("h1", null, title), element("p", null, text), watching() ? "" : element("p", null, element("a", { class: "button strong", href: "#new" }, "Start a session")));
}

// -- the way in ----------------------------------------------------------------------------------------------------

/** No token, or one that is not good any more. */
function askForToken(wrong = "") {
  if (document.body.dataset.view === "login" && !wrong) return;
  clearTimeout(list.timer);
  list.sessions = [];
  list.loaded = false;
  drawList();
  const input = element("input", { type: "password", id: "token", autocomplete: "current-password", spellcheck: "false", required: true, "aria-describedby": "token-hint" });
  const form = element(
    "form",
    { class: "begin" },
    element("input", { type: "text", autocomplete: "username", value: "shim", hidden: true }), // whose token a browser keeps
    element("label", { class: "row" }, element("span", { class: "label" }, "Token"), input),
    element("p", { class: "hint", id: "token-hint" }, element("code", null, "shim bridge serve"), " prints an address with it, and a QR code for a phone; ", element("code", null, "shim bridge token"), " shows it again."),
    element("p", { class: "wrong", role: "alert", hidden: !wrong }, wrong),
    element("div", { class: "tools" }, element("button", { type: "submit", class: "strong" }, "Come in")),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    enter(input.value.trim());
  });
  view("login", element("h1", null, "Who is there?"), form);
  input.focus();
}

/** Exchange a token for a cookie. */
async function enter(token) {
  document.body.dataset.view = "wait";
  try {
    proof.keep((await ask("POST", "/login", { token })).proof);
  } catch (refused) {
    document.body.dataset.view = "wait";
    askForToken(refused.status === 401 || refused.status === 403 ? "This token is not good: it was replaced, is too old, or a part of it is missing." : refused.message);
    return;
  }
  await begin();
}

/** The first look: who this is, and what there is. */
async function begin() {
  document.body.dataset.view = "wait";
  try {
    await aboutMe();
  } catch (refused) {
    if (refused.status === 401) return;
  }
  await look();
  followAddress();
}

const me = { role: "drive" };

/** Whether this page may look only: by its token. */
function watching() {
  return me.role === "watch";
}

/** What this page may do, and what a new session may be of. */
async function aboutMe() {
  const told = await ask("GET", "/me");
  me.role = told.role;
  list.vendors = told.vendors;
  list.installed = told.installed || told.vendors;
  find("new").hidden = watching();
  drawComposer();
}

// -- a new session ---------------------------------------------------------------------------------------------------

function showBegin() {
  const known = (name) => [...new Set(list.sessions.map((session) => session[name]).filter(Boolean))];
  const folders = known("cwd");
  const all = list.vendors.length ? list.vendors : known("vendor");
  const here = (one) => !list.installed || list.installed.includes(one);
  const vendors = [...all.filter(here), ...all.filter((one) => !here(one))];
  const vendor = element("select", { id: "vendor" }, vendors.map((one) => element("option", { value: one }, oneLine(one, 40) + (here(one) ? "" : " (not installed)"))));
  const usual = [kept(localStorage, "vendor"), ...known("vendor")].find((one) => one && vendors.includes(one) && here(one));
  if (usual) vendor.value = usual;
  const cwd = element("input", { id: "cwd", list: "folders", value: kept(localStorage, "cwd") || folders[0] || "", autocomplete: "off", autocapitalize: "off", spellcheck: "false", required: true, placeholder: "/home/you/project" });
  const mode = element("select", { id: "newmode" }, ["default", "acceptEdits", "plan"].map((one) => element("option", { value: one }, MODES[one])));
  const model = element("input", { id: "newmodel", autocomplete: "off", autocapitalize: "off", spellcheck: "false", placeholder: "The vendor's own" });
  const prompt = element("textarea", { id: "prompt", rows: 4, required: true, placeholder: "What shall be done?" });
  const wrong = element("p", { class: "wrong", role: "alert", hidden: true });
  const button = element("button", { type: "submit", class: "strong" }, "Start");
  prompt.value = kept(sessionStorage, "draft.new");
  prompt.addEventListener("input", () => keep(sessionStorage, "draft.new", prompt.value));
  const row = (words, input) => element("label", { class: "row" }, element("span", { class: "label" }, words), input);
  const form = element(
    "form",
    { class: "begin" },
    row("Task", prompt),
    element("div", { class: "pair" }, row("Vendor", vendor), row("Permissions", mode)),
    row("Folder", cwd),
    row("Model (optional)", model),
    element("datalist", { id: "folders" }, folders.map((value) => element("option", { value }))),
    wrong,
    element("div", { class: "tools" }, button, element("a", { class: "button", href: "#" }, "Cancel")),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    wrong.hidden = true;
    try {
      const body = { vendor: vendor.value, cwd: cwd.value.trim(), prompt: prompt.value, mode: mode.value, model: model.value.trim() || undefined };
      const told = await ask("POST", "/sessions", body);
      keep(localStorage, "vendor", body.vendor);
      keep(localStorage, "cwd", body.cwd);
      keep(sessionStorage, "draft.new", "");
      await look();
      location.hash = `#s/${encodeURIComponent(told.id)}`;
    } catch (refused) {
      const field = { cwd, prompt, model, vendor, mode }[refused.body.field];
      wrongIn(wrong, field === cwd ? "Folder: there is no such folder on the machine of the server. Give its whole path, from / on." : [refused.message, refused.body.hint].filter(Boolean).join(". "));
      if (field) field.focus();
      button.disabled = false;
    }
  });
  prompt.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  view("begin", element("h1", null, "Start a session"), form);
  prompt.focus();
}
