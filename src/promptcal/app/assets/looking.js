// One image in large, its facts, and its label.
import { count, decimal, h, isTyping, setChildren } from "./dom.js";
import { completingField } from "./completing.js";
import { assign, create, noneOfThese, redo, undo } from "./doing.js";
import { pictureUrl } from "./grid.js";
import { colour, model, nameOf, onChange } from "./model.js";

const dialog = document.getElementById("viewer");
const STATES = ["not labelled", "label of the run", "your label", "none of these"];
let list = [];
let position = 0;

export const swatch = (c) => {
  const mark = h("span", { class: c >= 0 && !model.categories[c].known ? "swatch diamond" : "swatch" });
  mark.style.backgroundColor = colour(c);
  return mark;
};

const arrow = (id, text, title, by) => h("button", { type: "button", class: "icon", id, title, onclick: () => step(by), "aria-label": title.split(" ")[0] }, text);
const picture = h("img", { class: "large-picture" });
const parts = {
  previous: arrow("previous-image", "‹", "Previous (←)", -1), next: arrow("next-image", "›", "Next (→)", 1), at: h("span", {}),
  facts: h("dl", { class: "facts" }), path: h("p", { class: "path", id: "viewer-path" }),
};
const field = completingField({
  id: "label-image", label: "Label of this image", placeholder: "Label this image as …",
  onChoose: (option) => answer((images) => (option.name ? create(images, option.name) : assign(images, option.category))),
});
picture.addEventListener("load", () => picture.classList.toggle("small", Math.max(picture.naturalWidth, picture.naturalHeight) <= 64));
setChildren(dialog,
  h("div", { class: "viewer-head" }, parts.previous, parts.at, parts.next, h("span", { class: "space" }),
    h("button", { type: "button", class: "icon", id: "close-viewer", title: "Close (Esc)", "aria-label": "Close", onclick: () => dialog.close() }, "✕")),
  h("div", { class: "large-box" }, picture),
  h("div", { class: "viewer-below" }, parts.facts,
    h("div", {}, h("div", { class: "actions" }, field.element,
      h("button", { type: "button", id: "viewer-none", title: "Key 0", onclick: () => noneOfThese([list[position]]) }, "None of these")), parts.path)));

function showFacts() {
  const image = list[position];
  const fact = (name, ...value) => [h("dt", {}, name), h("dd", {}, ...value)];
  setChildren(parts.facts,
    fact("Category", swatch(model.category[image]), " ", nameOf(model.category[image])),
    fact("State", STATES[model.status[image]]),
    fact("Confidence", decimal(model.confidence[image])),
    model.second[image] >= 0 ? fact("Second best", nameOf(model.second[image]), ` (${decimal(model.secondConfidence[image])})`) : null,
    model.stability ? fact("Stability", decimal(model.stability[image])) : null);
}

function show() {
  const image = list[position];
  Object.assign(picture, { alt: model.paths[image], src: pictureUrl(image, 800) });
  parts.at.textContent = `${count(position + 1)} of ${count(list.length)}`;
  parts.path.textContent = model.paths[image];
  parts.previous.disabled = position === 0;
  parts.next.disabled = position >= list.length - 1;
  field.set("");
  showFacts();
}

export function open(image, images) {
  list = images;
  position = Math.max(0, images.indexOf(image));
  show();
  if (!dialog.open) dialog.showModal();
}
function step(by) { if (list[position + by] !== undefined) { position += by; show(); } }

// Shows the next image while the label is saved. If it cannot be saved, the image is shown again.
async function answer(work) {
  const image = list[position];
  const shown = list;
  field.set("");
  step(1);
  if (!(await work([image])) && dialog.open && list === shown && !field.input.value) open(image, list);
}

dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
document.addEventListener("keydown", (event) => {
  const isInText = isTyping(event.target);
  if (!dialog.open || event.ctrlKey || event.metaKey || event.altKey || (isInText && (event.target.value || !event.key.startsWith("Arrow")))) return;
  const keys = { ArrowLeft: () => step(-1), ArrowRight: () => step(1), 0: () => noneOfThese([list[position]]), u: undo, U: redo, l: () => field.input.focus() };
  if (!keys[event.key]) return;
  keys[event.key]();
  event.preventDefault();
});
onChange(() => { if (dialog.open) showFacts(); });
