// The overview of a run: its figures, the sizes of its categories, its accuracy and its settings.
import { changesSummary, confirmedLosses } from "./changes.js";
import { count, decimal, duration, h, percent, scrollBox } from "./dom.js";

export const keyFigure = (value, label, extra = "") => h("div", { class: `figure ${extra}` }, h("strong", {}, value), h("span", {}, label));

function accuracyTable(data) {
  if (!data.accuracy.length) return null;
  const inductive = data.summary.protocol === "inductive";
  return h("div", { class: "panel" },
    h("h2", {}, "Accuracy"),
    h("p", { class: "muted" }, `% of the ${inductive ? "test" : "unlabelled"} images; clusters are matched to classes once, over all images.`),
    scrollBox("Accuracy", h("table", { class: "numbers-table", id: "accuracy" },
      h("thead", {}, h("tr", {}, ["", "All", "Known", "New", "NMI", "ARI"].map((name) => h("th", {}, name)))),
      h("tbody", {}, data.accuracy.map((row) => h("tr", { class: row.isResult ? "final-result" : "" },
        h("th", {}, row.step), ["all", "known", "new", "nmi", "ari"].map((part) => h("td", {}, percent(row[part])))))))));
}

export function overviewPage({ data, roots, nameOf, hrefOf }) {
  const s = data.summary;
  const rows = roots().map((c) => ({ record: data.clusters[c], c })).sort((a, b) => b.record.known - a.record.known || a.c - b.c);
  const largest = Math.max(1, ...data.clusters.map((record) => record.size));
  const sizes = h("div", { class: "sizes" }, rows.map(({ record, c }) => {
    const length = h("span", { class: record.known ? "known" : "new" });
    length.style.width = `${(100 * record.size) / largest}%`;
    return h("a", { class: "size-row", href: hrefOf(c) },
      h("span", { class: "size-name" }, nameOf(c)), h("span", { class: "size-bar" }, length), h("span", { class: "size-count" }, count(record.size)));
  }));
  const view = h("section", {},
    h("div", { class: "figures" },
      keyFigure(count(s.images), "images"), keyFigure(count(s.labelled), "labelled"),
      keyFigure(count(s.known), "known classes", "known"), keyFigure(count(s.new), "discovered", "new"),
      keyFigure(count(s.doubtful), "doubtful images"),
      s.accuracy && s.accuracy.all !== null ? keyFigure(`${percent(s.accuracy.all)} %`, s.protocol === "inductive" ? "accuracy, training images" : "accuracy") : null),
    data.isFirst ? h("p", { class: "note", id: "first-result" }, "This is the first result, from before training. When training ends, its result may replace these categories, and then this page forgets your decisions. Download your labels before that. They can be applied to the final result, too.") : null,
    data.changes ? confirmedLosses(data.changes.confirmedLosses, "overview-losses") : null,
    data.changes ? h("p", { class: "note" }, changesSummary(data.changes), " ", h("a", { href: "#changes" }, "See the changes")) : null,
    s.comparison ? h("p", { class: "note", id: "comparison" }, s.comparison) : null,
    s.shown < s.images ? h("p", { class: "note" }, `The report shows ${count(s.shown)} of the ${count(s.images)} images, from all clusters. Counts include all images.`) : null,
    h("div", { class: "columns" },
      h("div", { class: "panel" }, h("h2", {}, "Clusters"), sizes),
      h("div", {}, accuracyTable(data),
        h("div", { class: "panel" }, h("h2", {}, "About this run"),
          h("dl", { class: "facts" },
            [["Method", s.method], ["Backbone", s.backbone], ["Time", duration(s.seconds)], ["Images", data.root || "no image folder"], ["promptcal", data.version]]
              .flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
          h("details", {}, h("summary", {}, "All settings"),
            h("dl", { class: "facts settings" }, data.settings.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])))))),
    h("p", { class: "muted" }, `Doubtful images: the softmax probability of another cluster is more than half that of their own (the difference of the cosines is below ${decimal(s.doubtfulMargin, 3)}).`));
  return { view, refresh: () => {} };
}
