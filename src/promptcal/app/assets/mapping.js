// The map: images that lie together are similar. The lasso selects them for labelling.
import { count, decodeBase64, h, plural, setChildren } from "./dom.js";
import { createMap } from "./scatter.js";
import { attempt } from "./doing.js";
import { pictureUrl } from "./grid.js";
import { selection } from "./labelling.js";
import { open } from "./looking.js";
import { colour, isDoubtful, model, nameOf, onChange, ordered } from "./model.js";
import { waitingFor } from "./progress.js";
import { get } from "./server.js";

const LABELS = ["not labelled", "label of the run", "your label", "none of these"];
const MOST_PICTURES = 1500;
const pictures = new Map(); // those that were drawn last are at the end
let page = null;
let isLoading = false;

function pictureOf(image, redraw) {
  let picture = pictures.get(image);
  if (!picture) {
    picture = new Image();
    picture.src = pictureUrl(image, 80);
    pictures.set(image, picture);
    if (pictures.size > MOST_PICTURES) pictures.delete(pictures.keys().next().value);
  }
  const isLoaded = picture.complete && picture.naturalWidth > 0;
  if (!isLoaded) picture.addEventListener("load", redraw, { once: true });
  const [width, height] = isLoaded ? [picture.naturalWidth, picture.naturalHeight] : [1, 1];
  return { source: isLoaded ? picture : null, x: 0, y: 0, width, height };
}

const stateOf = (image) => (isDoubtful(image) ? 4 : model.status[image]);

function build(data) {
  const shown = new Uint32Array(decodeBase64(data.images).buffer);
  const isCategory = (colouring) => colouring === "category";
  return createMap({
    shown,
    coordinates: new Float32Array(decodeBase64(data.coordinates).buffer),
    selection,
    pictureOf,
    order: () => ordered("typical"),
    colourings: [["category", "Colour by category"], ["state", "Colour by label state"]],
    groupOf: (image, colouring) => (isCategory(colouring) ? model.category[image] : stateOf(image)),
    colour: (group, colouring) => (isCategory(colouring) ? colour(group) : ["#858585", "#4a86c5", "#2ca048", "#d63f26", "#ee7733"][group]),
    groupName: (group, colouring) => (isCategory(colouring) ? nameOf(group) : [...LABELS, "doubtful"][group]),
    isNewGroup: (group, colouring) => isCategory(colouring) && group >= 0 && !model.categories[group].known,
    isNew: (image) => model.category[image] >= 0 && !model.categories[model.category[image]].known,
    describe: (image) => [h("img", { class: "tip-picture", alt: "", src: pictureUrl(image, 130) }), h("strong", {}, nameOf(model.category[image])), h("span", { class: "muted" }, model.paths[image].slice(-60))],
    open: (image) => open(image, [image]),
    listed: (list) => [h("p", { id: "lasso-count", role: "status" }, `${plural(list.length, "image")} in the lasso are selected. Label them below, or press a digit.`)],
    about: [
      "Near points are similar images; large distances have no meaning. ● known ◆ discovered. Draw a lasso to select images, or press Enter for those in view. Zoom in to see them.",
      ...(shown.length < model.n ? [`${count(shown.length)} of ${count(model.n)} images, from all categories.`] : []),
    ],
  });
}

export const view = h("section", { class: "page map-page" });
export async function start() {
  if (page) { page.refresh(true); return; }
  setChildren(view, waitingFor("loading the map (computing it, if the run has none yet)"));
  if (isLoading) return;
  isLoading = true;
  const data = await attempt(() => get("api/map"));
  isLoading = false;
  if (!data) { setChildren(view, h("p", {}, "The map could not be computed. ", h("button", { type: "button", id: "compute-again", onclick: start }, "Try again"))); return; }
  page = build(data);
  setChildren(view, page.view);
  onChange(() => { if (view.isConnected) page.refresh(true); });
  selection.onChange(() => { if (view.isConnected) page.refresh(false); });
}
