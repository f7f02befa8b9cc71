// The page that labels: categories at the side, suggestions, filters, the grid, and the bar of the selection.
import { count, h, keepFocus, plural, setChildren } from "./dom.js";
import { createSelection } from "./picking.js";
import { askMerge, askSplit, offerMerge } from "./asking.js";
import { completingField } from "./completing.js";
import { accept, assign, create, noneOfThese, removeLabels, rename } from "./doing.js";
import { createGrid } from "./grid.js";
import { open, swatch } from "./looking.js";
import { active, exactly, GIVEN, isActive, isDoubtful, kindOf, LABELLED, matching, model, nameOf, NONE, onChange, sizeOf, SORTS, suggestions } from "./model.js";

export const selection = createSelection();
const filters = { doubt: false, stability: 0, status: "", path: "", sort: "typical" };
let set = "suggestions"; // or "all", "none", or the number of a category
const skipped = new Set(); // suggestions
const saving = new Set(); // suggestions whose answer is being saved
let suggestion = null;

const describe = (image) => {
  const category = model.category[image];
  const status = model.status[image];
  const state = status === NONE ? "is-none" : status === LABELLED ? "is-mine" : status === GIVEN ? "is-given" : isDoubtful(image) ? "is-doubtful" : "";
  const showsCategory = set === "all" || set === "none" || status === LABELLED;
  return {
    text: `${model.paths[image]}, ${nameOf(category)}${["", ", label of the run", ", your label", ""][status]}`,
    tag: showsCategory ? nameOf(category) : "",
    classes: state,
  };
};

export const grid = createGrid({ selection, describe, open });
const side = h("div", { class: "side", id: "categories", role: "group", "aria-label": "Sets of images" });
const head = h("div", { class: "set-head" });
const bar = document.getElementById("selection-bar");
const counted = h("p", { class: "muted", id: "counted", role: "status" });

// -- the sets at the side ---------------------------------------------------------------------------------
export const digitOf = (category) => { const at = active().indexOf(category); return at >= 0 && at < 9 ? at + 1 : 0; };
export const categoryOfDigit = (digit) => active()[digit - 1];

function entry(key, name, number, extra = {}) {
  return h("button", { type: "button", class: "set", dataset: { set: key }, "aria-pressed": String(String(set) === String(key)), onclick: () => choose(key) },
    extra.mark || null, h("span", { class: "set-name" }, name), extra.kind ? h("span", { class: `badge ${extra.kind === "known" ? "known" : "new"}` }, extra.kind) : null,
    h("span", { class: "set-count" }, count(number)), extra.digit ? h("kbd", { title: `Key ${extra.digit}: label the selection so` }, extra.digit) : h("span", { class: "no-key" }));
}

const entries = () => [
  ["suggestions", "★ Suggestions", remaining().length], ["all", "All images", model.n], ["none", "None of these", sizeOf(-1), { digit: "0" }],
  ...active().map((c) => [c, nameOf(c), sizeOf(c), { mark: swatch(c), kind: kindOf(c) === "new" ? "new" : null, digit: digitOf(c) }]),
];

// A button stays while only its name and number change: whoever clicks at that moment must hit it.
const buttons = new Map();
const sideTitle = h("div", { class: "side-title", role: "presentation" });
function sideButton([key, name, number, extra = {}]) {
  const shape = [extra.kind, extra.digit].join();
  const before = buttons.get(key);
  if (!before || before.shape !== shape) {
    const made = Object.assign(entry(key, name, number, extra), { shape });
    buttons.set(key, made);
    return made;
  }
  before.setAttribute("aria-pressed", String(String(set) === String(key)));
  for (const [part, text] of [[".set-name", name], [".set-count", count(number)]]) {
    const shown = before.querySelector(part);
    if (shown.textContent !== text) shown.textContent = text;
  }
  return before;
}
function drawSide() {
  const now = entries().map(sideButton);
  sideTitle.textContent = plural(active().length, "category", "categories");
  const wanted = [...now.slice(0, 3), sideTitle, ...now.slice(3)];
  const focusedSet = side.contains(document.activeElement) ? document.activeElement.dataset.set : null;
  wanted.forEach((element, k) => { if (side.children[k] !== element) side.insertBefore(element, side.children[k] || null); });
  while (side.children.length > wanted.length) side.lastChild.remove();
  const again = focusedSet === null ? null : side.querySelector(`[data-set="${CSS.escape(focusedSet)}"]`);
  if (again && document.activeElement !== again) again.focus({ preventScroll: true });
}

