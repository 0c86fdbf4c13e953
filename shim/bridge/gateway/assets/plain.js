// Words that come from a session and were not cleaned on their way: made visible, and short.

const CONTROL_CHARACTERS = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u00ad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]|[\u{e0000}-\u{e0fff}]/gu;

/** A text whose controls are seen, and turn no other words around (threats: terminal, HTML in exports). */
function escapeControls(value) {
  const text = typeof value === "string" ? value : value === null || value === undefined ? "" : JSON.stringify(value, null, 2);
  return text.replace(/\r\n/g, "\n").replace(CONTROL_CHARACTERS, (character) => `\\u{${character.codePointAt(0).toString(16)}}`);
}

/** The beginning of a text, in one line. */
function formatLine(value, maxCharacters = 200) {
  const text = escapeControls(typeof value === "string" ? value.slice(0, 4 * maxCharacters) : value).replace(/\s+/g, " ").trim();
  return text.length > maxCharacters ? `${text.slice(0, maxCharacters)}…` : text;
}

/** How long ago a moment was (milliseconds since 1970). */
function formatAge(moment, now = Date.now()) {
  const seconds = Math.max(0, (now - moment) / 1000);
  if (seconds < 60) return "now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min`;
  return seconds < 86400 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86400)} d`;
}

function getLastPart(path) {
  return escapeControls(path || "").replace(/\/+$/, "").split("/").pop() || "/";
}

const IME_KEY_CODE = 229; // the code of every key that an input method handles

/** Return whether an input method handles a key. Safari reports its Enter after the end of the composition. */
function isComposing(event) {
  return event.isComposing || event.keyCode === IME_KEY_CODE;
}

/** Kept for this page alone (`session`) or for this browser; a browser that keeps nothing is no failure. */
function readStored(storage, name) {
  try {
    return storage.getItem(`shim.${name}`) || "";
  } catch {
    return "";
  }
}

function storeValue(storage, name, value) {
  try {
    if (value) storage.setItem(`shim.${name}`, value);
    else storage.removeItem(`shim.${name}`);
  } catch {
    // Private windows and full disks: nothing is kept.
  }
}
