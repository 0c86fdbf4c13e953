// What stands in the middle when no session does: the start of one, the way in, and what went wrong.

function showView(name, ...nodes) {
  leaveSession();
  document.body.dataset.view = name;
  find("main").replaceChildren(element("div", { class: `page ${name}` }, nodes));
}

function showError(title, text) {
  showView("wrong", element("h1", null, title), element("p", null, text), element("p", null, element("a", { class: "button", href: "#" }, "All sessions")));
}

function showNoSession() {
  const [title, text] = list.sessions.length
    ? ["Choose a session", "Sessions that need your input are at the top. Sessions keep running when you close this page."]
    : ["No sessions yet", "Background sessions run on this machine. Start one here or in a terminal, then follow it and answer its permission prompts from anywhere."];
  showView("none", element("h1", null, title), element("p", null, text), isWatchOnly() ? "" : element("p", null, element("a", { class: "button strong", href: "#new" }, "Start a session")));
}

// -- the way in ----------------------------------------------------------------------------------------------------

/** No token, or one that is not good any more. */
function askForToken(reason = "") {
  if (document.body.dataset.view === "login" && !reason) return;
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
    element("p", { class: "hint", id: "token-hint" }, element("code", null, "shim bridge serve"), " prints an address that contains it, and a QR code for a phone; ", element("code", null, "shim bridge token"), " prints it again."),
    element("p", { class: "wrong", role: "alert", hidden: !reason }, reason),
    element("div", { class: "tools" }, element("button", { type: "submit", class: "strong" }, "Sign in")),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    exchangeToken(input.value.trim());
  });
  showView("login", element("h1", null, "Sign in"), form);
  input.focus();
}

/** Exchange a token for a cookie. */
async function exchangeToken(token) {
  document.body.dataset.view = "wait";
  try {
    proof.store((await sendRequest("POST", "/login", { token })).proof);
  } catch (error) {
    document.body.dataset.view = "wait";
    askForToken(error.status === 401 || error.status === 403 ? "Invalid token. It may have expired, been replaced, or been copied incompletely." : error.message);
    return;
  }
  await startPage();
}

/** The first look: who this is, and what there is. */
async function startPage() {
  document.body.dataset.view = "wait";
  try {
    await loadAccess();
  } catch (error) {
    if (error.status === 401) return;
  }
  await refreshList();
  followAddress();
}

const access = { role: "drive" };

/** Whether this page may look only: by its token. */
function isWatchOnly() {
  return access.role === "watch";
}

/** What this page may do, and what a new session may be of. */
async function loadAccess() {
  const response = await sendRequest("GET", "/me");
  access.role = response.role;
  list.vendors = response.vendors;
  list.installed = response.installed || response.vendors;
  find("new").hidden = isWatchOnly();
  drawComposer();
}

// -- a new session ---------------------------------------------------------------------------------------------------

function showStartForm() {
  const listValues = (name) => [...new Set(list.sessions.map((session) => session[name]).filter(Boolean))];
  const folders = listValues("cwd");
  const allVendors = list.vendors.length ? list.vendors : listValues("vendor");
  const isInstalled = (vendor) => !list.installed || list.installed.includes(vendor);
  const vendors = [...allVendors.filter(isInstalled), ...allVendors.filter((vendor) => !isInstalled(vendor))];
  const vendor = element("select", { id: "vendor" }, vendors.map((name) => element("option", { value: name, disabled: !isInstalled(name) }, formatLine(name, 40) + (isInstalled(name) ? "" : " (not installed)"))));
  const lastVendor = [readStored(localStorage, "vendor"), ...listValues("vendor")].find((vendor) => vendor && vendors.includes(vendor) && isInstalled(vendor));
  if (lastVendor) vendor.value = lastVendor;
  const cwd = element("input", { id: "cwd", list: "folders", value: readStored(localStorage, "cwd") || folders[0] || "", autocomplete: "off", autocapitalize: "off", spellcheck: "false", required: true, placeholder: "/home/you/project" });
  const mode = element("select", { id: "newmode" }, ["default", "acceptEdits", "plan"].map((name) => element("option", { value: name }, MODES[name])));
  const model = element("input", { id: "newmodel", autocomplete: "off", autocapitalize: "off", spellcheck: "false", placeholder: "Default model" });
  const prompt = element("textarea", { id: "prompt", rows: 4, required: true, placeholder: "What should the agent do?" });
  const errorLine = element("p", { class: "wrong", role: "alert", hidden: true });
  const button = element("button", { type: "submit", class: "strong" }, "Start");
  prompt.value = readStored(sessionStorage, "draft.new");
  prompt.addEventListener("input", () => storeValue(sessionStorage, "draft.new", prompt.value));
  const row = (label, input) => element("label", { class: "row" }, element("span", { class: "label" }, label), input);
  const form = element(
    "form",
    { class: "begin" },
    row("Task", prompt),
    element("div", { class: "pair" }, row("Vendor", vendor), row("Permissions", mode)),
    row("Folder", cwd),
    row("Model (optional)", model),
    element("datalist", { id: "folders" }, folders.map((value) => element("option", { value }))),
    errorLine,
    element("div", { class: "tools" }, button, element("a", { class: "button", href: "#" }, "Cancel")),
  );
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    button.disabled = true;
    errorLine.hidden = true;
    try {
      const body = { vendor: vendor.value, cwd: cwd.value.trim(), prompt: prompt.value, mode: mode.value, model: model.value.trim() || undefined };
      const response = await sendRequest("POST", "/sessions", body);
      storeValue(localStorage, "vendor", body.vendor);
      storeValue(localStorage, "cwd", body.cwd);
      storeValue(sessionStorage, "draft.new", "");
      await refreshList();
      location.hash = `#s/${encodeURIComponent(response.id)}`;
    } catch (error) {
      const field = { cwd, prompt, model, vendor, mode }[error.body.field];
      showErrorIn(errorLine, field === cwd ? "Folder not found on the server's machine. Enter an absolute path." : [error.message, error.body.hint].filter(Boolean).join(". "));
      if (field) field.focus();
      button.disabled = false;
    }
  });
  prompt.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  showView("begin", element("h1", null, "Start a session"), form);
  prompt.focus();
}
