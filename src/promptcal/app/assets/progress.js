// The progress of something that runs in the background.
import { count, h } from "./dom.js";

// show({ step, done, total }): total is 0 if it is not known. The elements stay, so that nothing beside them loses the focus.
export function createProgress(label) {
  const step = h("p", { class: "progress-step", role: "status" });
  const inside = h("span", {});
  const bar = h("div", { class: "progress", role: "progressbar", "aria-label": label, "aria-valuemin": 0, "aria-valuemax": 100 }, inside);
  return {
    element: h("div", { class: "progress-box" }, step, bar),
    show(status) {
      const share = status.total ? (100 * status.done) / status.total : 0;
      step.textContent = status.total ? `${status.step}: ${count(status.done)} of ${count(status.total)}` : status.step;
      bar.classList.toggle("unknown", !status.total);
      inside.style.width = status.total ? `${share}%` : "";
      bar.setAttribute("aria-valuenow", Math.round(share));
    },
  };
}

// Shown instead of a page while it is computed; "computing" events of the server say how far it is.
const waiting = createProgress("Computing");
export const onComputing = (status) => waiting.show(status);
export function waitingFor(step) {
  waiting.show({ step, done: 0, total: 0 });
  return h("div", { class: "loading" }, waiting.element);
}
