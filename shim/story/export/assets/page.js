// The page: what stands above the steps, the timeline, the colours, and the beginning.

// So many steps are laid out together, when they come near the screen: one at a time makes scrolling slow, all at once
// the beginning.
const GROUP = 20;

const SPENT = { model: "Model", tool: "Tools", person: "Waiting for a person", idle: "Idle" };

function drawTop() {
  const { about, totals } = session;
  const started = about.started ? `${about.started.slice(0, 10)} ${about.started.slice(11, 16)} UTC` : "";
  const over = [[about.vendor, about.version].filter(Boolean).join(" "), about.model, started].filter(Boolean);
  find("top").append(
    element("p", { class: "over" }, over.join(" · ")),
    element("h1", null, session.title || "A session"),
    element("dl", { class: "totals" }, sums(totals).map(([name, value, more]) => element("div", null, element("dt", null, name), element("dd", null, value, more ? element("small", null, more) : "")))),
    ...timeline(),
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
  const cached = tokens.cache_read_input_tokens ? `, ${compact(tokens.cache_read_input_tokens)} cached` : "";
  const repairs = Object.entries(totals.repairs);
  return [
    ["Time", lasting(totals.duration), ""],
    ["Turns", String(totals.turns), totals.errors ? `${totals.errors} failed` : ""],
    ["Tool calls", String(totals.calls), wrong.filter(([count]) => count).map((each) => each.join(" ")).join(", ")],
    ["Tokens", `${compact(input)} in`, `${compact(tokens.output_tokens || 0)} out${cached}`],
    ["Cost", totals.cost ? `$${totals.cost.toFixed(totals.cost < 1 ? 4 : 2)}` : "–", ""],
    ...(repairs.length ? [["Repairs", String(repairs.reduce((sum, [, many]) => sum + many, 0)), repairs.map(([name]) => name.replaceAll("_", " ")).slice(0, 3).join(", ")]] : []),
  ];
}

// -- the timeline ----------------------------------------------------------------------------------------------

function describe([spent, begin, end, number]) {
  const item = numbered.get(number);
  return `${clock(begin)}: ${item ? item.step.name : SPENT[spent]}, ${lasting(end - begin)}`;
}

function timeline() {
  const { duration, spent } = session.totals;
  if (!duration) return [];
  const strip = element("div", {
    class: "strip",
    id: "strip",
    role: "slider",
    tabindex: 0,
    "aria-label": "Where the time went; Enter jumps there",
    "aria-valuemin": 0,
    "aria-valuemax": Math.round(duration / 1000),
    "aria-valuenow": 0,
  });
  for (const span of session.spans) {
    const [kind, begin, end, number] = span;
    const item = numbered.get(number);
    const failed = item && item.step.outcome === "failed" ? " failed" : "";
    const part = element("span", { class: `span ${kind}${failed}`, title: describe(span) });
    part.style.left = `${(100 * begin) / duration}%`;
    part.style.width = `${(100 * (end - begin)) / duration}%`;
    strip.append(part);
  }
  strip.append(element("span", { id: "head", class: "head", hidden: true }), element("span", { id: "chosen", class: "chosen", hidden: true }));
  listenToStrip(strip, duration);
  const legend = Object.keys(SPENT).filter((name) => spent[name]).map((name) =>
    element("li", { class: name }, element("span", null, SPENT[name]), ` ${lasting(spent[name])}`, element("small", null, ` ${Math.round((100 * spent[name]) / duration)} %`)),
  );
  return [element("div", { class: "time" }, strip, element("ul", { class: "legend", "aria-label": "Where the time went" }, legend))];
}

function listenToStrip(strip, duration) {
  let chosen = -1;
  const to = (ms, number) => {
    leaveReplay();
    jump(numbered.get(number) || stepAt(ms));
  };
  const choose = (index) => {
    chosen = Math.max(0, Math.min(session.spans.length - 1, index));
    const span = session.spans[chosen];
    const mark = find("chosen");
    mark.hidden = false;
    mark.style.left = `${(100 * span[1]) / duration}%`;
    mark.style.width = `${(100 * (span[2] - span[1])) / duration}%`;
    strip.setAttribute("aria-valuenow", String(Math.round(span[1] / 1000)));
    strip.setAttribute("aria-valuetext", describe(span));
  };
  strip.addEventListener("click", (event) => {
    const box = strip.getBoundingClientRect();
    const ms = ((event.clientX - box.left) / box.width) * duration;
    const hit = session.spans.findLast(([kind, begin, end]) => kind === "tool" && begin <= ms && ms <= end);
    to(ms, hit ? hit[3] : 0);
  });
  strip.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    if (by) choose(chosen + by);
    else if (event.key === "Home") choose(0);
    else if (event.key === "End") choose(session.spans.length - 1);
    else if (event.key === "Enter" && chosen >= 0) to(session.spans[chosen][1], session.spans[chosen][3]);
    else return;
    event.preventDefault();
  });
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
const drawn = items.map((item) => (DRAW[item.step.kind] || DRAW.note)(item));
for (let at = 0; at < drawn.length; at += GROUP) {
  find("steps").append(element("div", { class: "group" }, drawn.slice(at, at + GROUP)));
}
listenToSearch();
listenToReplay();
find("fold").addEventListener("click", () => foldAll(true));
find("unfold").addEventListener("click", () => foldAll(false));
addEventListener("hashchange", followAddress);
followAddress();
document.documentElement.dataset.ready = "yes";
