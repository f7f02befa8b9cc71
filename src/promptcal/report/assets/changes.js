// What changed since the previous run: categories, and the images that moved.
import { count, fillLazily, h, plural, setChildren } from "./dom.js";
import { keyFigure } from "./overview.js";

export function changesSummary(c) {
  const run = c.previousRun.split(/[\\/]/).pop();
  return `${plural(c.moved, "image")} of ${count(c.images)} moved to another category since ${run}.`;
}

function changedCategories({ data, nameOf, hrefOf }) {
  const c = data.changes;
  const name = (cluster) => h("a", { href: hrefOf(cluster) }, nameOf(cluster));
  const rows = [
    ...c.renamed.map(({ cluster, oldName }) => ["renamed", h("span", {}, oldName, " is now ", name(cluster))]),
    ...c.removedCategories.map(({ name: removed, into }) => into === null
      ? ["removed", h("span", {}, removed, "; its images are now in several categories")] : ["merged", h("span", {}, removed, " into ", into)]),
    ...c.addedCategories.map(({ cluster }) => ["added", name(cluster)]),
  ];
  return h("div", { class: "panel" }, h("h2", {}, "Categories"),
    rows.length ? h("dl", { class: "facts", id: "changed-categories" }, rows.flatMap(([change, category]) => [h("dt", {}, change), h("dd", {}, category)]))
      : h("p", { class: "muted", id: "changed-categories" }, "No category changed its number or name."));
}

// Confirmed categories that lost more than a few percent of their images, or would have.
export function confirmedLosses(losses, id) {
  if (!losses.length) return null;
  const advice = losses[0].kept ? "Without --keep-confirmed these images move." : "To keep these images in their categories, run the fit again with --keep-confirmed.";
  return h("div", { class: "panel", id }, h("h2", {}, "Confirmed categories"),
    h("ul", { class: "warning" }, losses.map(({ message }) => h("li", {}, message))), h("p", {}, advice));
}

export function changesPage(report) {
  const { data, images, nameOf, swatch, thumb, withThumbnail, previousCategory } = report;
  const c = data.changes;
  const moves = Array.from(images.order).filter((image) => previousCategory.has(image))
    .map((image) => ({ image, from: previousCategory.get(image), to: images.cluster[image] }));
  const flows = new Map();
  for (const { from, to } of moves) {
    const key = JSON.stringify([from, to]);
    flows.set(key, (flows.get(key) || 0) + 1);
  }
  const nUnlabelled = moves.filter(({ image }) => !images.labelled[image]).length;
  const shown = { from: "", to: "", onlyUnlabelled: false };
  const message = h("p", { class: "muted", id: "moved-count", "aria-live": "polite" });
  const gallery = h("div", { class: "gallery captions", id: "moved" });
  const chips = h("div", { class: "confusions", id: "flows" });
  const select = (id, label, key, options) => h("select", { id, "aria-label": label,
    onchange: (event) => { shown[key] = event.target.value; update(); } },
    h("option", { value: "" }, `${label} any category`), options.map(([value, name]) => h("option", { value }, `${label} ${name}`)));
  const froms = select("moved-from", "From", "from", [...new Set(moves.map((move) => move.from))].sort().map((name) => [name, name]));
  const tos = select("moved-to", "To", "to", [...new Set(moves.map((move) => move.to))].sort((a, b) => a - b).map((to) => [String(to), nameOf(to)]));

  function update() {
    const matches = moves.filter(({ image, from, to }) => (shown.from === "" || from === shown.from) && (shown.to === "" || String(to) === shown.to) && !(shown.onlyUnlabelled && images.labelled[image]));
    const visible = withThumbnail(matches.map(({ image }) => image));
    froms.value = shown.from;
    tos.value = shown.to;
    const hidden = matches.length - visible.length;
    message.textContent = `${plural(matches.length, "image")} of ${count(moves.length)} that moved${hidden ? `, ${count(hidden)} of them without a thumbnail` : ""}. Below each image: its previous and its present category.`;
    setChildren(chips, [...flows].sort((a, b) => b[1] - a[1]).slice(0, 24).map(([key, n]) => {
      const [from, to] = JSON.parse(key);
      const on = shown.from === from && shown.to === String(to);
      return h("button", { type: "button", class: "chip", "aria-pressed": String(on), onclick: () => {
        Object.assign(shown, on ? { from: "", to: "" } : { from, to: String(to) });
        update();
      } }, h("strong", {}, count(n)), h("span", {}, `${from} →`), swatch(to), nameOf(to));
    }));
    fillLazily(gallery, visible, (image) => thumb(image, visible, `${previousCategory.get(image)} → ${nameOf(images.cluster[image])}`));
  }

  const view = h("section", {},
    h("div", { class: "figures" }, keyFigure(count(c.moved), "moved"), keyFigure(count(c.images - c.moved), "stayed"),
      keyFigure(count(nUnlabelled), "moved without a label"),
      c.added ? keyFigure(count(c.added), "images added") : null, c.missing ? keyFigure(count(c.missing), "images removed") : null),
    h("p", { class: "muted" }, "Since ", h("span", { class: "path" }, c.previousRun)),
    confirmedLosses(c.confirmedLosses, "confirmed-losses"),
    changedCategories(report),
    moves.length ? h("div", { class: "panel" }, h("h2", {}, "Moves between categories"), chips) : null,
    moves.length ? h("div", { class: "toolbar" }, froms, tos,
      h("label", { class: "check" }, h("input", { type: "checkbox", id: "moved-unlabelled", onchange: (event) => { shown.onlyUnlabelled = event.target.checked; update(); } }), "Only images without a label")) : null,
    moves.length ? message : null, gallery);
  if (moves.length) update();
  return { view, refresh: (categoriesChanged) => { if (categoriesChanged) report.redraw(); } };
}
