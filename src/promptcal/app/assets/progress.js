// The progress of something that runs in the background.
import { count, h } from "./dom.js";

// a step, and how much of it is done; total is 0 if that is not known
export function progressBar({ step, done, total }, label) {
  const share = total ? done / total : 0;
  const inside = h("span", {});
  if (total) inside.style.width = `${100 * share}%`;
  return [
    h("p", { class: "progress-step", role: "status" }, total ? `${step}: ${count(done)} of ${count(total)}` : step),
    h("div", { class: total ? "progress" : "progress unknown", role: "progressbar", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100, "aria-valuenow": Math.round(100 * share) }, inside),
  ];
}
