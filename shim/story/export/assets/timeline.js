// Where the time went: a bar of equal columns. Each column is filled in the shares of what its part of the time was spent
// on, so that the bar says the same as the numbers below it, however many steps a session has.

const TIME_KINDS = [["tool", "Tools", 1], ["model", "Model", 0], ["person", "Waiting for a person", 2], ["idle", "Idle", 3]]; // from the bottom up
const FOOT_HEIGHT = 125; // the height of the marks of failures, below a bar of 1000

/** The columns of one kind as a path. Neighbours that are alike are one rectangle. */
function buildColumnPath(getShares) {
  const commands = [];
  let start = 0;
  const { timeline: columns } = session;
  for (let index = 1; index <= columns.length; index += 1) {
    const [low, high] = getShares(start);
    if (index < columns.length && getShares(index)[0] === low && getShares(index)[1] === high) continue;
    if (high > low) commands.push(`M${start} ${1000 - high}H${index}V${1000 - low}H${start}z`);
    start = index;
  }
  return commands.join("");
}

/** For each column the share below a kind, and the share with it. */
function getShares(order, index) {
  const column = session.timeline[index];
  const below = TIME_KINDS.slice(0, order).reduce((sum, [, , columnIndex]) => sum + column[columnIndex], 0);
  return [below, below + column[TIME_KINDS[order][2]]];
}

/** Whether a failure lies in each of the columns. */
function findFailedColumns() {
  const { duration } = session.totals;
  const columnMs = duration / session.timeline.length;
  const hasFailure = session.timeline.map(() => false);
  for (const { step } of items.filter(isFailure)) {
    const last = Math.min(Math.floor((step.until || step.at) / columnMs), hasFailure.length - 1);
    for (let index = Math.min(Math.floor(step.at / columnMs), last - 1); index <= last; index += 1) hasFailure[Math.max(index, 0)] = true; // two at least, to be seen
  }
  return hasFailure;
}

function describeItem(item) {
  const { step } = item;
  const names = { start: "session starts", prompt: "prompt", thinking: "thinking", text: "text", question: `may ${step.name} run?`, answer: "answer", error: "error" };
  const name = step.kind === "call" ? [step.name, (step.main || "").slice(0, 60)].filter(Boolean).join(" ") : names[step.kind] || (step.kind === "result" ? `turn ${step.turn || 1} ends` : "note");
  const duration = step.until > step.at ? `, ${formatDuration(getRunTime(step))}` : "";
  return `${formatClock(step.at)}: ${name}${duration}${step.outcome && step.outcome !== "ok" ? `, ${OUTCOMES[step.outcome][1]}` : ""}`;
}

function renderTimeline() {
  const { duration, spent } = session.totals;
  if (!duration || !session.timeline.length) return [];
  const strip = element("div", {
    class: "strip",
    id: "strip",
    role: "slider",
    tabindex: 0,
    "aria-label": "Time by activity. Arrow keys move between steps, Page Up and Page Down between turns, Enter shows the selected step",
    "aria-valuemin": 0,
    "aria-valuemax": Math.round(duration / 1000),
    "aria-valuenow": 0,
  });
  const hasFailure = findFailedColumns();
  const svg = createSvgElement("svg", { viewBox: `0 0 ${session.timeline.length} ${1000 + FOOT_HEIGHT}`, preserveAspectRatio: "none", "shape-rendering": "crispEdges", "aria-hidden": "true" });
  TIME_KINDS.forEach(([kind], order) => svg.append(createSvgElement("path", { class: kind, d: buildColumnPath((index) => getShares(order, index)) })));
  svg.append(createSvgElement("rect", { class: "foot", y: 1000, width: session.timeline.length, height: FOOT_HEIGHT }));
  if (hasFailure.includes(true)) svg.append(createSvgElement("path", { class: "failed", d: buildColumnPath((index) => (hasFailure[index] ? [-FOOT_HEIGHT, 0] : [0, 0])) }));
  strip.append(svg, element("span", { id: "head", class: "head", hidden: true }), element("span", { id: "chosen", class: "chosen", hidden: true }));
  listenToStrip(strip, duration);
  const legend = [...TIME_KINDS].sort((first, second) => first[2] - second[2]).filter(([name]) => spent[name]).map(([name, label]) =>
    element("li", { class: name }, element("span", null, label), ` ${formatDuration(spent[name])}`, element("small", null, ` ${Math.round((100 * spent[name]) / duration)} %`)),
  );
  if (hasFailure.includes(true)) legend.push(element("li", { class: "failed" }, element("span", null, "Failed")));
  return [element("div", { class: "time" }, strip, element("ul", { class: "legend", "aria-label": "Where the time went" }, legend))];
}

/** The step at a moment: a failure that is near, else the call that runs, else the last step before. */
function findItemNear(ms, toleranceMs) {
  const isRunning = ({ step }) => step.at - toleranceMs <= ms && ms <= (step.until || step.at) + toleranceMs;
  return items.findLast((item) => isFailure(item) && isRunning(item)) || items.findLast(({ step }) => step.kind === "call" && step.at <= ms && ms <= (step.until || step.at)) || findItemAt(ms);
}

function listenToStrip(strip, duration) {
  let selected = -1;
  const findPointedItem = (event) => {
    const bounds = strip.getBoundingClientRect();
    return findItemNear(((event.clientX - bounds.left) / bounds.width) * duration, (2 * duration) / bounds.width);
  };
  const selectItem = (index) => {
    selected = Math.max(0, Math.min(items.length - 1, index));
    const { step } = items[selected];
    const marker = find("chosen");
    marker.hidden = false;
    marker.style.left = `${(100 * step.at) / duration}%`;
    marker.style.width = `${(100 * ((step.until || step.at) - step.at)) / duration}%`;
    strip.setAttribute("aria-valuenow", String(Math.round(step.at / 1000)));
    strip.setAttribute("aria-valuetext", describeItem(items[selected]));
  };
  const findTurnIndex = (offset) => {
    const firstIndexes = listTurns().map(({ first }) => items.indexOf(first));
    return offset > 0 ? firstIndexes.find((first) => first > selected) ?? items.length - 1 : firstIndexes.findLast((first) => first < selected) ?? 0;
  };
  const goToItem = (item) => {
    leaveReplay();
    scrollToItem(item);
  };
  strip.addEventListener("click", (event) => goToItem(findPointedItem(event)));
  strip.addEventListener("pointermove", (event) => {
    strip.title = items.length ? describeItem(findPointedItem(event)) : "";
  });
  strip.addEventListener("keydown", (event) => {
    const offset = { ArrowRight: 1, ArrowUp: 1, ArrowLeft: -1, ArrowDown: -1 }[event.key];
    if (offset) selectItem(selected + offset);
    else if (event.key === "PageDown") selectItem(findTurnIndex(1));
    else if (event.key === "PageUp") selectItem(findTurnIndex(-1));
    else if (event.key === "Home") selectItem(0);
    else if (event.key === "End") selectItem(items.length - 1);
    else if (event.key === "Enter" && selected >= 0) goToItem(items[selected]);
    else return;
    event.preventDefault();
  });
}
