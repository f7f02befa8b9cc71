// Curves of the training and of the affinity graph.
import { h, svg } from "./dom.js";

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

export function trainingPage({ data }) {
  const charts = (list) => h("div", { class: "charts" }, list.map(lineChart));
  const view = h("section", {},
    h("h2", {}, "Training"), charts(data.trainingCharts),
    data.graphCharts.length ? h("h2", {}, "Affinity graph") : null,
    data.graphCharts.length ? h("p", { class: "muted" }, "Pseudo-positives of the affinity graph, before labels correct them. If many queries have no positives, or if precision falls, the second stage learns little or learns errors.") : null,
    data.graphCharts.length ? charts(data.graphCharts) : null);
  return { view, refresh: () => {} };
}
