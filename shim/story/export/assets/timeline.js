// Where the time went: a bar of equal columns. Each column is filled in the shares of what its part of the time was spent
// on, so that the bar says the same as the numbers below it, however many steps a session has.

const SPENT = [["tool", "Tools", 1], ["model", "Model", 0], ["person", "Waiting for a person", 2], ["idle", "Idle", 3]]; // from the bottom up
const FOOT = 125; // the height of the marks of failures, below a bar of 1000

/** The columns of one kind as a path. Neighbours that are alike are one rectangle. */
function columns(tell) {
  const parts = [];
  let begin = 0;
  const { timeline: all } = session;
  for (let at = 1; at <= all.length; at += 1) {
    const [from, to] = tell(begin);
    if (at < all.length && tell(at)[0] === from && tell(at)[1] === to) continue;
    if (to > from) parts.push(`M${begin} ${1000 - to}H${at}V${1000 - from}H${begin}z`);
    begin = at;
  }
  return parts.join("");
}

/** For each column the share below a kind, and the share with it. */
function share(order, at) {
  const column = session.timeline[at];
  const below = SPENT.slice(0, order).reduce((sum, [, , place]) => sum + column[place], 0);
  return [below, below + column[SPENT[order][2]]];
}

/** Whether a failure lies in each of the columns. */
function failedColumns() {
  const { duration } = session.totals;
  const wide = duration / session.timeline.length;
  const failed = session.timeline.map(() => false);
  for (const { step } of items.filter(wrong)) {
    const last = Math.min(Math.floor((step.until || step.at) / wide), failed.length - 1);
    for (let at = Math.min(Math.floor(step.at / wide), last - 1); at <= last; at += 1) failed[Math.max(at, 0)] = true; // two at least, to be seen
  }
  return failed;
}

function described(item) {
  const { step } = item;
  const names = { start: "session starts", prompt: "prompt", thinking: "thinking", text: "text", question: `may ${step.name} run?`, answer: "answer", error: "error" };
  const name = step.kind === "call" ? [step.name, (step.main || "").slice(0, 60)].filter(Boolean).join(" ") : names[step.kind] || (step.kind === "result" ? `turn ${step.turn || 1} ends` : "note");
  const took = step.until > step.at ? `, ${lasting(step.until - step.at)}` : "";
  return `${clock(step.at)}: ${name}${took}${step.outcome && step.outcome !== "ok" ? `, ${OUTCOMES[step.outcome][1]}` : ""}`;
}

function timeline() {
  const { duration, spent } = session.totals;
  if (!duration || !session.timeline.length) return [];
  const strip = element("div", {
    class: "strip",
    id: "strip",
    role: "slider",
    tabindex: 0,
    "aria-label": "Where the time went. Arrows go from step to step, Page Up and Page Down from turn to turn, Enter jumps there",
    "aria-valuemin": 0,
    "aria-valuemax": Math.round(duration / 1000),
    "aria-valuenow": 0,
  });
  const failed = failedColumns();
  const drawing = drawn("svg", { viewBox: `0 0 ${session.timeline.length} ${1000 + FOOT}`, preserveAspectRatio: "none", "shape-rendering": "crispEdges", "aria-hidden": "true" });
  SPENT.forEach(([kind], order) => drawing.append(drawn("path", { class: kind, d: columns((at) => share(order, at)) })));
  drawing.append(drawn("rect", { class: "foot", y: 1000, width: session.timeline.length, height: FOOT }));
  if (failed.includes(true)) drawing.append(drawn("path", { class: "failed", d: columns((at) => (failed[at] ? [-FOOT, 0] : [0, 0])) }));
  strip.append(drawing, element("span", { id: "head", class: "head", hidden: true }), element("span", { id: "chosen", class: "chosen", hidden: true }));
  listenToStrip(strip, duration);
  const legend = [...SPENT].sort((one, other) => one[2] - other[2]).filter(([name]) => spent[name]).map(([name, words]) =>
    element("li", { class: name }, element("span", null, words), ` ${lasting(spent[name])}`, element("small", null, ` ${Math.round((100 * spent[name]) / duration)} %`)),
  );
  if (failed.includes(true)) legend.push(element("li", { class: "failed" }, element("span", null, "Failed")));
  return [element("div", { class: "time" }, strip, element("ul", { class: "legend", "aria-label": "Where the time went" }, legend))];
}

/** The step at a moment: a failure that is near, else the call that runs, else the last step before. */
function stepNear(ms, near) {
  const running = ({ step }) => step.at - near <= ms && ms <= (step.until || step.at) + near;
  return items.findLast((item) => wrong(item) && running(item)) || items.findLast(({ step }) => step.kind === "call" && step.at <= ms && ms <= (step.until || step.at)) || stepAt(ms);
}

function listenToStrip(strip, duration) {
  let chosen = -1;
  const pointed = (event) => {
    const box = strip.getBoundingClientRect();
    return stepNear(((event.clientX - box.left) / box.width) * duration, (2 * duration) / box.width);
  };
  const choose = (index) => {
    chosen = Math.max(0, Math.min(items.length - 1, index));
    const { step } = items[chosen];
    const mark = find("chosen");
    mark.hidden = false;
    mark.style.left = `${(100 * step.at) / duration}%`;
    mark.style.width = `${(100 * ((step.until || step.at) - step.at)) / duration}%`;
    strip.setAttribute("aria-valuenow", String(Math.round(step.at / 1000)));
    strip.setAttribute("aria-valuetext", described(items[chosen]));
  };
  const turn = (by) => {
    const firsts = turns().map(({ first }) => items.indexOf(first));
    return by > 0 ? firsts.find((at) => at > chosen) ?? items.length - 1 : firsts.findLast((at) => at < chosen) ?? 0;
  };
  const go = (item) => {
    leaveReplay();
    jump(item);
  };
  strip.addEventListener("click", (event) => go(pointed(event)));
  strip.addEventListener("pointermove", (event) => {
    strip.title = items.length ? described(pointed(event)) : "";
  });
  strip.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    if (by) choose(chosen + by);
    else if (event.key === "PageDown") choose(turn(1));
    else if (event.key === "PageUp") choose(turn(-1));
    else if (event.key === "Home") choose(0);
    else if (event.key === "End") choose(items.length - 1);
    else if (event.key === "Enter" && chosen >= 0) go(items[chosen]);
    else return;
    event.preventDefault();
  });
}
