// The pages of the report, live: of the categories as they are now, by the same components.
import { attentionPage } from "./attention.js";
import { categoryCard } from "./cards.js";
import { changesPage } from "./changes.js";
import { confusionPage } from "./confusion.js";
import { trainingPage } from "./curves.js";
import { fillLazily, h, keepFocus, plural, setChildren, unpack } from "./dom.js";
import { attempt, labelAs as sendLabels, merge } from "./doing.js";
import { pictureUrl } from "./grid.js";
import { selection } from "./labelling.js";
import { labelsPage } from "./labels.js";
import { open, swatch as swatchOf } from "./looking.js";
import { createLikelyClasses, createNeighbours, createOrigins, createTruth, positionsOf } from "./lookups.js";
import { display, model, NONE, onChange } from "./model.js";
import { neighboursPage } from "./neighbours.js";
import { waitingFor } from "./progress.js";
import { overviewPage } from "./overview.js";
import { base, get } from "./server.js";

const SECONDS_UNTIL_UPDATE = 0.8; // after the last change
const PAGES = {
  overview: ["Overview", overviewPage], categories: ["Categories", categoriesPage], changes: ["Changes", changesPage], labels: ["Labels", labelsPage], confusion: ["Confusion", confusionPage],
  training: ["Training", trainingPage], neighbours: ["Neighbours", neighboursPage], attention: ["Attention", attentionPage],
};
const view = h("section", { class: "page report-page", tabIndex: 0 }); // so that the keyboard scrolls it
let report = null; // what the pages are made from
let shown = "";
let waiting = 0;

// A thumbnail. A click opens the image; in its corner, or with Ctrl or Shift, it selects.
function thumb(image, gallery, caption) {
  const picture = h("img", { alt: "", loading: "lazy", decoding: "async", src: pictureUrl(image, 110) });
  picture.addEventListener("load", () => picture.classList.toggle("small", Math.max(picture.naturalWidth, picture.naturalHeight) <= 64));
  const button = h("button", { type: "button", class: "thumb", title: model.paths[image], dataset: { thumb: image }, onclick: (event) => {
    if (event.shiftKey) selection.extendTo(image, gallery);
    else if (selection.isOn() || event.ctrlKey || event.metaKey || event.target.classList.contains("corner")) selection.toggle(image);
    else open(image, gallery);
  } }, h("span", { class: "picture" }, picture), h("span", { class: "corner" }), caption ? h("span", { class: "caption" }, caption) : null);
  button.classList.toggle("is-selected", selection.has(image));
  return button;
}
selection.onChange(() => { for (const element of view.querySelectorAll("[data-thumb]")) element.classList.toggle("is-selected", selection.has(Number(element.dataset.thumb))); });

// the button that turns selecting by click on and off
function selectButton() {
  const button = h("button", { type: "button", id: "select-mode", "aria-pressed": String(selection.isOn()), title: "Or click the corner of an image, or hold Ctrl", onclick: () => { selection.setMode(!selection.isOn()); button.setAttribute("aria-pressed", String(selection.isOn())); } }, "Select images");
  return button;
}

function categoriesPage(source) {
  const { data, images } = source;
  const members = data.clusters.map(() => []);
  for (const image of images.order) members[images.cluster[image]].push(image);
  const sum = (list, column) => list.reduce((total, image) => total + column[image], 0);
  const cards = h("div", { class: "cards" });
  const order = data.clusters.map((_, c) => c).filter((c) => members[c].length).sort((a, b) => data.clusters[b].known - data.clusters[a].known || a - b);
  fillLazily(cards, order, (cluster) => categoryCard(source, {
    cluster, members: members[cluster], labelled: sum(members[cluster], images.labelled), doubtful: sum(members[cluster], images.doubtful), strip: members[cluster],
    merge: (moved, target) => merge(data.numbers[moved], data.numbers[target]), form: null,
  }), 30);
  return { view: h("section", {}, h("p", { class: "muted" }, `${plural(order.length, "category", "categories")}. Click a name to label its images.`), cards) };
}

// what the components need, from the data of the server and from the page
function contextOf(data) {
  const images = { ...data.images, paths: model.paths };
  for (const [name, column] of Object.entries(data.images)) if (column && column.type) images[name] = unpack(column);
  const positions = positionsOf(images.shown, model.n);
  const likely = createLikelyClasses(data.mislabelled);
  for (const image of likely.keys()) if (model.status[image] === NONE) likely.delete(image);
  return {
    data, images, thumb, open, selection, selectButton, ...createTruth(data.classes, images.truth),
    neighboursOf: createNeighbours(images, positions), previousCategory: createOrigins(data.changes), likelyClass: likely,
    nameOf: (c) => display(data.clusters[c].name),
    rootOf: (c) => c,
    roots: () => data.clusters.map((_, c) => c).filter((c) => data.clusters[c].size),
    swatch: (c) => swatchOf(data.numbers[c] ?? -1),
    hrefOf: (c) => (data.numbers[c] === undefined ? "#none" : `#category-${data.numbers[c]}`),
    withThumbnail: (list) => list,
    attentionUrl: () => `${base}api/attention?version=${model.version}`,
    labelAs: (pairs) => sendLabels(pairs.map(([image, c]) => [image, data.numbers[c]])),
    redraw: draw,
  };
}

function draw() { if (shown) keepFocus(view, () => setChildren(view, PAGES[shown][1](report).view)); }

async function update() {
  const version = model.version;
  const data = await attempt(() => get("api/pages"));
  if (!data && !report) setChildren(view, h("p", {}, "This page could not be computed. ", h("button", { type: "button", id: "compute-again", onclick: () => { setChildren(view, waitingFor("computing the pages")); update(); } }, "Try again")));
  if (!data) return;
  report = { ...contextOf(data), version };
  const scroll = document.getElementById("main").scrollTop;
  draw();
  document.getElementById("main").scrollTop = scroll;
  view.dataset.version = version;
  if (model.version !== version) updateSoon();
}
function updateSoon() { clearTimeout(waiting); waiting = setTimeout(() => { if (view.isConnected) update(); }, 1000 * SECONDS_UNTIL_UPDATE); }
onChange(() => { if (view.isConnected) updateSoon(); });

function show(name) {
  shown = name;
  if (report) draw(); else setChildren(view, waitingFor("computing the pages"));
  if (!report || report.version !== model.version) update();
  return view;
}

// the tabs of the pages that this run has
export const tabs = (names) => names.map((name) => [name, PAGES[name][0], () => show(name)]);
