// What the person decides: names of discovered clusters, merges, images marked wrong; kept in this browser, taken away
// as labels.csv.
const decisions = (() => {
  const key = `promptcal:${data.fingerprint}`;
  let state = { names: {}, into: {}, wrong: [] };
  let wrong = new Set();
  const past = [];
  const listeners = [];
  let kept = true;

  function load() {
    try {
      const stored = JSON.parse(localStorage.getItem(key));
      if (stored && stored.names && stored.into && Array.isArray(stored.wrong)) state = stored;
    } catch { kept = false; }
    wrong = new Set(state.wrong);
  }

  function save() {
    state.wrong = [...wrong].sort((a, b) => a - b);
    try { localStorage.setItem(key, JSON.stringify(state)); kept = true; } catch { kept = false; }
    for (const listener of listeners) listener();
  }

  function change(apply) {
    past.push(JSON.stringify({ ...state, wrong: [...wrong] }));
    apply();
    save();
  }

  function restore(text) {
    state = JSON.parse(text);
    wrong = new Set(state.wrong);
    save();
  }

  // the cluster that this one was merged into, in the end
  function rootOf(cluster) {
    let root = cluster;
    while (state.into[root] !== undefined) root = state.into[root];
    return root;
  }

  const mergedInto = (root) => clusters.map((_, c) => c).filter((c) => c !== root && rootOf(c) === root);
  const nameOf = (cluster) => state.names[rootOf(cluster)] || clusters[rootOf(cluster)].name;

  const field = (text) => (/[",\r\n]|^\s|\s$/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

  // Given labels stay; a discovered cluster's images have the name it was given, or that of the cluster it is part of.
  function labels() {
    const roots = clusters.map((_, c) => rootOf(c)); // asked once for each cluster, not for each image
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

  // an image marked wrong stands there without a label, which takes back one that an earlier fit was given
  function csv() {
    const lines = ["path,label"];
    labels().forEach((label, i) => { if (label !== null || wrong.has(i)) lines.push(`${field(images.paths[i])},${field(label ?? "")}`); });
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
    isMerged: (cluster) => state.into[cluster] !== undefined,
    areKept: () => kept,
    canUndo: () => past.length > 0,
    counts: () => ({ names: Object.keys(state.names).length, merges: Object.keys(state.into).length, wrong: wrong.size }),
    onChange: (listener) => listeners.push(listener),
    name(cluster, text) {
      const name = text.trim();
      change(() => { if (name) state.names[cluster] = name; else delete state.names[cluster]; });
    },
    merge(cluster, target) {
      if (clusters[cluster].known || rootOf(target) === cluster) return;
      change(() => {
        state.into[cluster] = target;
        delete state.names[cluster];
      });
    },
    part(cluster) { change(() => { delete state.into[cluster]; }); },
    toggleWrong(list) {
      change(() => {
        const all = list.every((image) => wrong.has(image));
        for (const image of list) if (all) wrong.delete(image); else wrong.add(image);
      });
    },
    undo() { if (past.length) restore(past.pop()); },
    startOver() { change(() => { state = { names: {}, into: {}, wrong: [] }; wrong = new Set(); }); },
  };
})();

let downloaded = false; // from then on the bar says what to do with the file
function decisionsBar() {
  const bar = document.getElementById("decisions");
  const { names, merges, wrong } = decisions.counts();
  bar.hidden = !(names || merges || wrong || decisions.canUndo());
  if (bar.hidden) return;
  const parts = [
    names && plural(names, "cluster named", "clusters named"),
    merges && plural(merges, "merge"),
    wrong && plural(wrong, "image marked wrong", "images marked wrong"),
  ].filter(Boolean);
  fill(bar,
    h("span", { class: "decided" }, parts.join(" · ") || "No decisions"),
    decisions.areKept() ? null : h("span", { class: "warning" }, "This browser keeps nothing: download before you leave."),
    h("span", { class: "actions" },
      h("button", { type: "button", id: "undo", disabled: !decisions.canUndo(), onclick: decisions.undo }, "Undo"),
      h("button", { type: "button", id: "start-over", onclick: decisions.startOver }, "Start over"),
      h("button", { type: "button", class: "primary", id: "download", onclick: () => { decisions.download(); downloaded = true; decisionsBar(); } }, "Download labels.csv")),
    downloaded ? h("p", { class: "next" }, "Go on with it: ", h("code", { id: "next" }, data.next)) : null,
  );
}
decisions.onChange(decisionsBar);
