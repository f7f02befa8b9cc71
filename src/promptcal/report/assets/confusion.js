// The confusion matrix of the unlabelled images whose truth is known.
import { count, fillLazily, h, plural, scrollBox } from "./dom.js";

export function confusionPage({ data, images, nameOf, swatch, thumb, truthOf, withThumbnail }) {
  const c = data.confusion;
  const rows = c.classes.length;
  const columns = c.clusters.length;
  const totals = c.counts.map((row) => row.reduce((a, b) => a + b, 0));
  const share = (i, j) => (totals[i] ? c.counts[i][j] / totals[i] : 0);
  const listing = h("div", { id: "confused" });
  const message = h("p", { class: "muted", id: "confusion-message" }, "Unlabelled images. Rows are true classes, columns are clusters. Click a cell to see its images.");

  function list(i, j) {
    const members = Array.from(images.order).filter((image) =>
      images.cluster[image] === c.clusters[j] && !images.labelled[image] && truthOf(image) === c.classes[i]);
    const shown = withThumbnail(members);
    const gallery = h("div", { class: "gallery" });
    listing.replaceChildren(h("h3", {}, `${plural(members.length, "image")} of ${c.classes[i]} in ${nameOf(c.clusters[j])}`), gallery);
    fillLazily(gallery, shown, (image) => thumb(image, shown));
  }

  function asTable() {
    const border = (k) => (k === c.nKnown - 1 ? " last-known" : "");
    return h("table", { class: "confusion", id: "confusion-matrix" },
      h("thead", {}, h("tr", {}, h("th", {}),
        c.clusters.map((cluster, j) => h("th", { class: `column${border(j)}`, title: nameOf(cluster) }, h("span", {}, nameOf(cluster)))))),
      h("tbody", {}, c.classes.map((name, i) => h("tr", { class: border(i).trim() },
        h("th", { title: name }, h("span", {}, name)),
        c.clusters.map((_, j) => {
          const cell = h("td", { class: border(j).trim(), title: `${name} in ${nameOf(c.clusters[j])}: ${c.counts[i][j]}`,
            onclick: () => c.counts[i][j] && list(i, j) }, c.counts[i][j] ? String(c.counts[i][j]) : "");
          cell.style.setProperty("--share", String(share(i, j)));
          if (share(i, j) > 0.6) cell.classList.add(share(i, j) > 0.8 ? "darkest" : "dark");
          return cell;
        })))));
  }

  function asCanvas() {
    const pixel = Math.max(2, Math.floor(760 / Math.max(rows, columns)));
    const canvas = h("canvas", { class: "confusion-canvas", id: "confusion-matrix", width: columns * pixel, height: rows * pixel });
    const context = canvas.getContext("2d");
    for (let i = 0; i < rows; i++) for (let j = 0; j < columns; j++) {
      if (!c.counts[i][j]) continue;
      context.fillStyle = `rgb(70 110 160 / ${0.08 + 0.92 * share(i, j)})`;
      context.fillRect(j * pixel, i * pixel, pixel, pixel);
    }
    context.fillStyle = "#be5a28";
    context.fillRect(0, c.nKnown * pixel - 0.5, canvas.width, 1);
    context.fillRect(c.nKnown * pixel - 0.5, 0, 1, canvas.height);
    const cellAt = (event) => {
      const box = canvas.getBoundingClientRect();
      return [Math.floor(((event.clientY - box.top) / box.height) * rows), Math.floor(((event.clientX - box.left) / box.width) * columns)];
    };
    canvas.addEventListener("pointermove", (event) => {
      const [i, j] = cellAt(event);
      if (c.counts[i] && c.counts[i][j] !== undefined) message.textContent = `${c.classes[i]} in ${nameOf(c.clusters[j])}: ${c.counts[i][j]}`;
    });
    canvas.addEventListener("click", (event) => { const [i, j] = cellAt(event); if (c.counts[i] && c.counts[i][j]) list(i, j); });
    return canvas;
  }

  // images in a cluster that matches another class
  const confusions = c.counts.flatMap((row, i) => row.map((n, j) => [n, i, j])).filter(([n, i, j]) => n && c.matchedRows[j] !== i)
    .sort((a, b) => b[0] - a[0]).slice(0, 8);
  const largest = confusions.length ? h("div", { class: "panel" }, h("h2", {}, "Largest confusions"),
    h("div", { class: "confusions" }, confusions.map(([n, i, j]) => h("button", { type: "button", class: "chip", onclick: () => list(i, j) },
      h("strong", {}, count(n)), h("span", {}, `${c.classes[i]} in `), swatch(c.clusters[j]), nameOf(c.clusters[j]))))) : null;
  const view = h("section", {}, h("h2", {}, "Confusion"), message,
    h("div", { class: "beside" },
      h("div", { class: "matrix" }, scrollBox("Confusion matrix", Math.max(rows, columns) <= 40 ? asTable() : asCanvas()),
        h("p", { class: "muted" }, "The lines separate known classes from new ones.")),
      h("div", { class: "rest" }, largest, listing)));
  return { view, refresh: () => {} };
}
