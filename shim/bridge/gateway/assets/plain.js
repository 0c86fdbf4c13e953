// Words that come from a session and were not cleaned on their way: made visible, and short.

const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]|[\u{e0000}-\u{e0fff}]/gu;

/** A text whose controls are seen, and turn no other words around (threats: terminal, HTML in exports). */
function plain(value) {
  const text = typeof value === "string" ? value : value === null || value === undefined ? "" : JSON.stringify(value, null, 2);
  return text.replace(/\r\n/g, "\n").replace(UNSEEN, (found) => `\\u{${found.codePointAt(0).toString(16)}}`);
}

/** The beginning of a text, in one line. */
function oneLine(value, most = 200) {
  const text = plain(typeof value === "string" ? value.slice(0, 4 * most) : value).replace(/\s+/g, " ").trim();
  return text.length > most ? `${text.slice(0, most)}…` : text;
}

/** How long ago a moment was (milliseconds since 1970). */
function ago(moment, now = Date.now()) {
  const seconds = Math.max(0, (now - moment) / 1000);
  if (seconds < 60) return "now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  return seconds < 86400 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86400)} d`;
}

function lastPart(path) {
  return plain(path || "").replace(/\/+$/, "").split("/").pop() || "/";
}

const IME_KEY_CODE = 229; // the code of every key that an input method handles

/** Return whether an input method handles a key. Safari reports its Enter after the end of the composition. */
function isComposing(event) {
  return event.isComposing || event.keyCode === IME_KEY_CODE;
}

/** Kept for this page alone (`session`) or for this browser; a browser that keeps nothing is no failure. */
function kept(where, name) {
  try {
    return where.getItem(`shim.${name}`) || "";
  } catch {
    return "";
  }
}

function keep(where, name, value) {
  try {
    if (value) where.setItem(`shim.${name}`, value);
    else where.removeItem(`shim.${name}`);
  } catch {
    // Private windows and full disks: nothing is kept.
  }
}
