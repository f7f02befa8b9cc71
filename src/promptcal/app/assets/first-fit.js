// The first fit of a folder: what was found in it, what is missing, progress, and the way to its results.
import { count, h, keepFocus, plural, setChildren, toggleTheme } from "./dom.js";
import { createProgress } from "./progress.js";
import { get, listen, post, Refused } from "./server.js";

const main = document.getElementById("main");
const problem = document.getElementById("problem");
const MOST_CLASSES = 12;
const panels = { images: h("div", { class: "panel", id: "images" }), choice: h("div", { class: "panel", id: "choice" }), fit: h("div", { class: "panel", id: "fit" }) };
let state = null;
let chosen = null; // what the user typed stays while the page is drawn again
const drawn = {}; // what each panel shows: it is drawn again only if that changes, so that the focus stays
const progress = { check: createProgress("Check of the images"), fit: createProgress("Fit") };

function say(text) {
  problem.hidden = !text;
  problem.textContent = text;
}

async function ask(what, body) {
  try {
    say("");
    update(await post(`api/fit/${what}`, body));
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    say(error.message);
  }
}

const findings = (list, title, kind) => (list.length ? [h("h3", {}, title), h("ul", { class: kind }, list.map((finding) =>
  h("li", {}, h("strong", {}, finding.what), finding.amount ? ` (${finding.amount})` : "",
    h("ul", { class: "cases" }, finding.cases.map((text) => h("li", { class: "path" }, text)), finding.left ? h("li", {}, `and ${count(finding.left)} more`) : null))))] : []);

function labelFile(text) {
  return h("label", { class: "file-choice" }, h("span", {}, text),
    h("input", { type: "file", id: "label-file", accept: ".csv,.tsv,.txt", onchange: (event) => { if (event.target.files[0]) ask("labels", event.target.files[0]); } }));
}

function drawImages() {
  const { report, labels } = state;
  const isBusy = state.phase === "checking" || (state.phase === "asking" && report && !state.is_checked && !state.can_resume);
  const more = report ? report.classes.length - MOST_CLASSES : 0;
  setChildren(panels.images, h("h2", {}, "Images and labels"),
    h("dl", { class: "facts" }, [["Folder", state.folder], ["Labels", labels || "no label file"],
      ...(report ? [["Images", count(report.images)], ["Labelled", `${count(report.classes.reduce((sum, [, n]) => sum + n, 0))} in ${plural(report.classes.length, "class", "classes")}`], ["Unlabelled", count(report.unlabelled)]] : [])]
      .flatMap(([name, value]) => [h("dt", {}, name), h("dd", {}, value)])),
    isBusy ? progress.check.element : null,
    isBusy && report ? h("p", { class: "muted", id: "can-start" }, "You can start already: the fit reads every image, too. This check also looks for duplicates and other problems.") : null,
    report && report.classes.length ? h("p", { class: "classes" }, report.classes.slice(0, MOST_CLASSES).map(([name, n]) => h("span", { class: "chip" }, name, " ", h("span", { class: "muted" }, count(n)))),
      more > 0 ? h("span", { class: "muted" }, `and ${plural(more, "class", "classes")} more`) : null) : null,
    report ? findings(report.problems, "Problems", "warning") : null,
    report ? findings(report.warnings, "Warnings", "notes") : null,
    state.phase === "asking" && !state.can_resume ? labelFile(labels ? "Another label file" : "Label file (columns path,label)") : null);
}

// stays when the check ends: the user may be in the middle of the form
const skip = { box: h("input", { type: "checkbox", id: "skip" }), text: h("span", {}) };
skip.row = h("label", { class: "check" }, skip.box, skip.text);
function showSkip() {
  if (!state.report) return;
  skip.row.hidden = state.is_checked && !state.report.unreadable;
  skip.text.textContent = state.is_checked ? `Skip the ${plural(state.report.unreadable, "file")} that cannot be read` : "Skip files that cannot be read (otherwise they stop the fit)";
}

