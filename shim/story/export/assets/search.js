// Search: over the session itself, so that what is folded is found, too. Where a browser can, words are marked.

const MAX_MARKS = 2000; // places that are marked at once
const PAUSE_MS = 120; // after a key, before a long session is searched

const search = { query: "", matches: [], index: -1, timer: 0, frameRequest: 0 };

function getSearchText(item) {
  if (item.searchText === undefined) {
    const { step } = item;
    const fields = (step.fields || []).map(([name, value]) => `${name} ${whole(value)}`);
    const facts = (step.facts || []).map(([name, value]) => `${name} ${value}`);
    const texts = [step.name, step.main, textOf(step.trees || []), whole(step.text), whole(step.diff), whole(step.output), ...fields, ...facts];
    item.searchText = texts.filter(Boolean).join("\n").toLowerCase();
  }
  return item.searchText;
}

function look(query) {
  search.query = query.trim().toLowerCase();
  search.matches = search.query ? items.filter((item) => getSearchText(item).includes(search.query)) : [];
  search.index = -1;
  const matches = new Set(search.matches);
  for (const item of items) item.node.classList.toggle("match", matches.has(item));
  document.body.classList.toggle("searching", Boolean(search.query));
  for (const name of ["previous", "next", "only"]) find(name).disabled = !search.matches.length;
  if (!search.matches.length) setOnlyMatches(false);
  renderCount();
  markMatches();
}

function renderCount() {
  const matchCount = search.matches.length;
  find("count").textContent = !search.query ? "" : search.index < 0 ? counted(matchCount, "step") : `${search.index + 1} of ${matchCount}`;
}

function goToMatch(offset) {
  if (!search.matches.length) return;
  leaveReplay();
  search.index = search.index < 0 ? (offset > 0 ? 0 : search.matches.length - 1) : (search.index + offset + search.matches.length) % search.matches.length;
  scrollToItem(search.matches[search.index], { focus: false });
  renderCount();
  markMatches();
}

function setOnlyMatches(isEnabled) {
  find("only").setAttribute("aria-pressed", String(isEnabled));
  document.body.classList.toggle("only-matches", isEnabled);
}

/** Mark the words in what is drawn, without changing it. */
function markMatches() {
  if (!window.CSS || !CSS.highlights) return;
  CSS.highlights.delete("found");
  if (!search.query) return;
  const ranges = [];
  for (const item of search.matches) {
    if (ranges.length >= MAX_MARKS) break;
    const walker = document.createTreeWalker(item.node, NodeFilter.SHOW_TEXT);
    while (walker.nextNode() && ranges.length < MAX_MARKS) {
      const text = walker.currentNode.data.toLowerCase();
      for (let start = text.indexOf(search.query); start >= 0 && ranges.length < MAX_MARKS; start = text.indexOf(search.query, start + 1)) {
        if (start + search.query.length > walker.currentNode.length) break; // letters that are longer in small
        const range = new Range();
        range.setStart(walker.currentNode, start);
        range.setEnd(walker.currentNode, start + search.query.length);
        ranges.push(range);
      }
    }
  }
  CSS.highlights.set("found", new Highlight(...ranges));
}

/** Mark once, however many steps are unfolded at the same time. */
function scheduleMarking() {
  if (search.frameRequest || !search.query) return;
  search.frameRequest = requestAnimationFrame(() => {
    search.frameRequest = 0;
    markMatches();
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
      if (input.value.trim().toLowerCase() !== search.query) look(input.value);
      goToMatch(event.shiftKey ? -1 : 1);
    } else if (event.key === "Escape") {
      input.value = "";
      look("");
    }
  });
  find("next").addEventListener("click", () => goToMatch(1));
  find("previous").addEventListener("click", () => goToMatch(-1));
  find("only").addEventListener("click", () => setOnlyMatches(find("only").getAttribute("aria-pressed") !== "true"));
  document.addEventListener("toggle", scheduleMarking, true);
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || event.target.tagName === "INPUT") return;
    event.preventDefault();
    input.focus();
  });
}
