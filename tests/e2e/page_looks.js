// What the tests of the page measure in it.

function parseColour(text) {
  const [red, green, blue, alpha = 1] = text.match(/[\d.]+/g).map(Number);
  return text.startsWith("color(") ? [red * 255, green * 255, blue * 255, alpha] : [red, green, blue, alpha];
}

function blendColours(top, bottom) {
  return top.slice(0, 3).map((channel, index) => channel * top[3] + bottom[index] * (1 - top[3]));
}

function getLuminance(channels) {
  const [red, green, blue] = channels.map((channel) => (channel / 255 <= 0.04045 ? channel / 255 / 12.92 : ((channel / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
}

function listAncestorStyles(node) {
  const styles = [];
  for (let ancestor = node; ancestor; ancestor = ancestor.parentElement) styles.unshift(getComputedStyle(ancestor));
  return styles;
}

/** The contrast of a colour on what lies behind its element, opacity included. */
function measureContrast(node, ink) {
  const styles = listAncestorStyles(node);
  const background = styles.reduce((backdrop, style) => blendColours(parseColour(style.backgroundColor), backdrop), [255, 255, 255]);
  const opacity = styles.reduce((product, style) => product * Number(style.opacity), 1);
  const [red, green, blue, alpha] = parseColour(ink);
  const luminances = [getLuminance(blendColours([red, green, blue, alpha * opacity], background)), getLuminance(background)].sort((first, second) => second - first);
  return Math.round((100 * (luminances[0] + 0.05)) / (luminances[1] + 0.05)) / 100;
}

/** Each text that can be seen: of elements, and in fields. */
function contrasts() {
  const results = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.data.trim();
    const node = walker.currentNode.parentElement;
    if (!text || node.closest(".unseen, option, noscript") || !node.checkVisibility({ visibilityProperty: true })) continue;
    results.push([measureContrast(node, getComputedStyle(node).color), String(node.className || node.tagName), text.slice(0, 40)]);
  }
  for (const node of document.querySelectorAll("input, textarea, select")) {
    if (!node.checkVisibility({ visibilityProperty: true }) || ["checkbox", "radio"].includes(node.type)) continue;
    const style = getComputedStyle(node, node.placeholder && !node.value ? "::placeholder" : null);
    results.push([measureContrast(node, style.color), node.id || node.tagName, node.value || node.placeholder]);
  }
  return results;
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
function getVisibleBox(node) {
  const box = node.getBoundingClientRect();
  const visible = { left: box.left, top: box.top, right: box.right, bottom: box.bottom };
  for (let ancestor = node.parentElement; ancestor && ancestor !== document.documentElement; ancestor = ancestor.parentElement) {
    if (getComputedStyle(ancestor).overflow === "visible") continue;
    const clip = ancestor.getBoundingClientRect();
    Object.assign(visible, { left: Math.max(visible.left, clip.left), top: Math.max(visible.top, clip.top), right: Math.min(visible.right, clip.right), bottom: Math.min(visible.bottom, clip.bottom) });
  }
  return visible;
}

/** Names and controls that lie on each other. What floats on purpose (a dialog, "Latest") is excepted. */
function overlaps() {
  const root = document.querySelector("dialog[open]") || document;
  const nodes = [...root.querySelectorAll("button, a.button, #list a, input, select, textarea, summary, label.option, h1, #about, #chip, #line")]
    .filter((node) => node.checkVisibility({ visibilityProperty: true }) && !node.matches("#latest, .skip") && !(node.matches("input") && node.closest("label.option")));
  const pairs = [];
  nodes.forEach((node, index) => {
    for (const other of nodes.slice(index + 1)) {
      if (node.contains(other) || other.contains(node)) continue;
      const [a, b] = [getVisibleBox(node), getVisibleBox(other)];
      const [width, height] = [Math.min(a.right, b.right) - Math.max(a.left, b.left), Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top)];
      if (width > 1 && height > 1) pairs.push([node.id || node.tagName, other.id || other.tagName, Math.round(width), Math.round(height)]);
    }
  });
  return pairs;
}
