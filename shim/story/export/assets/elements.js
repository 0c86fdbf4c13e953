"use strict";

// Elements and texts. Everything that a session says becomes a text node: no HTML is parsed anywhere in this page.

// Elements with sentences. Their direction follows their text, so that Arabic and Hebrew run from right to left. A list
// follows its first entry. Code, commands and paths keep the direction of the page.
const TEXT_TAGS = new Set(["p", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "blockquote", "td", "th", "legend", "textarea", "option"]);

// Lists and quotes whose texts stand in paragraphs: "auto" passes over what has a direction of its own.
const TEXT_CONTAINERS = ":is(ul, ol, blockquote):has(> p, > blockquote, > li > p)";
const RIGHT_TO_LEFT = /[\u0590-\u08ff\ufb1d-\ufdff\ufe70-\ufefc]|[\u{10800}-\u{10fff}]|[\u{1e800}-\u{1efff}]/u;

/** Return the direction of a text's first letter. */
function getTextDirection(text) {
  const letter = /\p{L}/u.exec(text);
  return letter && RIGHT_TO_LEFT.test(letter[0]) ? "rtl" : "ltr";
}

/** An element with attributes, handlers (`on…`) and children; children that are strings become text. */
function element(tag, attributes, ...children) {
  const node = document.createElement(tag);
  if (TEXT_TAGS.has(tag)) node.dir = "auto";
  if (tag === "code") node.dir = "ltr"; // a sentence that begins with a command follows its words, not the command
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "text") node.textContent = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== ""));
  if (node.matches(TEXT_CONTAINERS)) node.dir = getTextDirection(node.textContent);
  return node;
}

/** An element of a drawing. */
function createSvgElement(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function find(id) {
  return document.getElementById(id);
}

/** A moment, as minutes and seconds since the beginning. */
function formatClock(ms) {
  const seconds = Math.round(ms / 1000);
  const hours = Math.floor(seconds / 3600);
  const minutes = Math.floor(seconds / 60) % 60;
  const padNumber = (value) => String(value).padStart(2, "0");
  return hours ? `${hours}:${padNumber(minutes)}:${padNumber(seconds % 60)}` : `${minutes}:${padNumber(seconds % 60)}`;
}

/** A stretch of time in words: the same as in a terminal (`duration` in figures.py). */
function formatDuration(ms) {
  if (ms > 0 && ms < 100) return `${Math.round(ms)} ms`;
  if (ms < 59950) return `${(ms / 1000).toFixed(1)} s`;
  const [minutes, seconds] = [Math.floor(Math.round(ms / 1000) / 60), Math.round(ms / 1000) % 60];
  const padNumber = (value) => String(value).padStart(2, "0");
  return minutes < 60 ? `${minutes} min ${padNumber(seconds)} s` : `${Math.floor(minutes / 60)} h ${padNumber(minutes % 60)} min`;
}

/** The time that a call ran, without its wait for permission. In milliseconds. */
function getRunTime(step) {
  return Math.max((step.until || step.at) - step.at - (step.waited || 0), 0);
}

function counted(number, noun) {
  return `${grouped(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/** A number with its thousands apart. */
function grouped(number) {
  return number.toLocaleString("en");
}

/** Tell a screen reader, and nobody else. */
function tell(text) {
  find("said").textContent = text;
}
