// The user's decisions: names of discovered clusters, merges, labels of single images, and images marked as wrong. The
// browser stores them; they are downloaded as a label file.
const decisions = (() => {
  const key = `promptcal:${data.fingerprint}`;
  const nothing = () => ({ names: {}, mergedInto: {}, wrong: [], labels: {} });
  let state = nothing(); // labels: by image, the number of a cluster or a text
  let wrong = new Set();
  const history = [];
  const listeners = [];
  let isStored = true;

  function load() {
    try {
      const stored = JSON.parse(localStorage.getItem(key));
      if (stored && stored.names && stored.mergedInto && Array.isArray(stored.wrong)) state = { ...nothing(), ...stored };
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

  const roots = () => clusters.map((_, c) => c).filter((c) => rootOf(c) === c);
  const mergedInto = (root) => clusters.map((_, c) => c).filter((c) => c !== root && rootOf(c) === root);
  const nameOf = (cluster) => state.names[rootOf(cluster)] || clusters[rootOf(cluster)].name;
  // the text in the label file for a category
  const categoryLabel = (root) => (clusters[root].known ? clusters[root].label : state.names[root] || clusters[root].label);

  const folded = (text) => text.normalize("NFC").trim().replace(/\s+/g, " ").toLowerCase();
  // the category with this name, in any letter case; -1 if there is none
  function categoryNamed(text, except = -1) {
    const sought = folded(text);
    const matches = roots().filter((c) => c !== except && (folded(nameOf(c)) === sought || folded(categoryLabel(c)) === sought));
    return matches.find((c) => nameOf(c) === text.trim()) ?? matches[0] ?? -1;
  }

  const asText = (label) => (typeof label === "number" ? categoryLabel(rootOf(label)) : label);
  // the label that the user gave to an image as the page shows it, or null
  function labelGiven(image) {
    const label = state.labels[image];
    return label === undefined ? null : typeof label === "number" ? nameOf(label) : label;
  }
  // names given to images that no cluster has
  function extraNames() {
    const used = new Set(roots().map(categoryLabel));
    return [...new Set(Object.values(state.labels).map(asText))].filter((text) => !used.has(text)).sort();
  }

  const csvField = (text) => (/[",\r\n]|^\s|\s$/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

  // Labels of single images come first, then labels of the run. Images of a discovered cluster get the name that the
  // user gave it, or that of the cluster it was merged into.
  function labels() {
    const rootOfCluster = clusters.map((_, c) => rootOf(c)); // computed once for each cluster, not for each image
    const merged = new Set(rootOfCluster.filter((root, c) => root !== c));
    const labelOf = (image) => {
      const own = images.cluster[image];
      const root = rootOfCluster[own];
      if (wrong.has(image)) return null;
      if (state.labels[image] !== undefined) return asText(state.labels[image]);
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

  // a name that no earlier download has, and that a shell reads as one word
  function fileName(now = new Date()) {
    const two = (n) => String(n).padStart(2, "0");
    const date = `${now.getFullYear()}-${two(now.getMonth() + 1)}-${two(now.getDate())}`;
    const run = data.title.replace(/[^\p{L}\p{N}._-]+/gu, "_").replace(/^[-.]+/, "").slice(0, 80) || "run";
    return `${run}-labels-${date}-${two(now.getHours())}${two(now.getMinutes())}${two(now.getSeconds())}.csv`;
  }

  // downloads the labels; the result has the commands that apply them, or continue with them
  function download() {
    const file = fileName();
    const url = URL.createObjectURL(new Blob([csv()], { type: "text/csv" }));
    const link = h("a", { href: url, download: file });
    document.body.append(link);
    link.click();
    link.remove();
    setTimeout(() => URL.revokeObjectURL(url), 10_000);
    const { before, after, nClasses, end, name } = data.nextCommand;
    const extra = extraNames().length;
    return { file, name: `${name}${file}`, command: `${before}${file}${after}${extra ? `${nClasses}${roots().length + extra}` : ""}${end}` };
  }

  load();
  return {
    rootOf, roots, mergedInto, nameOf, categoryNamed, labelGiven, extraNames, labels, csv, download,
    mergeTargets: (cluster) => roots().filter((c) => c !== rootOf(cluster)),
    isWrong: (image) => wrong.has(image),
    givenName: (cluster) => state.names[cluster] || "",
    isMerged: (cluster) => state.mergedInto[cluster] !== undefined,
    areStored: () => isStored,
    canUndo: () => history.length > 0,
    counts: () => ({
      names: Object.keys(state.names).length, merges: Object.keys(state.mergedInto).length,
      labels: Object.keys(state.labels).length, wrong: wrong.size,
    }),
    onChange: (listener) => listeners.push(listener),
    name(cluster, text) {
      const name = text.trim();
      if (name === (state.names[cluster] || "")) return;
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
    // an existing name, in any letter case, is that category; an empty name takes the label back
    labelImages(list, text) {
      const name = text.trim();
      const category = categoryNamed(name);
      change(() => {
        for (const image of list) {
          if (name) state.labels[image] = category < 0 ? name : category; else delete state.labels[image];
          wrong.delete(image);
        }
      });
    },
    labelAsCategories(pairs) {
      change(() => { for (const [image, cluster] of pairs) { state.labels[image] = rootOf(cluster); wrong.delete(image); } });
    },
    toggleWrong(list) {
      change(() => {
        const all = list.every((image) => wrong.has(image));
        for (const image of list) if (all) wrong.delete(image); else { wrong.add(image); delete state.labels[image]; }
      });
    },
    undo() { if (history.length) restore(history.pop()); },
    discardAll() { change(() => { state = nothing(); wrong = new Set(); }); },
  };
})();

let downloaded = null; // the last file and its command, which the bar then shows
function showDecisions() {
  const bar = document.getElementById("decisions");
  const { names, merges, labels, wrong } = decisions.counts();
  bar.hidden = !(names || merges || labels || wrong || decisions.canUndo());
  if (bar.hidden) return;
  const parts = [
    names && plural(names, "cluster named", "clusters named"),
    merges && plural(merges, "merge"),
    labels && plural(labels, "image labelled", "images labelled"),
    wrong && plural(wrong, "image marked as wrong", "images marked as wrong"),
  ].filter(Boolean);
  setChildren(bar,
    h("span", { class: "decision-counts" }, parts.join(" · ") || "No decisions"),
    decisions.areStored() ? null : h("span", { class: "warning" }, "This browser cannot store your decisions. Download the labels before you close this page."),
    data.isFirst ? h("span", { class: "warning", id: "first-result-decisions" }, "This is the first result. Download the labels before training ends, or you may lose these decisions.") : null,
    h("span", { class: "actions" },
      h("button", { type: "button", id: "undo", title: "Key u", disabled: !decisions.canUndo(), onclick: decisions.undo }, "Undo"),
      h("button", { type: "button", id: "discard-all", onclick: decisions.discardAll }, "Discard all"),
      h("button", { type: "button", class: "primary", id: "download", onclick: () => { downloaded = decisions.download(); showDecisions(); } }, "Download labels")),
    downloaded ? h("p", { class: "next" }, data.isFirst ? "When the fit has ended or was stopped, in the folder with " : "In the folder with ", h("span", { class: "file" }, downloaded.file), ", run this to apply the names at once: ", h("code", { id: "name-command" }, downloaded.name), " or this to fit again with the labels: ", h("code", { id: "next-command" }, downloaded.command)) : null,
  );
}
decisions.onChange(() => { downloaded = null; showDecisions(); }); // a file without the new decision is not suggested
