// Images with their nearest neighbours.
import { fillLazily, h, percent, sampleEvenly } from "./dom.js";

export function neighboursPage({ data, images, nameOf, thumb, truthOf, hasTruth, agreement, neighboursOf, withThumbnail }) {
  let only = -1;
  let wrongFirst = false;
  const rows = h("div", { class: "neighbour-rows", id: "neighbour-rows" });
  const hits = (image) => neighboursOf(image).filter((other) => agreement(image, other) === "right").length;

  function queries() {
    const shown = withThumbnail(Array.from(images.order)).filter((image) => !images.labelled[image] && (only < 0 || images.cluster[image] === only));
    if (wrongFirst) return shown.map((image) => [hits(image), image]).sort((a, b) => a[0] - b[0]).map(([, image]) => image);
    return only < 0 ? data.clusters.flatMap((_, c) => sampleEvenly(shown.filter((image) => images.cluster[image] === c), 3)) : shown;
  }
  function row(image) {
    const near = neighboursOf(image);
    return h("div", { class: "neighbour-row" },
      h("div", { class: "query" }, thumb(image, [image, ...near], truthOf(image) ?? nameOf(images.cluster[image]))),
      near.map((other) => {
        const button = thumb(other, [image, ...near], truthOf(other) ?? nameOf(images.cluster[other]));
        const match = agreement(image, other);
        if (match) button.classList.add(match);
        return button;
      }));
  }
  const update = () => fillLazily(rows, queries(), row, 24);
  let correct = 0;
  let compared = 0;
  if (hasTruth) for (const image of images.shown) for (const other of neighboursOf(image)) {
    const match = agreement(image, other);
    if (match) { compared += 1; correct += match === "right"; }
  }
  const view = h("section", {}, h("h2", {}, "Nearest neighbours"),
    h("p", { class: "muted" }, `Each row: an image and its ${images.neighboursPerImage} nearest neighbours by cosine of the embeddings${hasTruth ? "; a green frame means the same class, a red frame another class" : ""}.`,
      compared ? h("strong", {}, ` ${percent(correct / compared)} % of all neighbours have the same class.`) : null),
    h("div", { class: "toolbar" },
      h("select", { id: "neighbours-of", "aria-label": "Cluster", onchange: (event) => { only = Number(event.target.value); update(); } },
        h("option", { value: -1 }, "A few from each cluster"), data.clusters.map((_, c) => h("option", { value: c }, nameOf(c)))),
      hasTruth ? h("label", { class: "check" }, h("input", { type: "checkbox", id: "wrong-first", onchange: (event) => { wrongFirst = event.target.checked; update(); } }), "Most wrong neighbours first") : null),
    rows);
  update();
  return { view, refresh: () => {} };
}
