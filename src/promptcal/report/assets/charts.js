// Overview, confusion matrix, training curves, neighbours and attention maps.
const keyFigure = (value, label, extra = "") => h("div", { class: `figure ${extra}` }, h("strong", {}, value), h("span", {}, label));

function accuracyTable() {
  if (!data.accuracy.length) return null;
  const inductive = data.summary.protocol === "inductive";
  return h("div", { class: "panel" },
    h("h2", {}, "Accuracy"),
    h("p", { class: "muted" }, `% of the ${inductive ? "test" : "unlabelled"} images; clusters are matched to classes once, over all images.`),
    h("div", { class: "scroll" }, h("table", { class: "numbers-table", id: "accuracy" },
      h("thead", {}, h("tr", {}, ["", "All", "Known", "New", "NMI", "ARI"].map((name) => h("th", {}, name)))),
      h("tbody", {}, data.accuracy.map((row) => h("tr", { class: row.isResult ? "final-result" : "" },
        h("th", {}, row.step), ["all", "known", "new", "nmi", "ari"].map((part) => h("td", {}, percent(row[part])))))))));
}

function overviewView() {
  const s = data.summary;
  const rows = clusters.map((record, c) => ({ record, c })).filter(({ c }) => decisions.rootOf(c) === c)
    .sort((a, b) => knownFirst(a.c, b.c));
  const largest = Math.max(1, ...clusters.map((record) => record.size));
  const sizes = h("div", { class: "sizes" }, rows.map(({ record, c }) => {
    const length = h("span", { class: record.known ? "known" : "new" });
    length.style.width = `${(100 * record.size) / largest}%`;
    return h("a", { class: "size-row", href: `#cluster-${c}` },
      h("span", { class: "size-name" }, decisions.nameOf(c)), h("span", { class: "size-bar" }, length), h("span", { class: "size-count" }, count(record.size)));
  }));
  const view = h("section", {},
    h("div", { class: "figures" },
      keyFigure(count(s.images), "images"), keyFigure(count(s.labelled), "labelled"),
      keyFigure(count(s.known), "known classes", "known"), keyFigure(count(s.new), "discovered", "new"),
      keyFigure(count(s.doubtful), "doubtful images"),
      s.accuracy && s.accuracy.all !== null ? keyFigure(`${percent(s.accuracy.all)} %`, s.protocol === "inductive" ? "accuracy, training images" : "accuracy") : null),
    data.changes ? h("p", { class: "note" }, changesSummary(), " ", h("a", { href: "#changes" }, "See the changes")) : null,
    s.shown < s.images ? h("p", { class: "note" }, `The report shows ${count(s.shown)} of the ${count(s.images)} images, from all clusters. Counts include all images.`) : null,
    h("div", { class: "columns" },
      h("div", { class: "panel" }, h("h2", {}, "Clusters"), sizes),
      h("div", {}, accuracyTable(),
        h("div", { class: "panel" }, h("h2", {}, "About this run"),
          h("dl", { class: "facts" },
            [["Method", s.method], ["Backbone", s.backbone], ["Time", duration(s.seconds)], ["Images", data.root || "no image folder"], ["promptcal", data.version]]
              .flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
          h("details", {}, h("summary", {}, "All settings"),
            h("dl", { class: "facts settings" }, data.settings.flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])))))),
    h("p", { class: "muted" }, `Doubtful images: the softmax probability of another cluster is more than half that of their own (the difference of the cosines is below ${decimal(s.doubtfulMargin, 3)}).`));
  return { view, refresh: () => {} };
}

// -- line charts ------------------------------------------------------------------------------------------------

// round numbers that enclose all values
function ticks(low, high) {
  const rough = (high - low) / 3;
  const unit = 10 ** Math.floor(Math.log10(rough));
  const step = unit * [1, 2, 5, 10].find((factor) => factor * unit >= 0.999 * rough);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const [first, last] = [Math.floor(low / step + 1e-9), Math.ceil(high / step - 1e-9)];
  return Array.from({ length: last - first + 1 }, (_, k) => ({ value: (first + k) * step, text: ((first + k) * step).toFixed(digits) }));
}

