// Export of the labels, and import from other programs.
import { h, plural } from "./dom.js";
import { attempt, say } from "./doing.js";
import { apply } from "./model.js";
import { base, post } from "./server.js";

const FORMATS = [
  ["csv", "CSV", "path and label, for promptcal fit --labels and promptcal name. An empty label means none of these."],
  ["label-studio", "Label Studio JSON", "a task for each image, with your label as annotation and the category of the run as prediction."],
  ["coco", "COCO JSON", "the labelled images, with one annotation for each whole image. It needs the image files."],
];

async function download(format, button) {
  button.disabled = true;
  const response = await fetch(`${base}export/${format}`).catch(() => null);
  button.disabled = false;
  if (!response || !response.ok) {
    say(response ? (await response.json()).error : "The server cannot be reached.", { isProblem: true });
    return;
  }
  const name = /filename="([^"]+)"/.exec(response.headers.get("Content-Disposition") || "");
  const url = URL.createObjectURL(await response.blob());
  const link = h("a", { href: url, download: name ? name[1] : format });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

async function read(input) {
  const [file] = input.files;
  if (!file) return;
  const change = await attempt(() => post(`api/import?name=${encodeURIComponent(file.name)}`, file));
  input.value = "";
  if (!change) return;
  await apply(change);
  const warnings = change.warnings.map((text) => ` Warning: ${text}.`).join("");
  say(`${plural(change.n, "label")} imported from ${file.name}.${warnings}`, { isProblem: warnings !== "", canUndo: true });
}

export const view = h("section", { class: "page" },
  h("div", { class: "panel" }, h("h2", {}, "Export"), h("p", { class: "muted" }, "Your labels as they are now. Nothing in the run or the image folder is changed."),
    FORMATS.map(([format, title, text]) => h("p", { class: "export-row" },
      h("button", { type: "button", id: `export-${format}`, onclick: (event) => download(format, event.currentTarget) }, title), h("span", { class: "muted" }, text)))),
  h("div", { class: "panel" }, h("h2", {}, "Import"), h("p", { class: "muted" }, "Labels from a CSV file (path,label) or from Label Studio (export there as JSON). Images are recognised by their paths. The import can be undone."),
    h("label", { class: "file-choice" }, h("span", {}, "Label file"), h("input", { type: "file", id: "import-file", accept: ".csv,.tsv,.json", onchange: (event) => read(event.target) }))));
