// Tabs by the address's hash, light and dark, and the decisions bar.
const TABS = [
  ["overview", "Overview", overviewView, true],
  ["changes", "Changes", changesView, Boolean(data.changes)],
  ["clusters", "Clusters", clustersView, true],
  ["map", "Map", mapView, true],
  ["confusion", "Confusion", confusionView, Boolean(data.confusion)],
  ["training", "Training", trainingView, data.curves.length + data.graph.length > 0],
  ["neighbours", "Neighbours", neighboursView, images.neighboursEach > 0],
  ["attention", "Attention", attentionView, data.attention.images.length > 0 || data.attention.missing !== ""],
].filter(([, , , there]) => there);

let current = null;

function show() {
  const wanted = location.hash.slice(1) || "overview";
  const one = /^cluster-(\d+)$/.exec(wanted);
  const cluster = one && Number(one[1]) < clusters.length ? Number(one[1]) : -1;
  const tab = cluster >= 0 ? "clusters" : (TABS.find(([key]) => key === wanted) || TABS[0])[0];
  for (const link of document.querySelectorAll("#tabs a")) {
    link.setAttribute("aria-selected", String(link.dataset.tab === tab));
    if (link.dataset.tab === tab) link.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
  const scroll = current && current.wanted === wanted ? window.scrollY : 0;
  const made = cluster >= 0 ? clusterView(cluster) : TABS.find(([key]) => key === tab)[2]();
  document.getElementById("main").replaceChildren(made.view);
  current = { ...made, wanted };
  window.scrollTo(0, scroll);
}

document.getElementById("tabs").append(...TABS.map(([key, label]) => h("a", { href: `#${key}`, role: "tab", dataset: { tab: key } }, label)));
document.getElementById("about").textContent =
  `${plural(data.summary.images, "image")} · ${count(data.summary.known)} known · ${count(data.summary.new)} discovered`;
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  if (current) current.refresh(false);
});
window.addEventListener("hashchange", show);

// marking an image changes its frame only; names and merges change the page
let shape = "";
const shapeNow = () => JSON.stringify(clusters.map((_, c) => [decisions.rootOf(c), decisions.givenName(c)]));
decisions.onChange(() => {
  const now = shapeNow();
  if (current) current.refresh(now !== shape);
  shape = now;
});
shape = shapeNow();
decisionsBar();
show();
document.documentElement.dataset.ready = String(Math.round(performance.now()));
