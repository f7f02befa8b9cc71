// Tabs and pages (the address's hash), the scroll position of each, light and dark mode, and the bar of decisions.
const TABS = [
  ["overview", "Overview", () => overviewPage(report), true],
  ["totals", "All images", totalsView, Boolean(data.totals)],
  ["changes", "Changes", () => changesPage(report), Boolean(data.changes)],
  ["clusters", "Clusters", clustersView, true],
  ["map", "Map", mapView, true],
  ["labels", "Labels", () => labelsPage(report), data.summary.labelled > 0],
  ["confusion", "Confusion", () => confusionPage(report), Boolean(data.confusion)],
  ["training", "Training", () => trainingPage(report), data.trainingCharts.length + data.graphCharts.length > 0],
  ["neighbours", "Neighbours", () => neighboursPage(report), images.neighboursPerImage > 0],
  ["attention", "Attention", () => attentionPage(report), data.attention.images.length > 0 || data.attention.missing !== ""],
].filter(([, , , isAvailable]) => isAvailable);

let current = null;
const tabPages = new Map(); // pages that keep their state are built once
const scrollOfTab = new Map();
const scrollOfVisit = new Map(); // by number of the visit, which the browser's history stores

const currentHash = () => location.hash.slice(1) || "overview";

function pageOf(hash) {
  const match = /^cluster-(\d+)$/.exec(hash);
  const cluster = match && Number(match[1]) < clusters.length ? Number(match[1]) : -1;
  if (cluster >= 0) return { tab: "clusters", build: () => clusterView(cluster), isTab: false };
  const [tab, , build] = TABS.find(([key]) => key === hash) || TABS[0];
  return { tab, build, isTab: true };
}

// draws the page again, at the same position
function showPage() { show(current ? window.scrollY : 0); }

function show(scroll) {
  const hash = currentHash();
  const { tab, build, isTab } = pageOf(hash);
  for (const link of document.querySelectorAll("#tabs a")) {
    link.setAttribute("aria-selected", String(link.dataset.tab === tab));
    if (link.dataset.tab === tab) link.scrollIntoView({ block: "nearest", inline: "nearest" });
  }
  const isNew = !isTab || !tabPages.has(tab);
  const page = isNew ? build() : tabPages.get(tab);
  if (isNew) drawnCategories.set(page.view, currentCategories());
  if (isTab && page.keepsState) tabPages.set(tab, page);
  current = { ...page, hash, tab: isTab ? tab : null, visit: history.state && history.state.visit };
  document.getElementById("main").replaceChildren(page.view);
  if (!isNew) refresh(page);
  if (scroll) fillTo(scroll + window.innerHeight);
  window.scrollTo(0, scroll);
}

// Back and forward return to the position of that visit, a link to a tab to the position where the tab was left.
function visit() {
  const known = history.state && history.state.visit;
  if (!known) history.replaceState({ visit: Date.now() }, "");
  const { tab, isTab } = pageOf(currentHash());
  show((known && scrollOfVisit.get(known)) ?? (isTab ? scrollOfTab.get(tab) : 0) ?? 0);
}

history.scrollRestoration = "manual";
window.addEventListener("hashchange", visit);
window.addEventListener("scroll", () => {
  if (!current || current.hash !== currentHash()) return;
  scrollOfVisit.set(current.visit, window.scrollY);
  if (current.tab) scrollOfTab.set(current.tab, window.scrollY);
}, { passive: true });

document.getElementById("tabs").append(...TABS.map(([key, label]) => h("a", { href: `#${key}`, role: "tab", dataset: { tab: key } }, label)));
document.getElementById("about").textContent =
  `${plural(data.summary.images, "image")} · ${count(data.summary.known)} known · ${count(data.summary.new)} discovered`;
document.getElementById("theme").addEventListener("click", () => {
  toggleTheme();
  if (current) current.refresh(false);
});

// Marking or labelling an image changes only its frame; names and merges change the page. A page that is not on the
// screen is brought up to date when it is shown again.
const currentCategories = () => JSON.stringify(clusters.map((_, c) => [decisions.rootOf(c), decisions.givenName(c)]));
const drawnCategories = new WeakMap();
function refresh(page) {
  const now = currentCategories();
  const categoriesChanged = drawnCategories.get(page.view) !== now;
  drawnCategories.set(page.view, now);
  page.refresh(categoriesChanged);
  showStates();
}
decisions.onChange(() => {
  updateNames();
  if (current) refresh(current);
});
selection.onChange(() => { if (current) current.refresh(false); });
updateNames();
showDecisions();
visit();
document.documentElement.dataset.ready = String(Math.round(performance.now()));
