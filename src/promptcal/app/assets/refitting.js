// Refits: the effect of the labels in seconds, or a new fit in the background; what moved; accept or discard; history.
import { count, decodeBase64, h, plural, scrollBox, setChildren } from "./dom.js";
import { createSelection } from "./picking.js";
import { attempt, say } from "./doing.js";
import { createGrid } from "./grid.js";
import { open } from "./looking.js";
import { apply, display, model } from "./model.js";
import { createProgress } from "./progress.js";
import { get, post } from "./server.js";

const STATES = {
  running: "running", ready: "ready", accepted: "accepted", discarded: "not used", failed: "failed", cancelled: "cancelled",
  interrupted: "interrupted (the server stopped)", finished: "finished, not looked at yet",
};
const selection = createSelection();
let status = { phase: "idle", attempts: [], moved: null };
let moved = { to: new Map(), names: [] };

const grid = createGrid({
  selection, open, label: "Images that move", smallest: 120,
  describe: (image) => {
    const to = display(moved.names[moved.to.get(image)] ?? "");
    return { text: `${model.paths[image]}, moves to ${to}`, tag: `→ ${to}`, classes: "" };
  },
});
const panel = h("div", { class: "panel" });
const result = h("div", { class: "panel", hidden: true });
const past = h("div", { class: "panel" });
export const view = h("section", { class: "page" }, panel, result, past);

const change = async (what, body) => {
  const answer = await attempt(() => post(`api/refit/${what}`, body));
  if (answer && answer.version) await apply(answer);
  await update();
  return answer;
};

const progress = createProgress("Refit");

function drawStart() {
  progress.show(status);
  const isRunning = status.phase === "running";
  setChildren(panel, h("h2", {}, "Fit again with your labels"),
    isRunning ? [
      progress.element,
      h("button", { type: "button", id: "cancel-refit", onclick: () => change("cancel") }, "Cancel"),
      status.kind === "fit" ? h("p", { class: "muted" }, "You can go on labelling. Labels that you give now are not part of this fit.") : null,
    ] : [
      h("div", { class: "columns" },
        h("div", {}, h("h3", {}, "Quick refit"), h("p", { class: "muted" }, "Trains the read-out on the stored embeddings with your labels. It takes seconds and needs no image files."),
          h("button", { type: "button", class: "primary", id: "quick-refit", onclick: () => change("quick") }, "Quick refit")),
        h("div", {}, h("h3", {}, "New fit"), h("p", { class: "muted" }, "Trains the network further with your labels (fit --from), in the background, into a run of its own."),
          h("button", { type: "button", id: "new-fit", disabled: Boolean(status.commandProblem), onclick: () => change("fit") }, "Start a new fit"),
          status.commandProblem ? h("p", { class: "muted", id: "fit-problem" }, status.commandProblem) : h("details", {}, h("summary", {}, "The command"), h("p", { class: "path", id: "fit-command" }, status.command)))),
      status.phase === "idle" && status.message ? h("p", { class: "note", id: "refit-message" }, status.message) : null,
    ].flat());
}

function drawResult() {
  result.hidden = status.phase !== "ready" || !status.moved;
  if (result.hidden) { setChildren(result); return; }
  const images = Array.from(new Uint32Array(decodeBase64(status.moved.images).buffer));
  const to = new Int32Array(decodeBase64(status.moved.to).buffer);
  moved = { names: status.moved.names, to: new Map(images.map((image, k) => [image, to[k]])) };
  setChildren(result, h("h2", { id: "moved-count" }, `${plural(status.moved.n, "image")} would move`),
    h("p", { class: "muted" }, "Your labels stay as they are. Accepting can be undone like every action."),
    h("div", { class: "actions" },
      h("button", { type: "button", class: "primary", id: "accept-refit", onclick: async () => { if (await change("accept")) say("The refit is accepted.", { canUndo: true }); } }, "Accept"),
      h("button", { type: "button", id: "discard-refit", onclick: () => change("discard") }, "Do not use it")),
    status.moved.n ? scrollBox("What moves", h("table", { class: "numbers-table", id: "flows" }, h("thead", {}, h("tr", {}, ["From", "To", "Images"].map((text) => h("th", { scope: "col" }, text)))),
      h("tbody", {}, status.moved.flows.map(([from, target, n]) => h("tr", {}, h("th", { scope: "row" }, display(from)), h("td", {}, display(target)), h("td", {}, count(n))))))) : null,
    status.moved.n ? h("div", { class: "short-grid" }, grid.element) : null);
  grid.setList(images, { keep: false });
}

function drawPast() {
  past.hidden = !status.attempts.length;
  const time = (text) => new Date(text).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
  setChildren(past, h("h2", {}, "History"),
    scrollBox("History", h("table", { class: "numbers-table history", id: "attempts" },
      h("thead", {}, h("tr", {}, ["Started", "Kind", "State", "Result", ""].map((text) => h("th", { scope: "col" }, text || h("span", { class: "hidden-text" }, "Action"))))),
      h("tbody", {}, status.attempts.map((a) => h("tr", {}, h("th", { scope: "row" }, time(a.started)), h("td", {}, a.kind === "quick" ? "quick refit" : "new fit"),
        h("td", {}, STATES[a.status] || a.status), h("td", { class: "path" }, a.message, a.output ? ` ${a.output}` : ""),
        h("td", {}, a.kind === "fit" && ["finished", "discarded"].includes(a.status) && status.phase === "idle" ? h("button", { type: "button", class: "look-at", onclick: () => change("load", { attempt: a.number }) }, "Look at it") : null)))))));
}

function draw() { drawStart(); drawResult(); drawPast(); }

export async function update() {
  const found = await attempt(() => get("api/refit"));
  if (found) { status = found; draw(); }
}

// an event of the server
export async function onEvent(event) {
  const isNew = event.phase !== status.phase || event.phase !== "running";
  status = { ...status, ...event };
  if (isNew) {
    await update();
    if (event.phase === "ready" && !view.isConnected) say(`The refit is ready: ${event.message} Open the tab Refit.`);
  } else progress.show(status);
}
