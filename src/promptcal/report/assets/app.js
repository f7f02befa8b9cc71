// Tabs (the address's hash), light and dark mode, and the bar of decisions.
const TABS = [
  ["overview", "Overview", overviewView, true],
  ["changes", "Changes", changesView, Boolean(data.changes)],
  ["clusters", "Clusters", clustersView, true],
  ["map", "Map", mapView, true],
  ["confusion", "Confusion", confusionView, Boolean(data.confusion)],
  ["training", "Training", trainingView, data.trainingCharts.length + data.graphCharts.length > 0],
  ["neighbours", "Neighbours", neighboursView, images.neighboursPerImage > 0],
  ["attention", "Attention", attentionView, data.attention.images.length > 0 || data.attention.missing !== ""],
].filter(([, , , isAvailable]) => isAvailable);

let current = null;

function showTab() {
  const hash = location.hash.slice(1) || "overview";
  const match = /^cluster-(\d+)$/.exec(hash);
  const cluster = match && Number(match[1]) < clusters.length ? Number(match[1]) : -1;
  const tab = cluster >= 0 ? "clusters" : (TABS.find(([key]) => key === hash) || TABS[0])[0];
  for (const link of document.querySelectorAll("#tabs a")) {
    link.setAttribute("aria-selected", String(link.dataset.tab === tab));
    if (link.dataset.tab === tab) link.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
  const scroll = current && current.hash === hash ? window.scrollY : 0;
  const page = cluster >= 0 ? clusterView(cluster) : TABS.find(([key]) => key === tab)[2]();
  document.getElementById("main").replaceChildren(page.view);
  current = { ...page, hash };
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
window.addEventListener("hashchange", showTab);

// marking an image changes only its frame; names and merges change the page
let categories = "";
const currentCategories = () => JSON.stringify(clusters.map((_, c) => [decisions.rootOf(c), decisions.givenName(c)]));
decisions.onChange(() => {
  const now = currentCategories();
  if (current) current.refresh(now !== categories);
  categories = now;
});
categories = currentCategories();
showDecisions();
showTab();
document.documentElement.dataset.ready = String(Math.round(performance.now()));
