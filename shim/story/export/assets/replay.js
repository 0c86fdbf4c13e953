// Replay: steps appear when they happened, texts grow as they were streamed, calls run as long as they ran.
// Long waits are shortened: `gaps` maps the time of the session to the time of the replay.

const WAIT_MS = 2000; // no wait is longer, at speed 1
const SPEEDS = [0.25, 0.5, 1, 2, 4, 8, 16];
const END_MS = 600; // the last step is looked at before it is over

const replay = { isActive: false, playing: false, at: 0, end: 0, speed: 1, moments: [], visibleCount: 0, runningItems: new Set(), last: 0, isFollowing: true };

/** The moments of a session, each with its time in the replay. */
function prepareReplay() {
  const times = new Set([0]);
  for (const { step } of items) {
    times.add(step.at);
    if (step.until) times.add(step.until);
    for (const [offset] of step.growth || []) times.add(step.at + offset);
  }
  let replayMs = 0;
  let previous = 0;
  let shortened = 0;
  for (const time of [...times].sort((first, second) => first - second)) {
    const wait = Math.min(time - previous, WAIT_MS);
    shortened += time - previous - wait;
    replayMs += wait;
    previous = time;
    replay.moments.push([replayMs, time]);
  }
  replay.end = replayMs + END_MS;
  const position = find("position");
  position.max = String(Math.ceil(replay.end / 1000) * 1000);
  position.step = String(Math.ceil(replay.end / 1000));
  position.value = position.max;
  find("gaps").textContent = shortened ? `Waits over ${WAIT_MS / 1000} s are shortened: ${formatDuration(shortened)} of ${formatDuration(previous)} in all.` : "";
}

/** The time in the session at a time in the replay. */
function getSessionTime(replayMs) {
  const { moments } = replay;
  let low = 0;
  let high = moments.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (moments[middle][0] <= replayMs) low = middle;
    else high = middle - 1;
  }
  const [start, time] = moments[low];
  const next = moments[low + 1];
  if (!next) return time;
  return time + ((replayMs - start) / (next[0] - start || 1)) * (next[1] - time);
}

/** The time in the replay at a time in the session. */
function playedAt(time) {
  let last = replay.moments[0];
  for (const moment of replay.moments) {
    if (moment[1] > time) break;
    last = moment;
  }
  return last[0];
}

/** Show the session as it was at a time of the replay. */
function showAt(replayMs) {
  const isBackward = replayMs < replay.at || !replay.isActive;
  replay.at = Math.min(replayMs, replay.end);
  const time = getSessionTime(replay.at);
  if (isBackward) {
    for (const item of items) item.node.hidden = true;
    replay.visibleCount = 0;
    for (const item of replay.runningItems) finishItem(item);
    replay.runningItems.clear();
  }
  if (!replay.isActive) {
    replay.isActive = true;
    document.body.classList.add("replaying");
    find("gaps").hidden = !find("gaps").textContent;
  }
  while (replay.visibleCount < items.length && items[replay.visibleCount].step.at <= time) {
    const item = items[replay.visibleCount];
    replay.visibleCount += 1;
    item.node.hidden = false;
    item.renderedPermille = -1;
    replay.runningItems.add(item);
  }
  for (const item of replay.runningItems) renderRunningItem(item, time);
  find("position").value = String(replay.at);
  updateClock(time);
}

/** One step that goes on. */
function renderRunningItem(item, time) {
  const { step } = item;
  if ((step.until || 0) <= time) {
    finishItem(item);
    replay.runningItems.delete(item);
  } else if (step.growth && (step.kind === "text" || step.kind === "thinking")) {
    let permille = 0;
    for (const [offset, sharePermille] of step.growth) {
      if (step.at + offset > time) break;
      permille = sharePermille;
    }
    if (permille === item.renderedPermille) return;
    item.renderedPermille = permille;
    item.node.classList.add("growing");
    if (step.kind === "text") {
      const trees = step.trees || [];
      item.body.replaceChildren(...renderTrees(trees, { left: Math.ceil((textOf(trees).length * permille) / 1000) }));
    }
  } else if (step.kind === "call") {
    item.node.classList.add("going");
  }
}

/** A step is over: all of it is there. */
function finishItem(item) {
  item.node.classList.remove("growing", "going");
  if (item.step.kind === "text" && item.renderedPermille >= 0) item.body.replaceChildren(...renderTrees(item.step.trees || []));
  item.renderedPermille = -1;
}

function updateClock(time) {
  const duration = session.totals.duration;
  find("clock").textContent = `${formatClock(time)} / ${formatClock(duration)}`;
  find("position").setAttribute("aria-valuetext", `${formatClock(time)} of ${formatClock(duration)}`);
  const head = find("head");
  if (!head) return; // nothing took any time
  head.hidden = !replay.isActive;
  head.style.left = `${Math.min(100, (100 * time) / (duration || 1))}%`;
}

function frame(now) {
  if (!replay.playing) return;
  const elapsed = Math.min(now - replay.last, 250) * replay.speed; // a page that was in the background does not leap
  replay.last = now;
  const previousCount = replay.visibleCount;
  showAt(replay.at + elapsed);
  if (replay.isFollowing) {
    const last = items[replay.visibleCount - 1];
    if (last && (replay.visibleCount !== previousCount || replay.runningItems.size)) last.node.scrollIntoView({ block: "end" });
  }
  if (replay.at >= replay.end) leaveReplay();
  else requestAnimationFrame(frame);
}

function startReplay() {
  setOnlyMatches(false);
  if (!replay.isActive) showAt(0);
  replay.playing = replay.isFollowing = true;
  replay.last = performance.now();
  updatePlayButton(true);
  requestAnimationFrame(frame);
}

function pause() {
  replay.playing = false;
  updatePlayButton(false);
}

/** All of the session is there again. */
function leaveReplay() {
  pause();
  if (!replay.isActive) return;
  replay.isActive = false;
  for (const item of items) item.node.hidden = false;
  for (const item of replay.runningItems) finishItem(item);
  replay.runningItems.clear();
  replay.at = replay.end;
  document.body.classList.remove("replaying");
  find("gaps").hidden = true;
  find("position").value = find("position").max;
  updateClock(session.totals.duration);
}

function updatePlayButton(isPlaying) {
  const button = find("play");
  button.textContent = isPlaying ? "❚❚" : "▶";
  button.setAttribute("aria-label", isPlaying ? "Pause the replay" : "Play the session");
  document.body.classList.toggle("playing", isPlaying);
}

function listenToReplay() {
  prepareReplay();
  find("play").addEventListener("click", () => (replay.playing ? pause() : startReplay()));
  find("position").addEventListener("input", (event) => {
    const position = Number(event.target.value);
    if (position >= replay.end) leaveReplay();
    else showAt(position);
  });
  find("speed").addEventListener("input", (event) => {
    replay.speed = SPEEDS[Number(event.target.value)];
    find("rate").textContent = `${replay.speed}×`;
    event.target.setAttribute("aria-valuetext", `${replay.speed} times`);
  });
  for (const name of ["wheel", "touchmove"]) addEventListener(name, () => (replay.isFollowing = false), { passive: true });
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && replay.isActive) leaveReplay();
    if (["PageUp", "PageDown", "Home", "End", "ArrowUp", "ArrowDown"].includes(event.key)) replay.isFollowing = false;
  });
  updateClock(session.totals.duration);
}
