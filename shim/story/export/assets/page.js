// The page: what stands above the steps, the colours, and the beginning.

// So many steps are laid out together, when they come near the screen: one at a time makes scrolling slow, all at once
// the beginning.
const GROUP_SIZE = 20;

function renderHeader() {
  const { about, totals } = session;
  const startTime = about.started ? `${about.started.slice(0, 10)} ${about.started.slice(11, 16)} UTC` : "";
  const overline = [[about.vendor, about.version].filter(Boolean).join(" "), about.model, startTime].filter(Boolean);
  find("top").append(
    element("p", { class: "over" }, overline.join(" · ")),
    element("h1", null, session.title || "A session"),
    element("dl", { class: "totals" }, listTotals(totals).map(([name, value, detail]) => element("div", null, element("dt", null, name), element("dd", null, value, detail ? element("small", null, detail) : "")))),
    ...renderTimeline(),
    ...renderOutline(),
    session.notes.length ? element("ul", { class: "notes", "aria-label": "Notes on this export" }, session.notes.map((note) => element("li", null, note))) : "",
  );
  find("foot").append(
    element("p", null, [about.folder, `recorded by shim ${about.shim}`, `exported by shim ${about.exporter}`].filter(Boolean).join(" · ")),
  );
}

function listTotals(totals) {
  const { tokens } = totals;
  const problemCounts = [[totals.failed, "failed"], [totals.denied, "denied"]];
  const inputTokens = (tokens.input_tokens || 0) + (tokens.cache_read_input_tokens || 0) + (tokens.cache_creation_input_tokens || 0);
  const cacheNote = tokens.cache_read_input_tokens ? `, ${grouped(tokens.cache_read_input_tokens)} cached` : "";
  const repairs = Object.entries(totals.repairs);
  return [
    ["Time", formatDuration(totals.duration), ""],
    ["Turns", grouped(totals.turns), totals.errors ? `${grouped(totals.errors)} failed` : ""],
    ["Tool calls", grouped(totals.calls), problemCounts.filter(([count]) => count).map(([count, label]) => `${grouped(count)} ${label}`).join(", ")],
    ["Tokens", `${grouped(inputTokens)} in`, `${grouped(tokens.output_tokens || 0)} out${cacheNote}`],
    ["Cost", totals.cost ? `$${totals.cost.toFixed(4)}` : "–", ""],
    ...(repairs.length ? [["Repairs", grouped(repairs.reduce((sum, [, count]) => sum + count, 0)), repairs.map(([name]) => name.replaceAll("_", " ")).slice(0, 3).join(", ")]] : []),
  ];
}

// -- the beginning ---------------------------------------------------------------------------------------------

function listenToTheme() {
  const systemTheme = matchMedia("(prefers-color-scheme: dark)");
  const button = find("theme");
  let darkChoice = null;
  const applyTheme = () => {
    const isDark = darkChoice === null ? systemTheme.matches : darkChoice;
    document.documentElement.dataset.theme = isDark ? "dark" : "light";
    button.setAttribute("aria-pressed", String(isDark));
    button.title = isDark ? "Light mode" : "Dark mode";
  };
  button.addEventListener("click", () => {
    darkChoice = document.documentElement.dataset.theme !== "dark";
    applyTheme();
  });
  systemTheme.addEventListener("change", applyTheme);
  applyTheme();
}

function followAddress() {
  const match = /^#step-([0-9]{1,9})$/.exec(location.hash);
  const item = match && numbered.get(Number(match[1]));
  if (!item) return;
  leaveReplay();
  setOnlyMatches(false);
  scrollToItem(item);
}

listenToTheme();
renderHeader();
const stepNodes = items.map((item) => (DRAW[item.step.kind] || DRAW.note)(item));
for (let start = 0; start < stepNodes.length; start += GROUP_SIZE) {
  find("steps").append(element("div", { class: "group" }, stepNodes.slice(start, start + GROUP_SIZE)));
}
listenToSearch();
listenToReplay();
find("fold").addEventListener("click", () => foldAll(true));
find("unfold").addEventListener("click", () => foldAll(false));
addEventListener("hashchange", followAddress);
followAddress();
document.documentElement.dataset.ready = "yes";
