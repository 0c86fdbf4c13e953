// Replay: steps appear when they happened, texts grow as they were streamed, calls run as long as they ran.
// Long waits are shortened: `gaps` maps the time of the session to the time of the replay.

const WAIT_MS = 2000; // no wait is longer, at speed 1
const SPEEDS = [0.25, 0.5, 1, 2, 4, 8, 16];
const END_MS = 600; // the last step is looked at before it is over

const replay = { on: false, playing: false, at: 0, end: 0, speed: 1, moments: [], shown: 0, live: new Set(), last: 0, follow: true };

/** The moments of a session, each with its time in the replay. */
function prepare() {
  const times = new Set([0]);
  for (const { step } of items) {
    times.add(step.at);
    if (step.until) times.add(step.until);
    for (const [after] of step.growth || []) times.add(step.at + after);
  }
  let played = 0;
  let before = 0;
  let shortened = 0;
  for (const time of [...times].sort((one, other) => one - other)) {
    const wait = Math.min(time - before, WAIT_MS);
    shortened += time - before - wait;
    played += wait;
    before = time;
    replay.moments.push([played, time]);
  }
  replay.end = played + END_MS;
  const position = find("position");
  position.max = String(Math.ceil(replay.end / 1000) * 1000);
  position.step = String(Math.ceil(replay.end / 1000));
  position.value = position.max;
  find("gaps").textContent = shortened ? `Waits over ${WAIT_MS / 1000} s are shortened: ${lasting(shortened)} of ${lasting(before)} in all.` : "";
}

/** The time in the session at a time in the replay. */
function timeAt(played) {
  const { moments } = replay;
  let low = 0;
  let high = moments.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (moments[middle][0] <= played) low = middle;
    else high = middle - 1;
  }
  const [from, time] = moments[low];
  const next = moments[low + 1];
  if (!next) return time;
  return time + ((played - from) / (next[0] - from || 1)) * (next[1] - time);
}

/** The time in the replay at a time in the session. */
function playedAt(time) {
  let found = replay.moments[0];
  for (const moment of replay.moments) {
    if (moment[1] > time) break;
    found = moment;
  }
  return found[0];
}

/** Show the session as it was at a time of the replay. */
function showAt(played) {
  const back = played < replay.at || !replay.on;
  replay.at = Math.min(played, replay.end);
  const time = timeAt(replay.at);
  if (back) {
    for (const item of items) item.node.hidden = true;
    replay.shown = 0;
    for (const item of replay.live) settle(item);
    replay.live.clear();
  }
  if (!replay.on) {
    replay.on = true;
    document.body.classList.add("replaying");
    find("gaps").hidden = !find("gaps").textContent;
  }
  while (replay.shown < items.length && items[replay.shown].step.at <= time) {
    const item = items[replay.shown];
    replay.shown += 1;
    item.node.hidden = false;
    item.shown = -1;
    replay.live.add(item);
  }
  for (const item of replay.live) draw(item, time);
  find("position").value = String(replay.at);
  tick(time);
}

/** One step that goes on. */
function draw(item, time) {
  const { step } = item;
  if ((step.until || 0) <= time) {
    settle(item);
    replay.live.delete(item);
  } else if (step.growth && (step.kind === "text" || step.kind === "thinking")) {
    let part = 0;
    for (const [after, permille] of step.growth) {
      if (step.at + after > time) break;
      part = permille;
    }
    if (part === item.shown) return;
    item.shown = part;
    item.node.classList.add("growing");
    if (step.kind === "text") {
      const trees = step.trees || [];
      item.body.replaceChildren(...nodesOf(trees, { left: Math.ceil((textOf(trees).length * part) / 1000) }));
    }
  } else if (step.kind === "call") {
    item.node.classList.add("going");
  }
}

/** A step is over: all of it is there. */
function settle(item) {
  item.node.classList.remove("growing", "going");
  if (item.step.kind === "text" && item.shown >= 0) item.body.replaceChildren(...nodesOf(item.step.trees || []));
  item.shown = -1;
}

function tick(time) {
  const duration = session.totals.duration;
  find("clock").textContent = `${clock(time)} / ${clock(duration)}`;
  find("position").setAttribute("aria-valuetext", `${clock(time)} of ${clock(duration)}`);
  const head = find("head");
  if (!head) return; // nothing took any time
  head.hidden = !replay.on;
  head.style.left = `${Math.min(100, (100 * time) / (duration || 1))}%`;
}

function frame(now) {
  if (!replay.playing) return;
  const passed = Math.min(now - replay.last, 250) * replay.speed; // a page that was in the background does not leap
  replay.last = now;
  const before = replay.shown;
  showAt(replay.at + passed);
  if (replay.follow) {
    const last = items[replay.shown - 1];
    if (last && (replay.shown !== before || replay.live.size)) last.node.scrollIntoView({ block: "end" });
  }
  if (replay.at >= replay.end) leaveReplay();
  else requestAnimationFrame(frame);
}

function play() {
  onlyMatches(false);
  if (!replay.on) showAt(0);
  replay.playing = replay.follow = true;
  replay.last = performance.now();
  playing(true);
  requestAnimationFrame(frame);
}

function pause() {
  replay.playing = false;
  playing(false);
}

/** All of the session is there again. */
function leaveReplay() {
  pause();
  if (!replay.on) return;
  replay.on = false;
  for (const item of items) item.node.hidden = false;
  for (const item of replay.live) settle(item);
  replay.live.clear();
  replay.at = replay.end;
  document.body.classList.remove("replaying");
  find("gaps").hidden = true;
  find("position").value = find("position").max;
  tick(session.totals.duration);
}

function playing(is) {
  const button = find("play");
  button.textContent = is ? "❚❚" : "▶";
  button.setAttribute("aria-label", is ? "Pause the replay" : "Play the session");
  document.body.classList.toggle("playing", is);
}

function listenToReplay() {
  prepare();
  find("play").addEventListener("click", () => (replay.playing ? pause() : play()));
  find("position").addEventListener("input", (event) => {
    const wanted = Number(event.target.value);
    if (wanted >= replay.end) leaveReplay();
    else showAt(wanted);
  });
  find("speed").addEventListener("input", (event) => {
    replay.speed = SPEEDS[Number(event.target.value)];
    find("rate").textContent = `${replay.speed}×`;
    event.target.setAttribute("aria-valuetext", `${replay.speed} times`);
  });
  for (const name of ["wheel", "touchmove"]) addEventListener(name, () => (replay.follow = false), { passive: true });
  addEventListener("keydown", (event) => {
    if (event.key === "Escape" && replay.on) leaveReplay();
    if (["PageUp", "PageDown", "Home", "End", "ArrowUp", "ArrowDown"].includes(event.key)) replay.follow = false;
  });
  tick(session.totals.duration);
}
