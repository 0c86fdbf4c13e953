// The page: what stands above the steps, the colours, and the beginning.

// So many steps are laid out together, when they come near the screen: one at a time makes scrolling slow, all at once
// the beginning.
const GROUP = 20;

function drawTop() {
  const { about, totals } = session;
  const started = about.started ? `${about.started.slice(0, 10)} ${about.started.slice(11, 16)} UTC` : "";
  const over = [[about.vendor, about.version].filter(Boolean).join(" "), about.model, started].filter(Boolean);
  find("top").append(
    element("p", { class: "over" }, over.join(" · ")),
    element("h1", null, session.title || "A session"),
    element("dl", { class: "totals" }, sums(totals).map(([name, value, more]) => element("div", null, element("dt", null, name), element("dd", null, value, more ? element("small", null, more) : "")))),
    ...timeline(),
    ...outline(),
    session.notes.length ? element("ul", { class: "notes", "aria-label": "Notes on this export" }, session.notes.map((note) => element("li", null, note))) : "",
  );
  find("foot").append(
    element("p", null, [about.folder, `recorded by shim ${about.shim}`, `exported by shim ${about.exporter}`].filter(Boolean).join(" · ")),
  );
}

function sums(totals) {
  const { tokens } = totals;
  const wrong = [[totals.failed, "failed"], [totals.denied, "denied"]];
  const input = (tokens.input_tokens || 0) + (tokens.cache_read_input_tokens || 0) + (tokens.cache_creation_input_tokens || 0);
  const cached = tokens.cache_read_input_tokens ? `, ${grouped(tokens.cache_read_input_tokens)} cached` : "";
  const repairs = Object.entries(totals.repairs);
  return [
    ["Time", lasting(totals.duration), ""],
    ["Turns", grouped(totals.turns), totals.errors ? `${grouped(totals.errors)} failed` : ""],
    ["Tool calls", grouped(totals.calls), wrong.filter(([count]) => count).map(([count, word]) => `${grouped(count)} ${word}`).join(", ")],
    ["Tokens", `${grouped(input)} in`, `${grouped(tokens.output_tokens || 0)} out${cached}`],
    ["Cost", totals.cost ? `$${totals.cost.toFixed(4)}` : "–", ""],
    ...(repairs.length ? [["Repairs", grouped(repairs.reduce((sum, [, many]) => sum + many, 0)), repairs.map(([name]) => name.replaceAll("_", " ")).slice(0, 3).join(", ")]] : []),
  ];
}

// -- the beginning ---------------------------------------------------------------------------------------------

function listenToTheme() {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const button = find("theme");
  let chosen = null;
  const apply = () => {
    const dark = chosen === null ? system.matches : chosen;
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    button.setAttribute("aria-pressed", String(dark));
    button.title = dark ? "Light mode" : "Dark mode";
  };
  button.addEventListener("click", () => {
    chosen = document.documentElement.dataset.theme !== "dark";
    apply();
  });
  system.addEventListener("change", apply);
  apply();
}

function followAddress() {
  const found = /^#step-([0-9]{1,9})$/.exec(location.hash);
  const item = found && numbered.get(Number(found[1]));
  if (!item) return;
  leaveReplay();
  onlyMatches(false);
  jump(item);
}

listenToTheme();
drawTop();
const articles = items.map((item) => (DRAW[item.step.kind] || DRAW.note)(item));
for (let at = 0; at < articles.length; at += GROUP) {
  find("steps").append(element("div", { class: "group" }, articles.slice(at, at + GROUP)));
}
listenToSearch();
listenToReplay();
find("fold").addEventListener("click", () => foldAll(true));
find("unfold").addEventListener("click", () => foldAll(false));
addEventListener("hashchange", followAddress);
followAddress();
document.documentElement.dataset.ready = "yes";
