// What a page of somebody else's tries. Each attempt ends in a word: what it read, or that it was kept from reading.
// `target` is the gateway, `id` a session of it.

const results = {};
const wait = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const recordAttempt = async (name, attempt) => {
  results[name] = await Promise.race([attempt().catch(() => "refused"), wait(3000).then(() => "refused")]);
};
const requestPath = (path, options) => async () => {
  const response = await fetch(target + path, { credentials: "include", ...options });
  return response.type === "opaque" ? "unseen" : `read ${response.status}: ${(await response.text()).slice(0, 80)}`;
};
const sendMessage = (type, mode) => requestPath(`/sessions/${id}/messages`, { method: "POST", mode, headers: type ? { "Content-Type": type } : {}, body: JSON.stringify({ text: "evil" }) });
const loadElement = (tag, path, attributes = {}) => () => new Promise((resolve) => {
  const node = document.createElement(tag);
  node.onload = () => resolve("loaded");
  node.onerror = () => resolve("refused");
  Object.assign(node, { src: target + path, ...attributes });
  document.body.append(node);
});
const submitForm = (enctype, name, value) => async () => {
  const frame = document.createElement("iframe");
  frame.name = `f${Math.random()}`;
  const formNode = document.createElement("form");
  Object.assign(formNode, { method: "POST", action: `${target}/sessions/${id}/messages`, enctype, target: frame.name });
  const field = document.createElement("input");
  Object.assign(field, { type: "hidden", name, value });
  formNode.append(field);
  document.body.append(frame, formNode);
  formNode.submit();
  await wait(300);
  return "sent";
};
const openStream = (createConnection, outcome) => () => new Promise((resolve) => {
  const connection = createConnection();
  connection.onopen = () => resolve(outcome);
  connection.onmessage = (event) => resolve(`read ${event.data}`);
  connection.onerror = () => resolve("refused");
});

async function runAttempts() {
  await recordAttempt("get", requestPath("/sessions", {}));
  await recordAttempt("get unseen", requestPath("/sessions", { mode: "no-cors" }));
  await recordAttempt("post", sendMessage("application/json", "cors"));
  await recordAttempt("post text", sendMessage("text/plain", "no-cors"));
  await recordAttempt("post bare", sendMessage("", "no-cors"));
  await recordAttempt("post beacon", async () => `${navigator.sendBeacon(`${target}/sessions/${id}/stop`, "{}") ? "sent" : "refused"}`);
  await recordAttempt("login", requestPath("/login", { method: "POST", mode: "no-cors", body: "{}" }));
  await recordAttempt("form text", submitForm("text/plain", '{"text":"evil","x":"', '"}'));
  await recordAttempt("form", submitForm("application/x-www-form-urlencoded", "text", "evil"));
  await recordAttempt("events", openStream(() => new EventSource(`${target}/sessions/${id}/events`, { withCredentials: true }), "opened"));
  await recordAttempt("steps", openStream(() => new EventSource(`${target}/sessions/${id}/steps`, { withCredentials: true }), "opened"));
  await recordAttempt("socket", openStream(() => new WebSocket(`${target.replace("http", "ws")}/sessions/${id}/events`), "opened"));
  await recordAttempt("script", loadElement("script", "/sessions"));
  await recordAttempt("page's script", loadElement("script", "/assets/page.js"));
  await recordAttempt("image", loadElement("img", "/assets/icon.svg"));
  await recordAttempt("frame", async () => { await loadElement("iframe", "/")(); return document.querySelector("iframe:last-of-type").contentDocument ? "read" : "unseen"; });
  return results;
}
window.done = null;
runAttempts().then((results) => { window.done = results; document.documentElement.dataset.ready = "yes"; });