export function choose(key) {
  set = key;
  forgetName();
  selection.clear();
  if (key === "suggestions") suggestion = remaining()[0] || null;
  draw({ keep: false });
}

export function step(by) {
  if (set === "suggestions") { if (by > 0) skip({ types: false }); return; }
  const order = ["all", "none", ...active()];
  const at = order.indexOf(set);
  choose(order[Math.max(0, Math.min(order.length - 1, at + by))]);
}

// -- suggestions ------------------------------------------------------------------------------------------
const remaining = () => suggestions().filter((s) => !skipped.has(s.key) && !saving.has(s.key));
function nextSuggestion() {
  const left = remaining();
  if (!suggestion || !left.some((s) => s.key === suggestion.key)) suggestion = left[0] || null;
}
function skip({ types = true } = {}) {
  if (!suggestion) return;
  skipped.add(suggestion.key);
  suggestion = null;
  forgetName();
  selection.clear();
  draw({ keep: false, types });
}

// Shows the next suggestion while the answer to one is saved, so whoever types on never waits and loses no key.
// If it cannot be saved, the page goes back to it, unless the user is in the middle of the next one.
async function answer(answered, name, work) {
  saving.add(answered.key);
  suggestion = null;
  forgetName();
  draw({ keep: false, types: Boolean(name) });
  const change = await work();
  saving.delete(answered.key);
  const isBusy = set !== "suggestions" || selection.size() || (nameForm && nameForm.input.isConnected && nameForm.input.value);
  if (!change && !isBusy) {
    suggestion = answered;
    draw({ keep: false });
    if (nameForm && name) nameForm.input.value = name;
  } else draw();
}

// -- what is above the grid -------------------------------------------------------------------------------
let nameForm = null; // stays while its category is shown, so that nothing typed is lost when the page is drawn again
let drawnHead = "";
const forgetName = () => { nameForm = null; drawnHead = ""; };
function nameField(category) {
  const { name } = model.categories[category];
  const shown = /^new-\d+$/.test(name) ? "" : name;
  if (nameForm && nameForm.category === category) {
    if (nameForm.name !== name && document.activeElement !== nameForm.input) nameForm.input.value = shown;
    nameForm.name = name;
    return nameForm.element;
  }
  const input = h("input", { type: "text", id: "name", maxLength: 200, autocomplete: "off", placeholder: "Name this category", "aria-label": `Name of ${nameOf(category)}`, value: shown });
  const element = h("form", { class: "inline", onsubmit: (event) => { event.preventDefault(); saveName(category, input); } },
    input, h("button", { type: "submit", class: "primary", id: "save-name" }, "Name"));
  nameForm = { category, name, input, element };
  return element;
}

async function saveName(category, input) {
  const name = input.value.trim();
  const offer = (target) => offerMerge(category, target, () => { if (set !== "suggestions") choose(target); });
  const save = () => rename(category, name, offer);
  if (!name) input.focus();
  else if (exactly(name, category) >= 0) offer(exactly(name, category)); // a name that exists is an offer to merge
  else if (set === "suggestions") answer(suggestion, name, save);
  else {
    grid.focus();
    if (!(await save()) && input.isConnected) input.focus();
  }
}

// These stay when the page is drawn again: whoever clicks at that moment must hit them.
const acceptButton = h("button", { type: "button", id: "accept-all", title: "Key Y: these images are in the right category", onclick: () => acceptAll() });
function updateAccept(images) {
  const marked = images.filter((i) => selection.has(i)).length;
  const rest = images.length - marked;
  acceptButton.textContent = marked ? `Accept all except the ${count(marked)} selected` : `Accept all ${count(rest)}`;
  acceptButton.disabled = !rest;
}
const headParts = {
  left: h("span", {}), title: h("h2", {}), about: h("p", { class: "muted" }),
  skip: h("button", { type: "button", id: "skip", title: "Key n", onclick: () => skip() }, "Skip ›"),
  merge: h("button", { type: "button", id: "merge", title: "Key m", onclick: () => mergeSet() }, "Merge into …"),
  split: h("button", { type: "button", id: "split", title: "Key d", onclick: () => splitSet() }, "Split …"),
};

