// What the page knows of the run: columns by image, categories, and how they change.
import { colourOf, decodeBase64 } from "./dom.js";
import { get, post } from "./server.js";

export const UNLABELLED = 0, GIVEN = 1, LABELLED = 2, NONE = 3;
const TYPES = { category: Int32Array, status: Uint8Array, confidence: Float32Array, second: Int32Array, secondConfidence: Float32Array, stability: Float32Array };
const column = (name, text) => new TYPES[name](decodeBase64(text).buffer);

export const model = { n: 0, paths: [], categories: [], version: -1, undo: null, redo: null, stability: null };
const listeners = [];
export const onChange = (listener) => listeners.push(listener);

function setSmallParts(part) {
  for (const name of ["version", "categories", "undo", "redo"]) model[name] = part[name];
}

function tell(confidenceChanged) {
  cache.clear();
  if (confidenceChanged) orders.clear();
  for (const listener of listeners) listener();
}

export function load(data) {
  model.paths = data.paths;
  model.n = data.paths.length;
  model.search = null;
  setSnapshot(data.state);
}

export function setSnapshot(state) {
  if (state.version < model.version) return; // a change came while it was loaded
  for (const name of Object.keys(TYPES)) model[name] = state[name] === null ? null : column(name, state[name]);
  setSmallParts(state);
  tell(true);
}

// a change that the server has saved, by this page or by another one
export async function apply(change) {
  if (change.version <= model.version || !change.categories) return;
  if (change.previous !== model.version) { setSnapshot(await get("api/state")); return; }
  const images = new Uint32Array(decodeBase64(change.images).buffer);
  let confidenceChanged = false;
  for (const name of Object.keys(TYPES)) {
    if (!change[name]) continue;
    const values = column(name, change[name]);
    const target = model[name];
    const matters = name === "confidence" || name === "secondConfidence";
    for (let i = 0; i < images.length; i++) {
      if (matters && target[images[i]] !== values[i]) confidenceChanged = true;
      target[images[i]] = values[i];
    }
  }
  setSmallParts(change);
  tell(confidenceChanged);
}

// Runs what changes labels one after another, in the order in which the user did it.
let last = Promise.resolve();
export function inOrder(work) {
  const done = last.then(work);
  last = done.catch(() => {});
  return done;
}

export const send = (path, body) => inOrder(async () => {
  const change = await post(path, body);
  await apply(change);
  return change;
});
export const act = (action) => send("api/action", action);

// -- what is derived from it ------------------------------------------------------------------------------
const cache = new Map(); // until the next change
const orders = new Map(); // until confidences change

function cached(key, make) {
  if (!cache.has(key)) cache.set(key, make());
  return cache.get(key);
}

export const isActive = (c) => model.categories[c].mergedInto === null;
export const display = (name) => name.replace(/^new-(\d+)$/, "new $1");
export const nameOf = (c) => (c < 0 ? "none of these" : display(model.categories[c].name));
export const colour = (c) => (c < 0 ? "#858585" : colourOf(c));
export const isUnnamed = (c) => !model.categories[c].known && /^new-\d+$/.test(model.categories[c].name);
export const kindOf = (c) => (model.categories[c].known ? "known" : model.categories[c].confirmed ? "confirmed" : "new");

// known classes, then the others, each in the order of their numbers
export const active = () => cached("active", () => model.categories.map((_, c) => c).filter(isActive)
  .sort((a, b) => model.categories[b].known - model.categories[a].known || a - b));

export const sizes = () => cached("sizes", () => {
  const counts = new Int32Array(model.categories.length + 1); // the last one: none of these
  for (let i = 0; i < model.n; i++) counts[model.category[i] < 0 ? model.categories.length : model.category[i]]++;
  return counts;
});
export const sizeOf = (c) => sizes()[c < 0 ? model.categories.length : c];

export const isDoubtful = (i) => model.status[i] === UNLABELLED && model.second[i] >= 0 && model.second[i] !== model.category[i]
  && 2 * model.secondConfidence[i] > model.confidence[i];
export const isUnstable = (i) => model.stability !== null && model.status[i] === UNLABELLED && model.stability[i] < 0.6;
const margin = (i) => model.confidence[i] - model.secondConfidence[i];

export const SORTS = {
  typical: ["Most typical first", (a, b) => model.confidence[b] - model.confidence[a] || a - b],
  doubtful: ["Most doubtful first", (a, b) => margin(a) - margin(b) || a - b],
  path: ["By path", null],
};

// all images in an order
export function ordered(sort) {
  if (!orders.has(sort)) {
    const all = Uint32Array.from({ length: model.n }, (_, i) => i);
    const compare = SORTS[sort][1];
    orders.set(sort, compare ? all.sort(compare) : all);
  }
  return orders.get(sort);
}

function lowerCasePaths() {
  if (model.search === null) model.search = model.paths.map((path) => path.toLowerCase());
  return model.search;
}

// the images of a set ("all", "none" or the number of a category) that pass the filters
export function matching(set, { doubt, stability, status, path, sort }) {
  const query = path.trim().toLowerCase();
  const paths = query ? lowerCasePaths() : null;
  const category = set === "none" ? -1 : set;
  const found = [];
  for (const i of ordered(sort)) {
    if (set !== "all" && model.category[i] !== category) continue;
    if (doubt && !isDoubtful(i)) continue;
    if (stability && !(model.stability[i] < stability && model.status[i] === UNLABELLED)) continue;
    if (status !== "" && model.status[i] !== Number(status)) continue;
    if (paths && !paths[i].includes(query)) continue;
    found.push(i);
  }
  return found;
}

// What helps most: large clusters without a name, then doubtful and unstable images by category, the most first.
export const suggestions = () => cached("suggestions", () => {
  const doubtful = new Map();
  for (const i of ordered("doubtful")) {
    if (!isDoubtful(i) && !isUnstable(i)) continue;
    if (!doubtful.has(model.category[i])) doubtful.set(model.category[i], []);
    doubtful.get(model.category[i]).push(i);
  }
  const unnamed = active().filter((c) => isUnnamed(c) && !model.categories[c].confirmed && sizeOf(c) > 0)
    .map((c) => ({ key: `name-${c}`, kind: "name", category: c, weight: sizeOf(c) }));
  const checks = [...doubtful].filter(([c]) => c >= 0)
    .map(([c, images]) => ({ key: `check-${c}`, kind: "check", category: c, images: images.slice(0, 60), weight: images.length }));
  const largest = (a, b) => b.weight - a.weight || a.category - b.category;
  return [...unnamed.sort(largest), ...checks.sort(largest)];
});

// categories whose name fits what was typed: equal, then beginning with it, then containing it
export function completions(text) {
  const sought = text.trim().toLowerCase();
  const rank = (c) => {
    const names = [nameOf(c).toLowerCase(), model.categories[c].name.toLowerCase()];
    if (!sought || names.includes(sought)) return 0;
    return names.some((name) => name.startsWith(sought)) ? 1 : names.some((name) => name.includes(sought)) ? 2 : 3;
  };
  return active().map((c) => [c, rank(c)]).filter(([, r]) => r < 3).sort((a, b) => a[1] - b[1]).map(([c]) => c);
}
export function exactly(text, otherThan = -1) {
  const sought = text.trim().toLowerCase();
  return active().find((c) => c !== otherThan && (model.categories[c].name.toLowerCase() === sought || nameOf(c).toLowerCase() === sought)) ?? -1;
}
