// The page that labels: categories at the side, suggestions, filters, the grid, and the bar of the selection.
import { count, h, plural, setChildren } from "./dom.js";
import { createSelection } from "./picking.js";
import { askMerge, askSplit, offerMerge } from "./asking.js";
import { completingField } from "./completing.js";
import { accept, assign, create, noneOfThese, removeLabels, rename } from "./doing.js";
import { createGrid } from "./grid.js";
import { open, swatch } from "./looking.js";
import { active, GIVEN, isActive, isDoubtful, kindOf, LABELLED, matching, model, nameOf, NONE, onChange, sizeOf, SORTS, suggestions } from "./model.js";

export const selection = createSelection();
const filters = { doubt: false, stability: 0, status: "", path: "", sort: "typical" };
let set = "suggestions"; // or "all", "none", or the number of a category
const skipped = new Set(); // suggestions
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

let drawnSide = "";
function drawSide() {
  const now = entries();
  const key = JSON.stringify([now.map(([set_, name, , extra]) => [set_, name, extra && extra.kind]), model.categories.length]);
  if (key === drawnSide) { // only numbers changed: the list stays, which is faster and keeps the focus
    for (const [set_, , number] of now) {
      const button = side.querySelector(`[data-set="${set_}"]`);
      button.setAttribute("aria-pressed", String(String(set) === String(set_)));
      const shown = button.querySelector(".set-count");
      if (shown.textContent !== count(number)) shown.textContent = count(number);
    }
    return;
  }
  drawnSide = key;
  const scroll = side.scrollTop;
  const focusedSet = side.contains(document.activeElement) ? document.activeElement.dataset.set : null;
  setChildren(side, now.slice(0, 3).map((row) => entry(...row)),
    h("div", { class: "side-title", role: "presentation" }, plural(active().length, "category", "categories")),
    now.slice(3).map((row) => entry(...row)));
  side.scrollTop = scroll;
  if (focusedSet !== null) { const again = side.querySelector(`[data-set="${CSS.escape(focusedSet)}"]`); if (again) again.focus({ preventScroll: true }); }
}

export function choose(key) {
  set = key;
  selection.clear();
  if (key === "suggestions") suggestion = remaining()[0] || null;
  draw({ keep: false });
}

export function step(by) {
  if (set === "suggestions") { if (by > 0) skip(); return; }
  const order = ["all", "none", ...active()];
  const at = order.indexOf(set);
  choose(order[Math.max(0, Math.min(order.length - 1, at + by))]);
}

// -- suggestions ------------------------------------------------------------------------------------------
const remaining = () => suggestions().filter((s) => !skipped.has(s.key));
function nextSuggestion() {
  const left = remaining();
  if (!suggestion || !left.some((s) => s.key === suggestion.key)) suggestion = left[0] || null;
}
function skip() {
  if (!suggestion) return;
  skipped.add(suggestion.key);
  suggestion = null;
  selection.clear();
  draw({ keep: false });
}

// -- what is above the grid -------------------------------------------------------------------------------
function nameField(category, then) {
  const input = h("input", { type: "text", id: "name", maxLength: 200, autocomplete: "off", placeholder: "Name this category", "aria-label": `Name of ${nameOf(category)}`,
    value: /^new-\d+$/.test(model.categories[category].name) ? "" : model.categories[category].name });
  return h("form", { class: "inline", onsubmit: async (event) => {
    event.preventDefault();
    const name = input.value.trim();
    if (!name) { input.focus(); return; }
    const change = await rename(category, name, (target) => offerMerge(category, target, () => then(target)));
    if (change) then(category);
  } }, input, h("button", { type: "submit", class: "primary", id: "save-name" }, "Name"));
}

