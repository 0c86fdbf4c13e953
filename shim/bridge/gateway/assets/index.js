"use strict";

// A token in the address is exchanged for a cookie, and is gone from the address before anything is shown.
async function enter() {
  const token = location.hash.slice(1);
  if (!token) return;
  history.replaceState(null, "", location.pathname);
  await fetch("login", { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify({ token }) });
}

async function list() {
  const answer = await fetch("sessions");
  const told = await answer.json();
  const lines = answer.ok ? told.sessions.map((one) => `${one.id} ${one.vendor} ${one.state} ${one.name || ""}`) : [told.error];
  document.getElementById("sessions").replaceChildren(...lines.map((text) => Object.assign(document.createElement("p"), { textContent: text })));
  document.documentElement.dataset.ready = "yes";
}

enter().then(list);
