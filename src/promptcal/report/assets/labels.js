// Labelled images that look like another category: labels to check.
import { count, fillLazily, h, plural } from "./dom.js";

export function labelsPage({ data, images, nameOf, thumb, withThumbnail, selection, likelyClass, labelAs, selectButton }) {
  const listed = withThumbnail([...likelyClass.keys()]);
  const gallery = h("div", { class: "gallery captions", id: "mislabelled" });
  const suggestion = (image) => `${data.clusters[images.cluster[image]].label} → ${nameOf(likelyClass.get(image).other)}`;
  const accept = () => {
    const chosen = selection.list().filter((image) => likelyClass.has(image));
    if (!chosen.length) return;
    labelAs(chosen.map((image) => [image, likelyClass.get(image).other]));
    selection.clear();
  };
  const fill = () => fillLazily(gallery, listed, (image) => thumb(image, listed, suggestion(image)));
  const view = h("section", {},
    h("p", { class: "muted" }, `${plural(likelyClass.size, "label")} of ${count(data.summary.labelled)} may be wrong: without the image itself, another category is more than twice as probable as its label. Below each image: its label, and the category that it looks like. The most striking come first.`),
    likelyClass.size ? h("div", { class: "toolbar" }, selectButton(),
      h("button", { type: "button", id: "select-all", title: "Key a", onclick: () => selection.set(listed) }, "Select all"),
      h("button", { type: "button", id: "accept-suggestions", onclick: accept }, "Label the selected images as they look")) : null,
    gallery);
  fill();
  return { view, gallery: () => listed, refresh: (categoriesChanged) => { if (categoriesChanged) fill(); } };
}