function acceptButton(images) {
  const marked = images.filter((i) => selection.has(i)).length;
  const rest = images.length - marked;
  const text = marked ? `Accept all except the ${count(marked)} selected` : `Accept all ${count(rest)}`;
  return h("button", { type: "button", id: "accept-all", disabled: !rest, title: "Key Y: these images are in the right category", onclick: acceptAll }, text);
}
export async function acceptAll() {
  const images = grid.list().filter((i) => !selection.has(i) && model.category[i] >= 0);
  if (!images.length) return;
  const finished = suggestion;
  if (await accept(images) && set === "suggestions" && finished && finished.kind === "check" && !selection.size()) { skipped.delete(finished.key); draw({ keep: false }); }
}

function drawHead(images) {
  if (set === "suggestions") {
    if (!suggestion) {
      setChildren(head, h("h2", {}, "No suggestions are left"), h("p", { class: "muted" }, "Every large category has a name, and no image is doubtful. Quick refit shows the effect of your labels."));
      return;
    }
    const { kind, category } = suggestion;
    const left = remaining();
    setChildren(head,
      h("p", { class: "muted steps" }, `${plural(left.length, "suggestion")} left`, h("span", { class: "space" }), h("button", { type: "button", id: "skip", title: "Key n", onclick: skip }, "Skip ›")),
      h("h2", {}, swatch(category), kind === "name" ? ` What are these ${count(sizeOf(category))} images?` : ` Are these ${plural(images.length, "image")} really ${nameOf(category)}?`),
      h("p", { class: "muted" }, kind === "name"
        ? `They look alike and have no name yet (${nameOf(category)}). Give them one; select those that do not belong and label them on their own.`
        : "The run is not sure of them. Select those that are wrong and label them; then accept the rest."),
      h("div", { class: "toolbar" }, kind === "name" ? nameField(category, () => draw({ keep: false })) : null, acceptButton(images),
        kind === "name" ? h("button", { type: "button", id: "merge", title: "Key m", onclick: () => askMerge(category) }, "Merge into …") : null,
        kind === "name" ? h("button", { type: "button", id: "split", title: "Key d", onclick: splitSet }, "Split …") : null));
    return;
  }
  const category = typeof set === "number" ? set : null;
  setChildren(head,
    h("h2", {}, category === null ? null : swatch(category), ` ${set === "all" ? "All images" : set === "none" ? "None of these" : nameOf(set)}`),
    category === null ? null : h("div", { class: "toolbar" }, nameField(category, (c) => choose(c)), acceptButton(images),
      h("button", { type: "button", id: "merge", title: "Key m", onclick: () => askMerge(category, (c) => choose(c)) }, "Merge into …"),
      h("button", { type: "button", id: "split", title: "Key d", disabled: sizeOf(category) < 2, onclick: splitSet }, "Split …")));
}

export function mergeSet() { const c = set === "suggestions" && suggestion ? suggestion.category : set; if (typeof c === "number") askMerge(c, (target) => choose(target)); }
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
const finish = async (work) => { const images = selection.list(); if (images.length && await work(images)) { selection.clear(); field.clear(); grid.focus(); } };
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
  const button = head.querySelector("#accept-all");
  if (button) button.replaceWith(acceptButton(grid.list()));
});

// -- all of it --------------------------------------------------------------------------------------------
function draw({ keep = true } = {}) {
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
  const typing = head.contains(document.activeElement) && document.activeElement.id === "name" ? document.activeElement.value : null;
  drawHead(images);
  grid.setList(images, { keep });
  const total = set === "all" || set === "suggestions" ? images.length : sizeOf(set === "none" ? -1 : set);
  counted.textContent = set === "suggestions" ? "" : images.length === total && set !== "all" ? plural(images.length, "image") : `${count(images.length)} of ${plural(set === "all" ? model.n : total, "image")}`;
  const name = head.querySelector("#name");
  if (name && (typing !== null || (!keep && set === "suggestions" && !matchMedia("(pointer: coarse)").matches))) {
    if (typing !== null && keep) name.value = typing;
    name.focus({ preventScroll: true });
  }
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
