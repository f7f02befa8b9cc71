// The list of the runs in a folder.
import { h, plural, toggleTheme } from "./dom.js";
import { get, Refused } from "./server.js";

const STATES = { finished: "finished", training: "in training", running: "no result yet", damaged: "cannot be opened", discarded: "being removed" };

function row(run) {
  return h("article", { class: "card run-row", dataset: { run: run.name } },
    h("strong", {}, run.problem ? run.name : h("a", { href: `/r/${encodeURIComponent(run.key)}/` }, run.name)),
    h("span", { class: "muted" }, STATES[run.status] || run.status),
    run.problem ? h("span", { class: "problem" }, run.problem)
      : [h("span", {}, plural(run.n_images, "image")), h("span", {}, plural(run.n_categories, "category", "categories")), h("span", { class: "muted" }, run.has_labels ? "opened before" : "not opened yet")]);
}

async function start() {
  if (new URLSearchParams(location.search).has("token")) history.replaceState(null, "", location.pathname);
  document.getElementById("theme").addEventListener("click", toggleTheme);
  const main = document.getElementById("main");
  try {
    const { folder, runs } = await get("api/runs");
    document.title = "Runs · promptcal";
    document.getElementById("about").textContent = folder;
    main.replaceChildren(h("section", { class: "page" }, h("div", { class: "runs" }, runs.map(row))));
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    main.replaceChildren(h("p", { class: "loading" }, error.message));
  }
}
start();