function lineChart(chart) {
  const [width, height, left, right, top, bottom] = [420, 230, 46, 14, 22, 28];
  const values = chart.lines.flatMap((line) => line.points.map((point) => point[1]));
  let [low, high] = [Math.min(...values), Math.max(...values)];
  if (low >= 0 && low < 0.5 * high) low = 0;
  if (high === low) { high += 0.5 * Math.abs(high) || 0.5; low -= 0.5 * Math.abs(low) || 0.5; }
  const marks = ticks(low, high);
  [low, high] = [marks[0].value, marks[marks.length - 1].value];
  const x = (epoch) => left + ((width - left - right) * (epoch - chart.first)) / Math.max(1, chart.last - chart.first);
  const y = (value) => top + ((height - top - bottom) * (high - value)) / (high - low);
  const shape = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": chart.name });
  const label = (text, at, extra) => { const t = svg("text", { ...at, class: extra || "" }); t.textContent = text; return t; };
  for (const { value, text } of marks) {
    shape.append(svg("line", { x1: left, x2: width - right, y1: y(value), y2: y(value), class: "rule" }),
      label(text, { x: left - 6, y: y(value) + 4, "text-anchor": "end" }));
  }
  for (const [epoch, stage] of chart.stages) {
    const at = epoch === chart.first ? left : (x(epoch) + x(epoch - 1)) / 2;
    if (epoch > chart.first) shape.append(svg("line", { x1: at, x2: at, y1: top - 8, y2: height - bottom, class: "stage" }));
    shape.append(label(stage, { x: at + 4, y: top - 8 }, "stage-name"));
  }
  for (const epoch of new Set([chart.first, chart.last])) shape.append(label(`epoch ${epoch}`, { x: x(epoch), y: height - 8, "text-anchor": epoch === chart.first ? "start" : "end" }));
  chart.lines.forEach((line, k) => {
    const path = line.points.map(([epoch, value], i) => `${i ? "L" : "M"}${x(epoch).toFixed(1)} ${y(value).toFixed(1)}`).join("");
    shape.append(svg("path", { d: path, class: `line line-${k}` }));
    if (line.points.length <= 40) for (const [epoch, value] of line.points) {
      const dot = svg("circle", { cx: x(epoch), cy: y(value), r: 2.6, class: `dot line-${k}` });
      const title = svg("title");
      title.textContent = `epoch ${epoch}: ${Number(value.toPrecision(4))}`;
      dot.append(title);
      shape.append(dot);
    }
  });
  const names = chart.lines.filter((line) => line.name);
  return h("figure", { class: "panel chart" }, h("figcaption", {}, h("strong", {}, chart.name),
    chart.lines.length > 1 || names.length ? h("span", { class: "keys" }, chart.lines.map((line, k) => h("span", { class: `key line-${k}` }, line.name))) : null), shape);
}

function trainingView() {
  const charts = (list) => h("div", { class: "charts" }, list.map(lineChart));
  const view = h("section", {},
    h("h2", {}, "Training"), charts(data.trainingCharts),
    data.graphCharts.length ? h("h2", {}, "Affinity graph") : null,
    data.graphCharts.length ? h("p", { class: "muted" }, "Pseudo-positives of the affinity graph, before labels correct them. If many queries have no positives, or if precision falls, the second stage learns little or learns errors.") : null,
    data.graphCharts.length ? charts(data.graphCharts) : null);
  return { view, refresh: () => {} };
}

// -- confusion --------------------------------------------------------------------------------------------------