function drawChoice() {
  const { report } = state;
  panels.choice.hidden = state.phase !== "asking" || (!report && !state.can_resume);
  if (panels.choice.hidden) return;
  if (state.can_resume) {
    setChildren(panels.choice, h("h2", {}, "This fit was interrupted"), h("p", { class: "path" }, state.output),
      h("div", { class: "actions" }, h("button", { type: "button", class: "primary", id: "resume", onclick: () => ask("resume") }, "Continue it")));
    return;
  }
  const known = report.classes.length;
  const canEstimate = known >= 2;
  chosen = chosen || { auto: canEstimate && (state.nClasses === null || state.nClasses === "auto"), number: typeof state.nClasses === "number" ? state.nClasses : Math.max(2, 2 * known), quick: false };
  const number = h("input", { type: "number", id: "n-classes", min: 1, max: 100000, step: 1, value: chosen.number, required: true, "aria-label": "Number of categories, known and new together",
    oninput: () => { chosen.number = Number(number.value); }, onfocus: () => { if (canEstimate) { chosen.auto = false; fixed.checked = true; } } });
  const choice = (id, name, checked, change) => h("input", { type: "radio", id, name, checked, onchange: change });
  const estimated = choice("auto", "categories", chosen.auto, () => { chosen.auto = true; });
  const fixed = choice("fixed", "categories", !chosen.auto, () => { chosen.auto = false; });
  setChildren(panels.choice, h("form", { id: "start-form", onsubmit: (event) => {
    event.preventDefault();
    ask("start", { n_classes: chosen.auto ? "auto" : chosen.number, quick: chosen.quick, skip_unreadable: skip.box.checked && !skip.row.hidden });
  } },
  h("h2", {}, "What to look for"),
  h("fieldset", {}, h("legend", {}, "Number of categories, known and new together"),
    canEstimate ? h("label", { class: "check" }, estimated, "Estimate it from the labelled images") : h("p", { class: "muted" }, "Labels of two classes or more are needed to estimate it."),
    h("label", { class: "check" }, fixed, "This number:"), number),
  known ? h("fieldset", {}, h("legend", {}, "Training"),
    h("label", { class: "check" }, choice("trained", "training", !chosen.quick, () => { chosen.quick = false; }), "Train the network (a first result, without training, comes before)"),
    h("label", { class: "check" }, choice("quick", "training", chosen.quick, () => { chosen.quick = true; }), "Do not train it (minutes on a CPU)")) : h("p", { class: "note" }, "There are no labels, so similar images are only grouped. Give some labels to find categories of your kind."),
  skip.row,
  h("p", { class: "muted" }, "The run is written to ", h("span", { class: "path" }, state.output), ". You can stop the fit at any time and continue it later."),
  h("div", { class: "actions" }, h("button", { type: "submit", class: "primary", id: "start" }, "Start"))));
}

const list = h("ul", { class: "messages" });

function drawFit() {
  const isRunning = state.phase === "fitting";
  panels.fit.hidden = !isRunning && !state.has_result && !state.problem;
  if (panels.fit.hidden) return;
  const open = h("a", { class: "button primary", id: "open-run", href: `/r/${encodeURIComponent(state.key)}/` }, state.phase === "finished" ? "Open the result" : "Look at the first result and label it");
  setChildren(panels.fit, h("h2", {}, isRunning ? "Fit" : state.phase === "finished" ? "The fit is finished" : state.problem ? "The fit has stopped" : "Results"),
    isRunning ? progress.fit.element : null,
    state.problem ? h("p", { class: "note", id: "fit-problem" }, state.problem) : null,
    state.has_result && state.phase !== "finished" ? h("p", {}, "The first result is there: the categories by the features of the network before training. Labels that you give it are kept for the final result.") : null,
    h("div", { class: "actions" }, state.has_result ? open : null, isRunning ? h("button", { type: "button", id: "cancel", onclick: () => ask("cancel") }, "Cancel") : null),
    h("details", { open: isRunning }, h("summary", {}, "Messages"), list));
}

function drawIfChanged(panel, draw, shown) {
  const key = JSON.stringify(shown);
  if (drawn[panel] !== key) { drawn[panel] = key; keepFocus(panels[panel], draw); }
}

function update(status) {
  state = { ...state, ...status };
  const { phase, report, labels, can_resume, has_result, is_checked, problem: fault, messages } = state;
  progress.check.show(state);
  progress.fit.show(state);
  drawIfChanged("images", drawImages, [phase, report, labels, can_resume, is_checked]);
  drawIfChanged("choice", drawChoice, [phase, report && Math.min(2, report.classes.length), can_resume]);
  showSkip();
  drawIfChanged("fit", drawFit, [phase, has_result, fault]);
  setChildren(list, messages.map((text) => h("li", {}, text)));
  document.body.dataset.phase = state.phase;
}

async function start() {
  if (new URLSearchParams(location.search).has("token")) history.replaceState(null, "", location.pathname);
  document.getElementById("theme").addEventListener("click", toggleTheme);
  document.title = "First fit · promptcal";
  try {
    state = await get("api/state");
  } catch (error) {
    if (!(error instanceof Refused)) throw error;
    main.replaceChildren(h("p", { class: "loading" }, error.message));
    return;
  }
  main.replaceChildren(h("section", { class: "page" }, panels.images, panels.choice, panels.fit));
  update(state);
  // a report of a check comes with the whole state
  listen({ hello: (all) => { say(""); update(all); }, fit: async (status) => update(status.phase !== state.phase || status.is_checked !== state.is_checked ? await get("api/state") : status) }, say);
  document.body.dataset.ready = "yes";
}
start();
