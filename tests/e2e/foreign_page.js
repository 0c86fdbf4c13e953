// What a page of somebody else's tries. Each attempt ends in a word: what it read, or that it was kept from reading.
// `target` is the gateway, `id` a session of it.

const seen = {};
const later = (ms) => new Promise((done) => setTimeout(done, ms));
const read = async (name, what) => {
  seen[name] = await Promise.race([what().catch(() => "refused"), later(3000).then(() => "refused")]);
};
const ask = (path, options) => async () => {
  const answer = await fetch(target + path, { credentials: "include", ...options });
  return answer.type === "opaque" ? "unseen" : `read ${answer.status}: ${(await answer.text()).slice(0, 80)}`;
};
const post = (type, mode) => ask(`/sessions/${id}/messages`, { method: "POST", mode, headers: type ? { "Content-Type": type } : {}, body: JSON.stringify({ text: "evil" }) });
const load = (tag, path, more = {}) => () => new Promise((done) => {
  const node = document.createElement(tag);
  node.onload = () => done("loaded");
  node.onerror = () => done("refused");
  Object.assign(node, { src: target + path, ...more });
  document.body.append(node);
});
const form = (enctype, name, value) => async () => {
  const frame = document.createElement("iframe");
  frame.name = `f${Math.random()}`;
  const made = document.createElement("form");
  Object.assign(made, { method: "POST", action: `${target}/sessions/${id}/messages`, enctype, target: frame.name });
  const field = document.createElement("input");
  Object.assign(field, { type: "hidden", name, value });
  made.append(field);
  document.body.append(frame, made);
  made.submit();
  await later(300);
  return "sent";
};
const open = (make, good) => () => new Promise((done) => {
  const link = make();
  link.onopen = () => done(good);
  link.onmessage = (event) => done(`read ${event.data}`);
  link.onerror = () => done("refused");
});

async function attack() {
  await read("get", ask("/sessions", {}));
  await read("get unseen", ask("/sessions", { mode: "no-cors" }));
  await read("post", post("application/json", "cors"));
  await read("post text", post("text/plain", "no-cors"));
  await read("post bare", post("", "no-cors"));
  await read("post beacon", async () => `${navigator.sendBeacon(`${target}/sessions/${id}/stop`, "{}") ? "sent" : "refused"}`);
  await read("login", ask("/login", { method: "POST", mode: "no-cors", body: "{}" }));
  await read("form text", form("text/plain", '{"text":"evil","x":"', '"}'));
  await read("form", form("application/x-www-form-urlencoded", "text", "evil"));
  await read("events", open(() => new EventSource(`${target}/sessions/${id}/events`, { withCredentials: true }), "opened"));
  await read("steps", open(() => new EventSource(`${target}/sessions/${id}/steps`, { withCredentials: true }), "opened"));
  await read("socket", open(() => new WebSocket(`${target.replace("http", "ws")}/sessions/${id}/events`), "opened"));
  await read("script", load("script", "/sessions"));
  await read("page's script", load("script", "/assets/page.js"));
  await read("image", load("img", "/assets/icon.svg"));
  await read("frame", async () => { await load("iframe", "/")(); return document.querySelector("iframe:last-of-type").contentDocument ? "read" : "unseen"; });
  return seen;
}
window.done = null;
attack().then((seen) => { window.done = seen; document.documentElement.dataset.ready = "yes"; });
