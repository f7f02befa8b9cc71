// The page: loads the run, its tabs, its keys, and the connection to the server.
import { count, fillHelp, h, isTyping, plural, setChildren, toggleTheme } from "./dom.js";
import { redo, undo } from "./doing.js";
import * as exporting from "./files.js";
import * as labelling from "./labelling.js";
import * as mapping from "./mapping.js";
import { active, apply, LABELLED, load, model, NONE, onChange, setSnapshot } from "./model.js";
import { createProgress, onComputing } from "./progress.js";
import * as reporting from "./reporting.js";
import * as refitting from "./refitting.js";
import { get, listen, post, Refused } from "./server.js";

const byId = (id) => document.getElementById(id);
let tabs = [
  ["label", "Label", () => labelling.view],
  ["map", "Map", () => { mapping.start(); return mapping.view; }],
  ["refit", "Refit", () => { refitting.update(); return refitting.view; }],
  ["files", "Export", () => exporting.view],
];
const WITHOUT_SELECTION = ["refit", "files", "overview", "training"];
let data = null;
let current = "";

function show() {
  const wanted = location.hash.slice(1);
  const category = /^category-(\d+)$/.exec(wanted);
  if (category || wanted === "none") labelling.choose(category ? Number(category[1]) : "none");
  const [key, , view] = tabs.find(([name]) => name === wanted) || tabs[0];
  if (key === current) return;
  current = key;
  for (const link of byId("tabs").children) if (link.dataset.tab) link.setAttribute("aria-current", link.dataset.tab === key ? "page" : "false");
  byId("tabs").querySelector("[aria-current=page]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
  byId("main").replaceChildren(view());
  document.body.dataset.tab = key;
  byId("selection-bar").hidden = WITHOUT_SELECTION.includes(key) || !labelling.selection.size();
  byId("main").scrollTop = 0;
}

function drawTop() {
  let mine = 0;
  for (const status of model.status) mine += status === LABELLED || status === NONE;
  byId("about").textContent = `${plural(model.n, "image")} · ${plural(active().length, "category", "categories")} · ${count(mine)} labelled by you`;
  for (const [id, title, verb] of [["undo", model.undo, "Undo"], ["redo", model.redo, "Redo"]]) {
    byId(id).disabled = title === null;
    byId(id).title = title === null ? `Nothing to ${id}` : `${verb}: ${title} (${id === "undo" ? "u" : "Shift u"})`;
  }
}

const SHORTCUTS = [
  ["← → ↑ ↓", "move in the grid"],
  ["Space", "select the image; with Shift, all up to it"],
  ["a", "select all images that are shown"],
  ["Enter", "show the image large; ← → go on"],
  ["l", "label the selection: type, Enter takes the suggestion or creates a category"],
  ["1 … 9", "label the selection as the category with this number"],
  ["0", "mark the selection as none of these"],
  ["y", "accept the selection as shown"],
  ["Y", "accept all images that are shown, except the selected ones"],
  ["Delete", "remove the label of the selection"],
  ["r", "name the category"],
  ["m", "merge the category into another one"],
  ["d", "split the selection or the category"],
  ["n, p", "next, previous category; n skips a suggestion"],
  ["g", "suggestions"],
  ["/", "filter by path"],
  ["+ - ← → ↑ ↓", "on the map: zoom, move; Enter selects the images in view"],
  ["u", "undo; Shift u or Ctrl y: redo"],
  ["Esc", "clear the selection, close a window"],
  ["?", "show these shortcuts"],
];

const focusOn = (id) => { const element = byId(id); if (element) { element.focus(); if (element.select) element.select(); } };
const KEYS = {
  a: labelling.selectAll, l: () => { if (labelling.selection.size()) labelling.label.focus(); }, y: labelling.label.accept, Y: labelling.acceptAll,
  0: labelling.label.none, x: labelling.label.none, Delete: labelling.label.remove, r: () => focusOn("name"), m: labelling.mergeSet, d: labelling.splitSet,
  n: () => labelling.step(1), p: () => labelling.step(-1), g: () => labelling.choose("suggestions"), "/": () => focusOn("path"),
  u: undo, U: redo, "?": () => byId("help").showModal(), Escape: () => labelling.selection.clear(),
};

document.addEventListener("keydown", (event) => {
  if (event.altKey || document.querySelector("dialog[open]")) return;
  const isCommand = event.ctrlKey || event.metaKey;
  if (isTyping(event.target)) { if (event.key === "Escape") event.target.blur(); return; }
  if (isCommand && event.key.toLowerCase() === "z") { if (event.shiftKey) redo(); else undo(); }
  else if (isCommand && event.key.toLowerCase() === "y") redo();
  else if (isCommand && event.key.toLowerCase() === "a" && current === "label") labelling.selectAll();
  else if (isCommand) return;
  else if (/^[1-9]$/.test(event.key)) { const c = labelling.categoryOfDigit(Number(event.key)); if (c !== undefined && labelling.selection.size()) labelling.label.as(c); }
  else if (event.key === "a" && byId("select-all")) byId("select-all").click();
  else if (KEYS[event.key] && (current === "label" || "uU?0yl".includes(event.key) || event.key === "Escape")) KEYS[event.key]();
  else if (event.target === document.body && /^Arrow|^ $|^Enter$/.test(event.key) && current === "label") { labelling.grid.focus(); return; }
  else return;
  event.preventDefault();
});

function problem(...content) {
  byId("problem").hidden = !content.length || content[0] === "";
  setChildren(byId("problem"), ...content);
}

function notices() {
  const box = h("div", { class: "notices" });
  for (const text of data.notices) {
    const note = h("p", { class: "note" }, text, h("button", { type: "button", class: "icon", "aria-label": "Close this note", onclick: () => note.remove() }, "✕"));
    box.append(note);
  }
  return box;
}

// the first fit, while its first result is labelled
const fitProgress = createProgress("Fit");
const fitBar = h("div", { class: "fit-bar", id: "fit-bar", hidden: true }, h("span", {}, "Training goes on"), fitProgress.element, h("a", { href: "/" }, "Show it"));
function showFit(fit) {
  fitBar.hidden = !fit || fit.phase !== "fitting";
  if (fit) fitProgress.show(fit);
}

function offerReload() {
  problem("The run has a new result (its training is finished, or names were applied). ",
    h("button", { type: "button", id: "reload", onclick: async () => { await post("api/reload"); location.reload(); } }, "Load it; your labels are kept"));
}

async function start() {
  if (new URLSearchParams(location.search).has("token")) history.replaceState(null, "", location.pathname + location.hash);
  byId("theme").addEventListener("click", toggleTheme);
  fillHelp(byId("help"), SHORTCUTS);
  byId("show-help").addEventListener("click", () => byId("help").showModal());
  byId("undo").addEventListener("click", undo);
  byId("redo").addEventListener("click", redo);
  try {
    data = await get("api/run");
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    byId("main").replaceChildren(h("p", { class: "loading" }, error.message));
    return;
  }
  document.title = `${data.title} · promptcal`;
  byId("title").textContent = data.title;
  byId("home").hidden = !data.home;
  byId("home").textContent = `‹ ${data.home}`;
  load(data);
  tabs = [...tabs, ...reporting.tabs(data.pages)];
  setChildren(byId("tabs"), tabs.map(([key, label]) => h("a", { href: `#${key}`, dataset: { tab: key } }, label)),
    data.hasReport ? h("a", { href: "report", target: "_blank", rel: "noopener" }, "Report ↗") : null);
  byId("main").before(notices(), fitBar);
  showFit(data.fit);
  show();
  labelling.start();
  drawTop();
  onChange(drawTop);
  window.addEventListener("hashchange", show);
  listen({
    hello: async (hello) => { if (hello.opened !== data.opened) { location.reload(); return; } problem(); if (hello.changed) offerReload(); if (hello.version !== model.version) setSnapshot(await get("api/state")); },
    change: apply,
    refit: refitting.onEvent,
    reload: async () => setSnapshot(await get("api/state")),
    changed: offerReload,
    computing: onComputing,
    fit: showFit,
  }, (message) => problem(message));
  document.body.dataset.ready = "yes";
}
start();