export function acceptAll() {
  const images = grid.list().filter((i) => !selection.has(i) && model.category[i] >= 0);
  if (!images.length) return;
  if (set === "suggestions" && suggestion.kind === "check" && !selection.size()) answer(suggestion, "", () => accept(images));
  else accept(images);
}

function drawHead(images) {
  const { left, title, about, skip: skipButton, merge, split } = headParts;
  const asked = set === "suggestions" ? suggestion : null;
  const category = asked ? asked.category : typeof set === "number" ? set : null;
  const isNamed = asked ? asked.kind === "name" : category !== null;
  const mark = category === null ? null : swatch(category);
  const field = isNamed ? nameField(category) : null;
  updateAccept(images);
  split.disabled = category !== null && sizeOf(category) < 2;
  if (asked) {
    left.textContent = `${plural(remaining().length, "suggestion")} left`;
    setChildren(title, mark, asked.kind === "name" ? ` What are these ${count(sizeOf(category))} images?` : ` Are these ${plural(images.length, "image")} really ${nameOf(category)}?`);
    about.textContent = asked.kind === "name"
      ? `They look alike and have no name yet (${nameOf(category)}). Give them one; select those that do not belong and label them on their own.`
      : "The run is not sure of them. Select those that are wrong and label them; then accept the rest.";
  } else if (set === "suggestions") {
    title.textContent = "No suggestions are left";
    about.textContent = "Every large category has a name, and no image is doubtful. Quick refit shows the effect of your labels.";
  } else setChildren(title, mark, ` ${set === "all" ? "All images" : set === "none" ? "None of these" : nameOf(set)}`);
  const key = `${set} ${asked && asked.key}`;
  if (key === drawnHead) return;
  drawnHead = key;
  keepFocus(head, () => setChildren(head, asked ? h("p", { class: "muted steps" }, left, h("span", { class: "space" }), skipButton) : null, title,
    set === "suggestions" ? about : null,
    category === null ? null : h("div", { class: "toolbar" }, field, acceptButton, isNamed ? [merge, split] : null)));
}

export function mergeSet() {
  const isAsked = set === "suggestions";
  const category = isAsked && suggestion ? suggestion.category : set;
  if (typeof category === "number") askMerge(category, isAsked ? undefined : choose);
}
// splits the selection, or the whole category
export function splitSet() {
  const images = selection.size() ? selection.list() : set === "suggestions" && suggestion ? matching(suggestion.category, { ...filters, doubt: false, stability: 0, status: "", path: "" })
    : typeof set === "number" ? matching(set, { doubt: false, stability: 0, status: "", path: "", sort: "typical" }) : [];
  if (images.length > 1) askSplit(images, () => selection.clear());
}

function filterBar() {
  const toggle = (key, on, text, title) => h("button", { type: "button", id: `filter-${key}`, title, "aria-pressed": String(Boolean(filters[key])), onclick: (event) => {
    filters[key] = filters[key] ? (typeof on === "number" ? 0 : false) : on;
    event.currentTarget.setAttribute("aria-pressed", String(Boolean(filters[key])));
    draw({ keep: false });
  } }, text);
  const select = (id, label, options, change) => h("select", { id, "aria-label": label, onchange: (event) => { change(event.target.value); draw({ keep: false }); } },
    options.map(([value, text]) => h("option", { value }, text)));
  return h("div", { class: "toolbar filters", id: "filters" },
    h("input", { type: "search", id: "path", placeholder: "File or folder", "aria-label": "Filter by path", oninput: (event) => { filters.path = event.target.value; draw({ keep: false }); } }),
    toggle("doubt", true, "Doubtful", "Another category is at least half as likely"),
    model.stability ? toggle("stability", 0.8, "Unstable", "Read-outs from other starts disagree (stability below 0.8)") : null,
    select("status", "Label state", [["", "Any label state"], ["0", "Not labelled"], ["2", "Labelled by me"], ["1", "Label of the run"], ["3", "None of these"]], (value) => { filters.status = value; }),
    select("sort", "Order", Object.entries(SORTS).map(([key, [text]]) => [key, text]), (value) => { filters.sort = value; }));
}
const filterRow = h("div", {});