function confusionView() {
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
    listing.replaceChildren(h("h3", {}, `${plural(members.length, "image")} of ${c.classes[i]} in ${decisions.nameOf(c.clusters[j])}`), gallery);
    fillLazily(gallery, shown, (image) => thumb(image, shown));
  }

  function asTable() {
    const border = (k) => (k === c.nKnown - 1 ? " last-known" : "");
    return h("table", { class: "confusion", id: "confusion-matrix" },
      h("thead", {}, h("tr", {}, h("th", {}),
        c.clusters.map((cluster, j) => h("th", { class: `column${border(j)}`, title: decisions.nameOf(cluster) }, h("span", {}, decisions.nameOf(cluster)))))),
      h("tbody", {}, c.classes.map((name, i) => h("tr", { class: border(i).trim() },
        h("th", { title: name }, h("span", {}, name)),
        c.clusters.map((_, j) => {
          const cell = h("td", { class: border(j).trim(), title: `${name} in ${decisions.nameOf(c.clusters[j])}: ${c.counts[i][j]}`,
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
      if (c.counts[i] && c.counts[i][j] !== undefined) message.textContent = `${c.classes[i]} in ${decisions.nameOf(c.clusters[j])}: ${c.counts[i][j]}`;
    });
    canvas.addEventListener("click", (event) => { const [i, j] = cellAt(event); if (c.counts[i] && c.counts[i][j]) list(i, j); });
    return canvas;
  }

  // images in a cluster that matches another class
  const confusions = c.counts.flatMap((row, i) => row.map((n, j) => [n, i, j])).filter(([n, i, j]) => n && c.matchedRows[j] !== i)
    .sort((a, b) => b[0] - a[0]).slice(0, 8);
  const largest = confusions.length ? h("div", { class: "panel" }, h("h2", {}, "Largest confusions"),
    h("div", { class: "confusions" }, confusions.map(([n, i, j]) => h("button", { type: "button", class: "chip", onclick: () => list(i, j) },
      h("strong", {}, count(n)), h("span", {}, `${c.classes[i]} in `), swatch(c.clusters[j]), decisions.nameOf(c.clusters[j]))))) : null;
  const view = h("section", {}, h("h2", {}, "Confusion"), message,
    h("div", { class: "beside" },
      h("div", { class: "matrix" }, h("div", { class: "scroll" }, Math.max(rows, columns) <= 40 ? asTable() : asCanvas()),
        h("p", { class: "muted" }, "The lines separate known classes from new ones.")),
      h("div", { class: "rest" }, largest, listing)));
  return { view, refresh: () => {} };
}

// -- neighbours -------------------------------------------------------------------------------------------------

function neighboursView() {
  let only = -1;
  let wrongFirst = false;
  const rows = h("div", { class: "neighbour-rows", id: "neighbour-rows" });
  const hits = (image) => neighboursOf(image).filter((other) => agreement(image, other) === "right").length;

  function queries() {
    const shown = Array.from(images.order).filter((image) => tileIndex[image] >= 0 && !images.labelled[image] && (only < 0 || images.cluster[image] === only));
    if (wrongFirst) return shown.map((image) => [hits(image), image]).sort((a, b) => a[0] - b[0]).map(([, image]) => image);
    return only < 0 ? clusters.flatMap((_, c) => sampleEvenly(shown.filter((image) => images.cluster[image] === c), 3)) : shown;
  }
  function row(image) {
    const near = neighboursOf(image);
    return h("div", { class: "neighbour-row" },
      h("div", { class: "query" }, thumb(image, [image, ...near], truthOf(image) ?? decisions.nameOf(images.cluster[image]))),
      near.map((other) => {
        const button = thumb(other, [image, ...near], truthOf(other) ?? decisions.nameOf(images.cluster[other]));
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
        h("option", { value: -1 }, "A few from each cluster"), clusters.map((_, c) => h("option", { value: c }, decisions.nameOf(c)))),
      hasTruth ? h("label", { class: "check" }, h("input", { type: "checkbox", id: "wrong-first", onchange: (event) => { wrongFirst = event.target.checked; update(); } }), "Most wrong neighbours first") : null),
    rows);
  update();
  return { view, refresh: () => {} };
}

// -- attention --------------------------------------------------------------------------------------------------

function attentionView() {
  const { steps, images: shown, missing } = data.attention;
  const url = shown.length ? blobUrl("attention-sheet") : null;
  const across = steps.length + 1;
  const cell = (i, j) => {
    const element = h("span", { class: "picture" });
    element.style.backgroundImage = `url("${url}")`;
    element.style.backgroundSize = `${100 * across}% ${100 * shown.length}%`;
    element.style.backgroundPosition = `${(100 * j) / (across - 1)}% ${shown.length > 1 ? (100 * i) / (shown.length - 1) : 0}%`;
    return element;
  };
  const grid = h("div", { class: "attention", id: "attention-grid" }, shown.map((image, i) =>
    h("div", { class: "attention-row" },
      h("button", { type: "button", class: "thumb", title: images.paths[image], onclick: () => viewer.open(image, shown) }, cell(i, 0),
        h("span", { class: "caption" }, truthOf(image) ?? decisions.nameOf(images.cluster[image]))),
      steps.map((name, j) => h("div", {}, cell(i, j + 1), h("span", { class: "caption" }, name))))));
  grid.style.setProperty("--across", String(across));
  const view = h("section", {}, h("h2", {}, "Attention"),
    h("p", { class: "muted" }, "Attention of the class token to the patches in the last block, averaged over the heads. Bright means high attention."),
    missing ? h("p", { class: "note" }, missing) : null,
    shown.length ? grid : null);
  return { view, refresh: () => {} };
}
