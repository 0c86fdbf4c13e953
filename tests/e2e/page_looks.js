// What the tests of the page measure in it.

function colour(text) {
  const [red, green, blue, alpha = 1] = text.match(/[\d.]+/g).map(Number);
  return text.startsWith("color(") ? [red * 255, green * 255, blue * 255, alpha] : [red, green, blue, alpha];
}

function over(top, below) {
  return top.slice(0, 3).map((part, at) => part * top[3] + below[at] * (1 - top[3]));
}

function luminance(parts) {
  const [red, green, blue] = parts.map((part) => (part / 255 <= 0.04045 ? part / 255 / 12.92 : ((part / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function above(node) {
  const chain = [];
  for (let at = node; at; at = at.parentElement) chain.unshift(getComputedStyle(at));
  return chain;
}

/** The contrast of a colour on what lies behind its element, opacity included. */
function contrast(node, ink) {
  const styles = above(node);
  const paper = styles.reduce((below, style) => over(colour(style.backgroundColor), below), [255, 255, 255]);
  const opaque = styles.reduce((all, style) => all * Number(style.opacity), 1);
  const [red, green, blue, alpha] = colour(ink);
  const lights = [luminance(over([red, green, blue, alpha * opaque], paper)), luminance(paper)].sort((one, other) => other - one);
  return Math.round((100 * (lights[0] + 0.05)) / (lights[1] + 0.05)) / 100;
}

/** Each text that can be seen: of elements, and in fields. */
function contrasts() {
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const words = walker.currentNode.data.trim();
    const node = walker.currentNode.parentElement;
    if (!words || node.closest(".unseen, option, noscript") || !node.checkVisibility({ visibilityProperty: true })) continue;
    found.push([contrast(node, getComputedStyle(node).color), String(node.className || node.tagName), words.slice(0, 40)]);
  }
  for (const node of document.querySelectorAll("input, textarea, select")) {
    if (!node.checkVisibility({ visibilityProperty: true }) || ["checkbox", "radio"].includes(node.type)) continue;
    const style = getComputedStyle(node, node.placeholder && !node.value ? "::placeholder" : null);
    found.push([contrast(node, style.color), node.id || node.tagName, node.value || node.placeholder]);
  }
  return found;
}

/** What a finger has to hit. Links in a line of text are excepted, as guidelines do. */
function targets() {
  return [...document.querySelectorAll("button, a.button, #list a, input, select, textarea, summary, label.option")]
    .filter((node) => node.checkVisibility({ visibilityProperty: true }) && !["checkbox", "radio"].includes(node.type))
    .map((node) => {
      const box = node.getBoundingClientRect();
      return [Math.round(box.width), Math.round(box.height), String(node.id || node.className || node.tagName), node.textContent.slice(0, 30)];
    });
}

/** The part of an element that can be seen: what scrolls or is cut around it hides the rest. */
function seenBox(node) {
  const box = node.getBoundingClientRect();
  const seen = { left: box.left, top: box.top, right: box.right, bottom: box.bottom };
  for (let at = node.parentElement; at && at !== document.documentElement; at = at.parentElement) {
    if (getComputedStyle(at).overflow === "visible") continue;
    const hole = at.getBoundingClientRect();
    Object.assign(seen, { left: Math.max(seen.left, hole.left), top: Math.max(seen.top, hole.top), right: Math.min(seen.right, hole.right), bottom: Math.min(seen.bottom, hole.bottom) });
  }
  return seen;
}

/** Names and controls that lie on each other. What floats on purpose (a dialog, "Latest") is excepted. */
function overlaps() {
  const around = document.querySelector("dialog[open]") || document;
  const nodes = [...around.querySelectorAll("button, a.button, #list a, input, select, textarea, summary, label.option, h1, #about, #chip, #line")]
    .filter((node) => node.checkVisibility({ visibilityProperty: true }) && !node.matches("#latest, .skip") && !(node.matches("input") && node.closest("label.option")));
  const found = [];
  nodes.forEach((one, at) => {
    for (const other of nodes.slice(at + 1)) {
      if (one.contains(other) || other.contains(one)) continue;
      const [a, b] = [seenBox(one), seenBox(other)];
      const [wide, high] = [Math.min(a.right, b.right) - Math.max(a.left, b.left), Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top)];
      if (wide > 1 && high > 1) found.push([one.id || one.tagName, other.id || other.tagName, Math.round(wide), Math.round(high)]);
    }
  });
  return found;
}
