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

function update() {
  const image = list[position];
  const picture = h("img", { class: "large-picture", alt: model.paths[image], src: pictureUrl(image, 800) });
  picture.addEventListener("load", () => picture.classList.toggle("small", Math.max(picture.naturalWidth, picture.naturalHeight) <= 64));
  const fact = (name, ...value) => [h("dt", {}, name), h("dd", {}, ...value)];
  const field = completingField({
    id: "label-image", label: "Label of this image", placeholder: "Label this image as …",
    onChoose: async (option) => { if (await (option.name ? create([image], option.name) : assign([image], option.category))) step(1); },
  });
  setChildren(dialog,
    h("div", { class: "viewer-head" },
      h("button", { type: "button", class: "icon", title: "Previous (←)", "aria-label": "Previous", disabled: position === 0, onclick: () => step(-1) }, "‹"),
      h("span", {}, `${count(position + 1)} of ${count(list.length)}`),
      h("button", { type: "button", class: "icon", title: "Next (→)", "aria-label": "Next", disabled: position >= list.length - 1, onclick: () => step(1) }, "›"),
      h("span", { class: "space" }),
      h("button", { type: "button", class: "icon", id: "close-viewer", title: "Close (Esc)", "aria-label": "Close", onclick: () => dialog.close() }, "✕")),
    h("div", { class: "large-box" }, picture),
    h("div", { class: "viewer-below" },
      h("dl", { class: "facts" },
        fact("Category", swatch(model.category[image]), " ", nameOf(model.category[image])),
        fact("State", STATES[model.status[image]]),
        fact("Confidence", decimal(model.confidence[image])),
        model.second[image] >= 0 ? fact("Second best", nameOf(model.second[image]), ` (${decimal(model.secondConfidence[image])})`) : null,
        model.stability ? fact("Stability", decimal(model.stability[image])) : null),
      h("div", {}, h("div", { class: "actions" }, field.element,
        h("button", { type: "button", id: "viewer-none", title: "Key 0", onclick: () => noneOfThese([image]) }, "None of these")),
      h("p", { class: "path", id: "viewer-path" }, model.paths[image]))));
}

export function open(image, images) {
  list = images;
  position = Math.max(0, images.indexOf(image));
  update();
  if (!dialog.open) dialog.showModal();
}
function step(by) { if (list[position + by] !== undefined) { position += by; update(); } }

dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
dialog.addEventListener("keydown", (event) => {
  if (isTyping(event.target) || event.ctrlKey || event.metaKey) return;
  const keys = { ArrowLeft: () => step(-1), ArrowRight: () => step(1), 0: () => noneOfThese([list[position]]), u: undo, U: redo, l: () => dialog.querySelector("#label-image").focus() };
  if (!keys[event.key]) return;
  keys[event.key]();
  event.preventDefault();
});
onChange(() => { if (dialog.open) update(); });
