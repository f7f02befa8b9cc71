// Attention maps of a few images.
import { h } from "./dom.js";

export function attentionPage({ data, images, nameOf, truthOf, open, attentionUrl }) {
  const { steps, images: shown, missing } = data.attention;
  const url = shown.length ? attentionUrl() : null;
  const across = steps.length + 1;
  const cell = (i, j) => {
    const element = h("span", { class: "picture" });
    element.style.backgroundImage = `url("${url}")`;
    element.style.backgroundSize = `${100 * across}% ${100 * shown.length}%`;
    element.style.backgroundPosition = `${(100 * j) / (across - 1)}% ${shown.length > 1 ? (100 * i) / (shown.length - 1) : 0}%`;
    return element;
  };
  const grid = h("div", { class: "attention", id: "attention-grid" }, shown.map((image, i) =>
    h("div", { class: "attention-row" },
      h("button", { type: "button", class: "thumb", title: images.paths[image], onclick: () => open(image, shown) }, cell(i, 0),
        h("span", { class: "caption" }, truthOf(image) ?? nameOf(images.cluster[image]))),
      steps.map((name, j) => h("div", {}, cell(i, j + 1), h("span", { class: "caption" }, name))))));
  grid.style.setProperty("--across", String(across));
  const view = h("section", {}, h("h2", {}, "Attention"),
    h("p", { class: "muted" }, "Attention of the class token to the patches in the last block, averaged over the heads. Bright means high attention."),
    missing ? h("p", { class: "note" }, missing) : null,
    shown.length ? grid : null);
  return { view, refresh: () => {} };
}
