// The clusters: a card for each, with search, sort and filter; and a page for each.
const membersByCluster = (() => {
  const members = clusters.map(() => []);
  for (const image of images.order) members[images.cluster[image]].push(image);
  return members;
})();

const byTypicality = (a, b) => images.confidence[b] - images.confidence[a] || images.cosine[b] - images.cosine[a] || a - b;

// images of a cluster and of the clusters merged into it, the most typical first
function membersOf(root) {
  const merged = decisions.mergedInto(root);
  if (!merged.length) return membersByCluster[root];
  return [root, ...merged].flatMap((c) => membersByCluster[c]).sort(byTypicality);
}

// not doubtful: the second-best cluster was merged with the image's own
const isDoubtful = (image) => images.doubtful[image] && decisions.rootOf(images.second[image]) !== decisions.rootOf(images.cluster[image]);

const withThumbnail = (list) => list.filter((image) => tileIndex[image] >= 0);

const clusterList = { search: "", sort: "order", show: "all" };

const knownFirst = (a, b) => clusters[b].known - clusters[a].known || a - b;

const SORTS = {
  order: ["Known first", (a, b) => knownFirst(a.cluster, b.cluster)],
  size: ["Largest first", (a, b) => b.members.length - a.members.length],
  small: ["Smallest first", (a, b) => a.members.length - b.members.length],
  cohesive: ["Most cohesive first", (a, b) => clusters[b.cluster].cohesion - clusters[a.cluster].cohesion],
  loose: ["Least cohesive first", (a, b) => clusters[a.cluster].cohesion - clusters[b.cluster].cohesion],
  doubtful: ["Most doubtful first", (a, b) => b.doubtful.length / (b.members.length || 1) - a.doubtful.length / (a.members.length || 1)],
  name: ["By name", (a, b) => decisions.nameOf(a.cluster).localeCompare(decisions.nameOf(b.cluster))],
};

const FILTERS = { all: "All", known: "Known", new: "New", doubtful: "Doubtful", advice: "Suggestions" };

function matchingClusters() {
  const query = clusterList.search.trim().toLowerCase();
  const rows = [];
  clusters.forEach((record, cluster) => {
    if (decisions.rootOf(cluster) !== cluster) return;
    if (clusterList.show === "known" && !record.known) return;
    if (clusterList.show === "new" && record.known) return;
    const members = membersOf(cluster);
    const doubtful = members.filter(isDoubtful);
    if (clusterList.show === "doubtful" && !doubtful.length) return;
    if (clusterList.show === "advice" && !advice(report, cluster, () => {})) return;
    let matches = clusterList.show === "doubtful" ? doubtful : members;
    if (query && !decisions.nameOf(cluster).toLowerCase().includes(query)) {
      matches = matches.filter((image) => images.paths[image].toLowerCase().includes(query));
      if (!matches.length) return;
    }
    rows.push({ cluster, members, doubtful, matches });
  });
  return rows.sort(SORTS[clusterList.sort][1]);
}

function card({ cluster, members, doubtful, matches }) {
  return categoryCard(report, {
    cluster, members, doubtful: doubtful.length, strip: matches, labelled: members.reduce((sum, image) => sum + images.labelled[image], 0),
    merged: decisions.mergedInto(cluster).map((c) => clusters[c].name), state: cardState(cluster), merge: (moved, target) => decisions.merge(moved, target),
    form: clusters[cluster].known ? null : nameField(cluster, nextName),
  });
}

// what a card shows of the user's decisions
const cardState = (cluster) => JSON.stringify([decisions.nameOf(cluster), decisions.mergedInto(cluster),
  data.suggestedMerges.map((m) => [m.cluster, m.into].map((c) => [decisions.rootOf(c), decisions.nameOf(c)])).filter((pair) => pair.some(([root]) => root === cluster))]);

// goes to the name field of the next cluster without a name, once this one is named or merged
function nextName(cluster, target) {
  const cards = document.querySelector("#main .cards");
  const own = cards.querySelector(`.card[data-cluster="${cluster}"]`);
  const numberOf = (element) => Number(element.closest(".card").dataset.cluster);
  const find = () => [...cards.querySelectorAll(".name")].find((field) =>
    !field.value && numberOf(field) !== target && own.compareDocumentPosition(field) === Node.DOCUMENT_POSITION_FOLLOWING);
  let next = find();
  while (!next && cards.addMore()) next = find();
  return () => {
    const field = next && cards.querySelector(`.card[data-cluster="${numberOf(next)}"] .name`);
    if (!field) { document.activeElement.blur(); return; }
    field.scrollIntoView({ block: "center" });
    field.focus({ preventScroll: true });
  };
}

