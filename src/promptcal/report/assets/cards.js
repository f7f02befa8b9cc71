// A category as a card: its size, its measures, examples, and advice to merge or divide it.
import { count, decimal, h, percent, plural, sampleEvenly } from "./dom.js";

export const badge = (record) => h("span", { class: record.known ? "badge known" : "badge new" }, record.known ? "known" : "new");

function bar(value) {
  const inner = h("span", {});
  inner.style.width = `${100 * Math.max(0, Math.min(1, value || 0))}%`;
  return h("span", { class: "bar", title: "Cohesion: mean cosine of the images with the cluster's centroid" }, inner);
}

// cohesion, stability and the nearest known class
export function categoryMeasures({ data, hrefOf }, record) {
  return [
    h("span", { class: "cohesion" }, "cohesion ", bar(record.cohesion), ` ${decimal(record.cohesion)}`),
    record.stability === null ? null : h("span", { class: "stability", title: "Stability: share of the read-outs from other starts that agree, mean of the images" }, `stability ${decimal(record.stability)}`),
    record.nearest < 0 ? null : h("span", {}, "nearest known ", h("a", { href: hrefOf(record.nearest) }, data.clusters[record.nearest].name), ` (distance ${decimal(record.distance)})`),
  ];
}

// advice on a category: merges that the links between neighbours suggest, and reasons to divide it
export function advice({ data, nameOf, rootOf, hrefOf }, cluster, merge) {
  const rows = [];
  const { clusters } = data;
  for (const { cluster: first, into, falseRate } of data.suggestedMerges) {
    const [a, b] = [rootOf(first), rootOf(into)];
    if (a === b || (a !== cluster && b !== cluster)) continue;
    const other = a === cluster ? b : a;
    // a known class stays: the discovered one is merged into it
    const [moved, target] = clusters[a].known ? [b, a] : clusters[b].known || b === other ? [a, b] : [b, a];
    if (clusters[moved].known) continue;
    const isPart = clusters[first].partOf === into && !clusters[cluster].known;
    rows.push(h("span", { class: "suggestion" }, isPart ? "Probably part of " : "May be one category with ",
      h("a", { href: hrefOf(other) }, nameOf(other)),
      h("button", { type: "button", class: "suggested-merge", dataset: { other }, title: `${percent(falseRate)} % of the known classes are connected as strongly with another known class`,
        onclick: () => merge(moved, target) }, "Merge")));
  }
  if (clusters[cluster].split) rows.push(h("span", { class: "suggestion split" }, `May be several categories: ${clusters[cluster].split}`));
  return rows.length ? h("div", { class: "advice" }, rows) : null;
}

// strip: the images of which examples are shown; form: what names or opens the category
export function categoryCard(report, { cluster, members, labelled, doubtful, merged = [], strip, state = "", merge, form }) {
  const { data, nameOf, hrefOf, swatch, thumb, withThumbnail } = report;
  const record = data.clusters[cluster];
  return h("article", { class: "card", dataset: { cluster, state } },
    h("header", {}, swatch(cluster), h("h3", {}, h("a", { href: hrefOf(cluster) }, nameOf(cluster))), badge(record)),
    h("p", { class: "numbers" },
      h("strong", {}, plural(members.length, "image")), labelled ? h("span", {}, `${count(labelled)} labelled`) : null,
      doubtful ? h("span", {}, `${count(doubtful)} doubtful`) : null),
    h("p", { class: "numbers muted" }, categoryMeasures(report, record), merged.length ? h("span", {}, `with ${merged.join(", ")}`) : null),
    h("div", { class: "strip" }, sampleEvenly(withThumbnail(strip), 12).map((image) => thumb(image, strip))),
    advice(report, cluster, merge), form);
}
