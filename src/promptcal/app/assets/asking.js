// Dialogs: merge a category into another one, and split images with a preview.
import { count, h, plural, setChildren, unpack } from "./dom.js";
import { completingField } from "./completing.js";
import { attempt, merge, split } from "./doing.js";
import { pictureUrl } from "./grid.js";
import { model, nameOf, sizeOf } from "./model.js";
import { post } from "./server.js";

const dialog = document.getElementById("dialog");
dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });

export function show(title, ...children) {
  setChildren(dialog, h("h2", {}, title), ...children);
  dialog.setAttribute("aria-label", title);
  if (!dialog.open) dialog.showModal();
}
const cancel = () => h("button", { type: "button", id: "cancel", onclick: () => dialog.close() }, "Cancel");

export function askMerge(category, then = () => {}) {
  const field = completingField({
    id: "merge-into", label: `Merge ${nameOf(category)} into`, placeholder: "Name of the other category", canCreate: false,
    allows: (c) => c !== category,
    onChoose: async (option) => { dialog.close(); if (await merge(category, option.category)) then(option.category); },
  });
  show(`Merge ${nameOf(category)}`,
    h("p", { class: "muted" }, `${plural(sizeOf(category), "image")} will be in the category that you choose.`),
    h("div", { class: "actions" }, field.element, h("button", { type: "button", class: "primary", onclick: field.chooseNow }, "Merge"), cancel()));
  field.input.focus();
}

// offers to merge when a name exists already
export function offerMerge(category, target, then) {
  show(`The category ${nameOf(target)} exists`,
    h("p", {}, `It has ${plural(sizeOf(target), "image")}. Merge ${nameOf(category)} with its ${plural(sizeOf(category), "image")} into it?`),
    h("div", { class: "actions" },
      h("button", { type: "button", class: "primary", id: "merge-offer", onclick: async () => { dialog.close(); if (await merge(category, target)) then(target); } }, "Merge"),
      h("button", { type: "button", id: "cancel", onclick: () => dialog.close() }, "Choose another name")));
}

export function askSplit(images, then = () => {}) {
  const parts = h("div", { class: "parts", "aria-live": "polite" });
  const apply = h("button", { type: "button", class: "primary", id: "apply-split", disabled: true }, "Split");
  let found = null;
  let asked = 0;
  async function preview(n) {
    const turn = ++asked;
    apply.disabled = true;
    setChildren(parts, h("p", { class: "muted" }, "Clustering …"));
    const answer = await attempt(() => post("api/split-preview", { images, n }));
    if (turn !== asked) return;
    if (!answer) { setChildren(parts); return; }
    found = Array.from(unpack({ type: "u1", data: answer.parts }));
    const groups = Array.from({ length: n }, () => []);
    found.forEach((part, k) => groups[part].push(images[k]));
    setChildren(parts, groups.map((group, k) => h("div", { class: "part" },
      h("strong", {}, `Part ${k + 1}`), h("span", { class: "muted" }, plural(group.length, "image")),
      h("div", { class: "part-pictures" }, group.slice(0, 10).map((image) => h("img", { alt: model.paths[image], src: pictureUrl(image, 80) }))))));
    apply.disabled = false;
  }
  const numbers = h("div", { class: "segments", role: "group", "aria-label": "Number of parts" }, [2, 3, 4, 5, 6].filter((n) => n <= images.length).map((n) =>
    h("button", { type: "button", dataset: { parts: n }, "aria-pressed": String(n === 2), onclick: (event) => {
      for (const other of event.target.parentElement.children) other.setAttribute("aria-pressed", String(other === event.target));
      preview(n);
    } }, count(n))));
  apply.addEventListener("click", async () => { dialog.close(); if (await split(images, found)) then(); });
  show(`Split ${plural(images.length, "image")}`, h("div", { class: "toolbar" }, h("span", {}, "Parts:"), numbers), parts,
    h("div", { class: "actions" }, apply, cancel()));
  preview(2);
}
