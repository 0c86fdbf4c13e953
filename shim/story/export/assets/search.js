// Search: over the session itself, so that what is folded is found, too. Where a browser can, words are marked.

const MARKED = 2000; // places that are marked at once
const PAUSE_MS = 120; // after a key, before a long session is searched

const search = { words: "", found: [], at: -1, timer: 0, soon: 0 };

function searched(item) {
  if (item.words === undefined) {
    const { step } = item;
    const fields = (step.fields || []).map(([name, value]) => `${name} ${whole(value)}`);
    const facts = (step.facts || []).map(([name, value]) => `${name} ${value}`);
    const all = [step.name, step.main, textOf(step.trees || []), whole(step.text), whole(step.diff), whole(step.output), ...fields, ...facts];
    item.words = all.filter(Boolean).join("\n").toLowerCase();
  }
  return item.words;
}

function look(words) {
  search.words = words.trim().toLowerCase();
  search.found = search.words ? items.filter((item) => searched(item).includes(search.words)) : [];
  search.at = -1;
  const found = new Set(search.found);
  for (const item of items) item.node.classList.toggle("match", found.has(item));
  document.body.classList.toggle("searching", Boolean(search.words));
  for (const name of ["previous", "next", "only"]) find(name).disabled = !search.found.length;
  if (!search.found.length) onlyMatches(false);
  count();
  mark();
}

function count() {
  const all = search.found.length;
  find("count").textContent = !search.words ? "" : search.at < 0 ? counted(all, "step") : `${search.at + 1} of ${all}`;
}

function go(by) {
  if (!search.found.length) return;
  leaveReplay();
  search.at = search.at < 0 ? (by > 0 ? 0 : search.found.length - 1) : (search.at + by + search.found.length) % search.found.length;
  jump(search.found[search.at], { focus: false });
  count();
  mark();
}

function onlyMatches(wanted) {
  find("only").setAttribute("aria-pressed", String(wanted));
  document.body.classList.toggle("only-matches", wanted);
}

/** Mark the words in what is drawn, without changing it. */
function mark() {
  if (!window.CSS || !CSS.highlights) return;
  CSS.highlights.delete("found");
  if (!search.words) return;
  const ranges = [];
  for (const item of search.found) {
    if (ranges.length >= MARKED) break;
    const walker = document.createTreeWalker(item.node, NodeFilter.SHOW_TEXT);
    while (walker.nextNode() && ranges.length < MARKED) {
      const text = walker.currentNode.data.toLowerCase();
      for (let at = text.indexOf(search.words); at >= 0 && ranges.length < MARKED; at = text.indexOf(search.words, at + 1)) {
        if (at + search.words.length > walker.currentNode.length) break; // letters that are longer in small
        const range = new Range();
        range.setStart(walker.currentNode, at);
        range.setEnd(walker.currentNode, at + search.words.length);
        ranges.push(range);
      }
    }
  }
  CSS.highlights.set("found", new Highlight(...ranges));
}

/** Mark once, however many steps are unfolded at the same time. */
function markSoon() {
  if (search.soon || !search.words) return;
  search.soon = requestAnimationFrame(() => {
    search.soon = 0;
    mark();
  });
}

function listenToSearch() {
  const input = find("search");
  input.addEventListener("input", () => {
    clearTimeout(search.timer);
    search.timer = setTimeout(() => look(input.value), PAUSE_MS);
  });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      if (input.value.trim().toLowerCase() !== search.words) look(input.value);
      go(event.shiftKey ? -1 : 1);
    } else if (event.key === "Escape") {
      input.value = "";
      look("");
    }
  });
  find("next").addEventListener("click", () => go(1));
  find("previous").addEventListener("click", () => go(-1));
  find("only").addEventListener("click", () => onlyMatches(find("only").getAttribute("aria-pressed") !== "true"));
  document.addEventListener("toggle", markSoon, true);
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "INPUT") return;
    event.preventDefault();
    input.focus();
  });
}