// -- the bar of the selection -----------------------------------------------------------------------------
const number = h("strong", { id: "selected-count" });
// The selection is cleared at once, so what the user selects and types while it is saved is kept.
async function finish(work) {
  const images = selection.list();
  if (!images.length) return;
  const text = field.input.value;
  selection.clear();
  field.set("");
  grid.focus();
  if (!(await work(images)) && !selection.size()) { selection.set(images); field.set(text); }
}
export const label = {
  as: (category) => finish((images) => assign(images, category)),
  none: () => finish(noneOfThese),
  accept: () => finish(accept),
  remove: () => finish(removeLabels),
  focus: () => field.input.focus(),
};
const field = completingField({ id: "label-selected", label: "Label of the selected images", placeholder: "Label as …",
  onChoose: (option) => finish((images) => (option.name ? create(images, option.name) : assign(images, option.category))) });
setChildren(bar, number, h("span", { class: "inline" }, field.element, h("button", { type: "button", class: "primary", id: "apply-label", onclick: () => field.chooseNow() }, "Label")),
  h("span", { class: "actions" },
    h("button", { type: "button", id: "accept", title: "Key y: the category shown is right", onclick: label.accept }, "Accept"),
    h("button", { type: "button", id: "none-of-these", title: "Key 0", onclick: label.none }, "None of these"),
    h("button", { type: "button", id: "split-selected", title: "Key d", onclick: splitSet }, "Split …"),
    h("button", { type: "button", id: "remove-label", title: "Key Delete", onclick: label.remove }, "Remove label"),
    h("button", { type: "button", id: "clear-selection", title: "Key Esc", onclick: () => selection.clear() }, "Clear")));
selection.onChange(() => {
  bar.hidden = !selection.size();
  document.body.classList.toggle("has-selection", Boolean(selection.size()));
  number.textContent = `${count(selection.size())} selected`;
  updateAccept(grid.list());
});

// -- all of it --------------------------------------------------------------------------------------------
function draw({ keep = true, types = true } = {}) {
  if (typeof set === "number" && (!model.categories[set] || !isActive(set))) set = model.categories[set] ? model.categories[set].mergedInto : "all";
  let images;
  if (set === "suggestions") {
    const before = suggestion && suggestion.key;
    nextSuggestion();
    const now = suggestion && remaining().find((s) => s.key === suggestion.key);
    suggestion = now || suggestion;
    if (before !== (suggestion && suggestion.key)) { keep = false; selection.clear(); }
    images = !suggestion ? [] : suggestion.kind === "check" ? suggestion.images : matching(suggestion.category, { ...filters, doubt: false, stability: 0, status: "", path: "", sort: "typical" });
  } else images = matching(set, filters);
  filterRow.hidden = set === "suggestions";
  drawSide();
  const isTyping = document.activeElement.id === "name";
  drawHead(images);
  grid.setList(images, { keep });
  const total = set === "all" || set === "suggestions" ? images.length : sizeOf(set === "none" ? -1 : set);
  counted.textContent = set === "suggestions" ? "" : images.length === total && set !== "all" ? plural(images.length, "image") : `${count(images.length)} of ${plural(set === "all" ? model.n : total, "image")}`;
  const isAsked = !keep && types && set === "suggestions" && !matchMedia("(pointer: coarse)").matches;
  const name = head.querySelector("#name");
  if (name && (isTyping || isAsked) && document.activeElement !== name) name.focus({ preventScroll: true });
}

export const selectAll = () => selection.set(grid.list());
export const view = h("div", { class: "labelling" }, side, h("section", { class: "work" }, head, filterRow, counted, grid.element));

export function start() {
  setChildren(filterRow, filterBar());
  suggestion = remaining()[0] || null;
  set = suggestion ? "suggestions" : "all";
  draw({ keep: false });
  onChange(() => {
    const gone = selection.list().filter((i) => i >= model.n);
    if (gone.length) selection.clear();
    draw();
  });
}