function clustersView() {
  const cards = h("div", { class: "cards" });
  const message = h("p", { class: "muted", id: "cluster-count", "aria-live": "polite" });
  let rows = [];
  const update = () => {
    rows = matchingClusters();
    message.textContent = `${plural(rows.length, "cluster")}. Images are sorted from the most typical to the most doubtful${data.summary.labelled ? "; a dot marks a labelled image" : ""}.`;
    fillLazily(cards, rows, card, 30);
  };
  // cards stay in their places while the user names clusters; only what changed is drawn again
  const refresh = () => {
    const now = new Map(matchingClusters().map((row) => [row.cluster, row]));
    const isFollowed = clusterList.show === "advice"; // a suggestion that was followed is gone
    if (isFollowed || [...now.keys()].some((cluster) => !rows.some((row) => row.cluster === cluster))) { update(); return; }
    for (const element of [...cards.querySelectorAll(".card")]) {
      const row = now.get(Number(element.dataset.cluster));
      if (!row && decisions.rootOf(Number(element.dataset.cluster)) !== Number(element.dataset.cluster)) element.remove();
      else if (row && element.dataset.state !== cardState(row.cluster)) element.replaceWith(card(row));
    }
  };
  const filters = h("div", { class: "segments", role: "group", "aria-label": "Filter" },
    Object.entries(FILTERS).map(([key, label]) =>
      h("button", { type: "button", "aria-pressed": String(clusterList.show === key), dataset: { filter: key }, onclick: (event) => {
        clusterList.show = key;
        for (const other of event.target.parentElement.children) other.setAttribute("aria-pressed", String(other === event.target));
        update();
      } }, label)));
  const view = h("section", {},
    h("div", { class: "toolbar" },
      h("input", { type: "search", id: "search", placeholder: "Cluster or file name", "aria-label": "Search", value: clusterList.search,
        oninput: (event) => { clusterList.search = event.target.value; update(); } }),
      filters,
      h("select", { id: "sort", "aria-label": "Sort", onchange: (event) => { clusterList.sort = event.target.value; update(); } },
        Object.entries(SORTS).map(([key, [label]]) => h("option", { value: key, selected: key === clusterList.sort }, label))),
      selectButton()),
    message, cards);
  update();
  return { view, keepsState: true, refresh: (categoriesChanged) => { if (categoriesChanged) refresh(); } };
}

function mergeForm(cluster) {
  const targets = decisions.mergeTargets(cluster);
  if (!targets.length) return null;
  const select = h("select", { id: "merge-target", "aria-label": "Merge into" },
    h("option", { value: "" }, "Merge into …"), targets.map((c) => h("option", { value: c }, decisions.nameOf(c))));
  return h("form", { class: "inline", onsubmit: (event) => {
    event.preventDefault();
    if (select.value === "") return;
    const target = Number(select.value);
    decisions.merge(cluster, target);
    location.hash = `#cluster-${target}`;
  } }, select, h("button", { type: "submit", id: "merge" }, "Merge"));
}

// the clusters before and after one, in the order of the list
function stepLinks(root) {
  const listed = matchingClusters().map((row) => row.cluster);
  const order = listed.includes(root) ? listed : decisions.roots().sort(knownFirst);
  const at = order.indexOf(root);
  const link = (id, text, cluster) => h("a", { id, href: `#cluster-${cluster}`, title: `${decisions.nameOf(cluster)} (key ${id[0]})`,
    onclick: (event) => { event.preventDefault(); location.replace(`#cluster-${cluster}`); } }, text);
  return [
    at > 0 ? link("previous-cluster", "‹ Previous", order[at - 1]) : null,
    h("span", { class: "muted" }, `${count(at + 1)} of ${count(order.length)}`),
    at + 1 < order.length ? link("next-cluster", "Next ›", order[at + 1]) : null,
  ];
}

function clusterView(cluster) {
  const root = decisions.rootOf(cluster);
  const record = clusters[root];
  const members = membersOf(root);
  const shown = withThumbnail(members);
  const doubtful = shown.filter(isDoubtful).sort((a, b) => images.margin[a] - images.margin[b]);
  const merged = decisions.mergedInto(root);
  const doubtfulGallery = h("div", { class: "gallery captions", id: "doubtful" });
  const gallery = h("div", { class: "gallery", id: "gallery" });
  const thenShow = (named, target) => () => { if (target >= 0) location.replace(`#cluster-${target}`); else document.activeElement.blur(); };
  const view = h("section", { class: "cluster-page" },
    h("p", { class: "steps" }, h("a", { href: "#clusters", id: "all-clusters", title: "Key b" }, "‹ All clusters"), h("span", { class: "space" }), stepLinks(root)),
    h("div", { class: "cluster-head" }, swatch(root), h("h2", {}, decisions.nameOf(root)), badge(record)),
    h("p", { class: "numbers" }, h("strong", {}, plural(members.length, "image")),
      categoryMeasures(report, record)),
    h("div", { class: "toolbar" }, record.known ? null : nameField(root, thenShow), record.known ? null : mergeForm(root), selectButton(),
      h("button", { type: "button", id: "select-all", title: "Key a", onclick: () => selection.set(shown) }, "Select all")),
    advice(report, root, (moved, target) => { decisions.merge(moved, target); location.hash = `#cluster-${target}`; }),
    merged.length ? h("p", { class: "merged" }, "Merged clusters: ", merged.filter((c) => decisions.isMerged(c)).map((c) =>
      h("button", { type: "button", class: "chip", title: "Undo this merge", dataset: { unmerge: c }, onclick: () => decisions.unmerge(c) }, swatch(c), clusters[c].name, " ✕"))) : null,
    doubtful.length ? h("h3", {}, `May belong to another cluster (${count(doubtful.length)})`) : null,
    doubtful.length ? h("p", { class: "muted" }, "The centroid of the cluster named below each image is almost as close, or closer.") : null,
    doubtfulGallery,
    h("h3", {}, shown.length < members.length
      ? `${plural(shown.length, "image")} of ${count(members.length)}, most typical first` : "All images, most typical first"),
    gallery);
  fillLazily(doubtfulGallery, doubtful, (image) => thumb(image, doubtful, decisions.nameOf(images.second[image])), 24);
  fillLazily(gallery, shown, (image) => thumb(image, shown));
  return { view, gallery: () => shown, refresh: (categoriesChanged) => { if (categoriesChanged) showPage(); } };
}
