// All images of a source in shards: numbers by category. Pictures, map and decisions are of the run's own images.
function totalsView() {
  const all = data.totals;
  const rows = all.categories.map((category, c) => ({ ...category, c })).sort((a, b) => b.images - a.images || knownFirst(a.c, b.c));
  const largest = Math.max(1, ...all.histogram);
  const bars = h("div", { class: "sizes", id: "confidences" }, all.histogram.map((n, i) => {
    const length = h("span", { class: "known" });
    length.style.width = `${(100 * n) / largest}%`;
    const [low, high] = [i / all.histogram.length, (i + 1) / all.histogram.length];
    return h("div", { class: "size-row" },
      h("span", { class: "size-name" }, `${low.toFixed(2)} to ${high.toFixed(2)}`), h("span", { class: "size-bar" }, length), h("span", { class: "size-count" }, count(n)));
  }));
  const links = rows.map(({ c }) => h("a", { href: `#cluster-${c}` }, decisions.nameOf(c)));
  const table = h("table", { class: "numbers-table", id: "all-categories" },
    h("thead", {}, h("tr", {}, ["category", "images", "%", "in this run", "mean confidence", "nearest, but none"].map((name) => h("th", {}, name)))),
    h("tbody", {}, rows.map(({ c, images: n, none, confidence }, i) => h("tr", {},
      h("th", {}, links[i]), h("td", {}, count(n)), h("td", {}, percent(n / Math.max(1, all.images))), h("td", {}, count(clusters[c].size)),
      h("td", {}, confidence === null ? "–" : decimal(confidence, 2)), h("td", {}, count(none))))));
  const view = h("section", {},
    h("div", { class: "figures" },
      keyFigure(count(all.images), "images in all"), keyFigure(count(data.summary.images), "in this run"),
      keyFigure(count(all.none), "in none of the categories"), keyFigure(count(all.unreadable), "unreadable")),
    h("p", { class: "note" }, `The numbers are of all images in ${all.folder}. Pictures, map and the other tabs are of the ${count(data.summary.images)} images that the run was fitted on.`),
    h("div", { class: "columns" },
      h("div", { class: "panel" }, h("h2", {}, "Categories"), scrollBox("Categories", table)),
      h("div", { class: "panel" }, h("h2", {}, "Images by confidence"), bars)));
  const refresh = (categoriesChanged) => { if (categoriesChanged) rows.forEach(({ c }, i) => { links[i].textContent = decisions.nameOf(c); }); };
  return { view, refresh };
}
