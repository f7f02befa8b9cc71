// What changed since the run that this one goes on from: categories, and the images that moved.
function changesTold() {
  const c = data.changes;
  const run = c.from.split(/[\\/]/).pop();
  return `${plural(c.moved, "image")} of ${count(c.images)} moved to another category since ${run}.`;
}

function changedCategories() {
  const c = data.changes;
  const name = (cluster) => h("a", { href: `#cluster-${cluster}` }, decisions.nameOf(cluster));
  const rows = [
    ...c.renamed.map(({ cluster, from }) => ["renamed", h("span", {}, from, " is now ", name(cluster))]),
    ...c.vanished.map(({ name: gone, into }) => into === null
      ? ["gone", h("span", {}, gone, ", its images are in several others")] : ["merged", h("span", {}, gone, " into ", into)]),
    ...c.appeared.map(({ cluster }) => ["found", h("span", {}, name(cluster), ", which is no earlier category")]),
  ];
  return h("div", { class: "panel" }, h("h2", {}, "Categories"),
    rows.length ? h("dl", { class: "facts", id: "changed-categories" }, rows.flatMap(([what, told]) => [h("dt", {}, what), h("dd", {}, told)]))
      : h("p", { class: "quiet", id: "changed-categories" }, "All have the numbers and names they had."));
}

function changesView() {
  const c = data.changes;
  const moves = Array.from(images.order).filter((image) => movedFrom.has(image))
    .map((image) => ({ image, from: movedFrom.get(image), to: images.cluster[image] }));
  const flows = new Map();
  for (const { from, to } of moves) {
    const key = JSON.stringify([from, to]);
    flows.set(key, (flows.get(key) || 0) + 1);
  }
  const bySelf = moves.filter(({ image }) => !images.labelled[image]).length;
  const shown = { from: "", to: "", bySelf: false };
  const told = h("p", { class: "quiet", id: "moved-count", "aria-live": "polite" });
  const gallery = h("div", { class: "gallery captions", id: "moved" });
  const chips = h("div", { class: "confusions", id: "flows" });
  const select = (id, label, key, options) => h("select", { id, "aria-label": label,
    onchange: (event) => { shown[key] = event.target.value; refill(); } },
    h("option", { value: "" }, `${label} any category`), options.map(([value, name]) => h("option", { value }, `${label} ${name}`)));
  const froms = select("moved-from", "From", "from", [...new Set(moves.map((move) => move.from))].sort().map((name) => [name, name]));
  const tos = select("moved-to", "To", "to", [...new Set(moves.map((move) => move.to))].sort((a, b) => a - b).map((to) => [String(to), decisions.nameOf(to)]));

  function refill() {
    const found = moves.filter(({ image, from, to }) => (shown.from === "" || from === shown.from) && (shown.to === "" || String(to) === shown.to) && !(shown.bySelf && images.labelled[image]));
    const seen = withPicture(found.map(({ image }) => image));
    froms.value = shown.from;
    tos.value = shown.to;
    const without = found.length - seen.length;
    told.textContent = `${plural(found.length, "image")} of ${count(moves.length)} that moved${without ? `, ${count(without)} of them without a picture` : ""}. Below each: where it was.`;
    fill(chips, [...flows].sort((a, b) => b[1] - a[1]).slice(0, 24).map(([key, many]) => {
      const [from, to] = JSON.parse(key);
      const on = shown.from === from && shown.to === String(to);
      return h("button", { type: "button", class: "chip", "aria-pressed": String(on), onclick: () => {
        Object.assign(shown, on ? { from: "", to: "" } : { from, to: String(to) });
        refill();
      } }, h("strong", {}, count(many)), h("span", {}, `${from} →`), swatch(to), decisions.nameOf(to));
    }));
    growing(gallery, seen, (image) => thumb(image, seen, `${movedFrom.get(image)} → ${decisions.nameOf(images.cluster[image])}`));
  }

  const view = h("section", {},
    h("div", { class: "figures" }, tile(count(c.moved), "moved"), tile(count(c.images - c.moved), "stayed"),
      tile(count(bySelf), "moved without a label"),
      c.added ? tile(count(c.added), "images more") : null, c.gone ? tile(count(c.gone), "images fewer") : null),
    h("p", { class: "quiet" }, "Since ", h("span", { class: "path" }, c.from)),
    changedCategories(),
    moves.length ? h("div", { class: "panel" }, h("h2", {}, "From where to where"), chips) : null,
    moves.length ? h("div", { class: "toolbar" }, froms, tos,
      h("label", { class: "check" }, h("input", { type: "checkbox", id: "moved-by-self", onchange: (event) => { shown.bySelf = event.target.checked; refill(); } }), "Only images without a label")) : null,
    moves.length ? told : null, gallery);
  if (moves.length) refill();
  return { view, refresh: (whole) => { if (whole) show(); } };
}
