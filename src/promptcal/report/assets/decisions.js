// The user's decisions: names of discovered clusters, merges, and images marked as wrong. The browser stores them; they
// are downloaded as labels.csv.
const decisions = (() => {
  const key = `promptcal:${data.fingerprint}`;
  let state = { names: {}, mergedInto: {}, wrong: [] };
  let wrong = new Set();
  const history = [];
  const listeners = [];
  let isStored = true;

  function load() {
    try {
      const stored = JSON.parse(localStorage.getItem(key));
      if (stored && stored.names && stored.mergedInto && Array.isArray(stored.wrong)) state = stored;
    } catch { isStored = false; }
    wrong = new Set(state.wrong);
  }

  function save() {
    state.wrong = [...wrong].sort((a, b) => a - b);
    try { localStorage.setItem(key, JSON.stringify(state)); isStored = true; } catch { isStored = false; }
    for (const listener of listeners) listener();
  }

  function change(apply) {
    history.push(JSON.stringify({ ...state, wrong: [...wrong] }));
    apply();
    save();
  }

  function restore(text) {
    state = JSON.parse(text);
    wrong = new Set(state.wrong);
    save();
  }

  // the cluster that this one is finally merged into
  function rootOf(cluster) {
    let root = cluster;
    while (state.mergedInto[root] !== undefined) root = state.mergedInto[root];
    return root;
  }

  const mergedInto = (root) => clusters.map((_, c) => c).filter((c) => c !== root && rootOf(c) === root);
  const nameOf = (cluster) => state.names[rootOf(cluster)] || clusters[rootOf(cluster)].name;

  const csvField = (text) => (/[",\r\n]|^\s|\s$/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

  // Given labels stay. Images of a discovered cluster get the name that the user gave it, or that of the cluster it was merged into.
  function labels() {
    const roots = clusters.map((_, c) => rootOf(c)); // computed once for each cluster, not for each image
    const merged = new Set(roots.filter((root, c) => root !== c));
    const labelOf = (image) => {
      const own = images.cluster[image];
      const root = roots[own];
      if (wrong.has(image)) return null;
      if (images.labelled[image]) return clusters[own].label;
      if (clusters[root].known) return root === own ? null : clusters[root].label;
      return state.names[root] || (merged.has(root) ? clusters[root].label : null);
    };
    return images.paths.map((_, image) => labelOf(image));
  }

  // an image marked as wrong is listed with an empty label, which removes a label that it was given
  function csv() {
    const lines = ["path,label"];
    labels().forEach((label, i) => { if (label !== null || wrong.has(i)) lines.push(`${csvField(images.paths[i])},${csvField(label ?? "")}`); });
    return `${lines.join("\n")}\n`;
  }

  function download() {
    const url = URL.createObjectURL(new Blob([csv()], { type: "text/csv" }));
    const link = h("a", { href: url, download: "labels.csv" });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
  }

  function mergeTargets(cluster) {
    return clusters.map((_, c) => c).filter((c) => rootOf(c) === c && c !== rootOf(cluster));
  }

  load();
  return {
    rootOf, mergedInto, nameOf, labels, csv, download, mergeTargets,
    isWrong: (image) => wrong.has(image),
    givenName: (cluster) => state.names[cluster] || "",
    isMerged: (cluster) => state.mergedInto[cluster] !== undefined,
    areStored: () => isStored,
    canUndo: () => history.length > 0,
    counts: () => ({ names: Object.keys(state.names).length, merges: Object.keys(state.mergedInto).length, wrong: wrong.size }),
    onChange: (listener) => listeners.push(listener),
    name(cluster, text) {
      const name = text.trim();
      change(() => { if (name) state.names[cluster] = name; else delete state.names[cluster]; });
    },
    merge(cluster, target) {
      if (clusters[cluster].known || rootOf(target) === cluster) return;
      change(() => {
        state.mergedInto[cluster] = target;
        delete state.names[cluster];
      });
    },
    unmerge(cluster) { change(() => { delete state.mergedInto[cluster]; }); },
    toggleWrong(list) {
      change(() => {
        const all = list.every((image) => wrong.has(image));
        for (const image of list) if (all) wrong.delete(image); else wrong.add(image);
      });
    },
    undo() { if (history.length) restore(history.pop()); },
    discardAll() { change(() => { state = { names: {}, mergedInto: {}, wrong: [] }; wrong = new Set(); }); },
  };
})();

let isDownloaded = false; // then the bar shows the next command
function showDecisions() {
  const bar = document.getElementById("decisions");
  const { names, merges, wrong } = decisions.counts();
  bar.hidden = !(names || merges || wrong || decisions.canUndo());
  if (bar.hidden) return;
  const parts = [
    names && plural(names, "cluster named", "clusters named"),
    merges && plural(merges, "merge"),
    wrong && plural(wrong, "image marked as wrong", "images marked as wrong"),
  ].filter(Boolean);
  setChildren(bar,
    h("span", { class: "decision-counts" }, parts.join(" · ") || "No decisions"),
    decisions.areStored() ? null : h("span", { class: "warning" }, "This browser cannot store your decisions. Download labels.csv before you close this page."),
    h("span", { class: "actions" },
      h("button", { type: "button", id: "undo", disabled: !decisions.canUndo(), onclick: decisions.undo }, "Undo"),
      h("button", { type: "button", id: "discard-all", onclick: decisions.discardAll }, "Discard all"),
      h("button", { type: "button", class: "primary", id: "download", onclick: () => { decisions.download(); isDownloaded = true; showDecisions(); } }, "Download labels.csv")),
    isDownloaded ? h("p", { class: "next" }, "Next: ", h("code", { id: "next-command" }, data.nextCommand)) : null,
  );
}
decisions.onChange(showDecisions);
