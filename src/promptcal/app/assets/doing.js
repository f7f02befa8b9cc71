// Everything that changes labels: sends the action, says what happened, and offers to undo it.
import { count, h, plural, setChildren } from "./dom.js";
import { act, apply, inOrder, model, nameOf } from "./model.js";
import { post, Refused } from "./server.js";

const message = document.getElementById("message");
let hiding = 0;
document.addEventListener("close", () => document.body.append(message), true); // of a dialog

export function say(text, { isProblem = false, canUndo = false } = {}) {
  clearTimeout(hiding);
  setChildren(message, h("span", {}, text), canUndo ? h("button", { type: "button", id: "undo-this", onclick: undo }, "Undo") : null,
    h("button", { type: "button", class: "icon", "aria-label": "Close this message", onclick: () => { message.hidden = true; } }, "✕"));
  message.classList.toggle("is-problem", isProblem);
  (document.querySelector("dialog[open]") || document.body).append(message); // a dialog would cover it
  message.hidden = false;
  hiding = setTimeout(() => { message.hidden = true; }, isProblem ? 20_000 : 5000);
}

// what to do with a refusal that has a remedy, such as a name that exists
export async function attempt(work, onRefused = () => false) {
  try {
    return await work();
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    if (!onRefused(error)) say(error.message, { isProblem: true });
    return null;
  }
}

async function done(action, text) {
  const change = await attempt(() => act(action));
  if (change) say(text, { canUndo: true });
  return change;
}

const number = (images) => plural(images.length, "image");
export const assign = (images, category) => done({ kind: "assign", images, category }, `${number(images)} labelled as ${nameOf(category)}.`);
export const create = (images, name) => done({ kind: "create", images, name }, `${number(images)} in the new category ${name}.`);
// pairs of image and category, for images that get different labels
export async function labelAs(pairs) {
  const byCategory = new Map();
  for (const [image, category] of pairs) byCategory.set(category, [...(byCategory.get(category) || []), image]);
  for (const [category, images] of byCategory) await assign(images, category);
}
export const noneOfThese = (images) => done({ kind: "none", images }, `${number(images)} marked as none of these.`);
export const removeLabels = (images) => done({ kind: "remove", images }, `Label of ${number(images)} removed.`);
export const accept = (images) => done({ kind: "accept", images }, `${number(images)} accepted as shown.`);
export const merge = (source, target) => done({ kind: "merge", source, target }, `${nameOf(source)} merged into ${nameOf(target)}.`);
export const split = (images, parts) => done({ kind: "split", images, parts }, `${number(images)} split into ${count(new Set(parts).size)} categories.`);

// a name that exists is an offer to merge
export async function rename(category, name, offerMerge) {
  const change = await attempt(() => act({ kind: "rename", category, name }),
    (error) => { if (error.status !== 409) return false; offerMerge(error.answer.category); return true; });
  if (change) say(`Named ${name.trim()}.`, { canUndo: true });
  return change;
}

const step = (path, verb) => attempt(() => inOrder(async () => {
  const title = model[path];
  if (title === null) { say(`There is nothing to ${path}.`); return; }
  await apply(await post(`api/${path}`));
  say(`${verb}: ${title}.`);
}));
export const undo = () => step("undo", "Undone");
export const redo = () => step("redo", "Done again");
