// Images that the user has selected, in any gallery or with the lasso, and the bar that labels them.
const selection = (() => {
  const chosen = new Set();
  const listeners = [];
  let anchor = -1; // the image from which Shift and click selects
  let selecting = false; // a click selects instead of opening the image

  function changed() { for (const listener of listeners) listener(); }

  return {
    has: (image) => chosen.has(image),
    size: () => chosen.size,
    list: () => [...chosen],
    isOn: () => selecting,
    onChange: (listener) => listeners.push(listener),
    setMode(on) { selecting = on; changed(); },
    toggle(image) {
      if (!chosen.delete(image)) chosen.add(image);
      anchor = image;
      changed();
    },
    extendTo(image, gallery) {
      const [from, to] = [gallery.indexOf(anchor), gallery.indexOf(image)];
      if (from < 0) chosen.add(image);
      else for (const other of gallery.slice(Math.min(from, to), Math.max(from, to) + 1)) chosen.add(other);
      anchor = image;
      changed();
    },
    set(list) { chosen.clear(); for (const image of list) chosen.add(image); changed(); },
    clear() { chosen.clear(); selecting = false; anchor = -1; changed(); },
  };
})();

// the bar is built once, so that typing is not interrupted
const selectionBar = (() => {
  const bar = document.getElementById("selection-bar");
  const counted = h("strong", { id: "selected-count" });
  const input = h("input", { type: "text", id: "label-selected", placeholder: "Label as …", "aria-label": "Label of the selected images", maxLength: 200, autocomplete: "off", list: "category-names" });
  const finish = (apply) => { if (selection.size()) { apply(selection.list()); selection.clear(); input.value = ""; input.blur(); } };
  setChildren(bar, counted,
    h("form", { class: "inline", onsubmit: (event) => { event.preventDefault(); if (input.value.trim()) finish((list) => decisions.labelImages(list, input.value)); else input.focus(); } },
      input, h("button", { type: "submit", class: "primary", id: "apply-label" }, "Label")),
    h("button", { type: "button", class: "mark", id: "selection-wrong", title: "Key x", onclick: () => finish(decisions.toggleWrong) }, "Mark as wrong"),
    h("button", { type: "button", id: "clear-selection", title: "Key Esc", onclick: () => selection.clear() }, "Clear"));
  selection.onChange(() => {
    bar.hidden = !selection.size();
    counted.textContent = `${plural(selection.size(), "image")} selected`;
  });
  return { focus: () => input.focus(), markWrong: () => finish(decisions.toggleWrong) };
})();

// the button that turns selecting by click on and off
function selectButton() {
  const button = h("button", { type: "button", id: "select-mode", title: "Key s. Or click the corner of an image, or hold Ctrl", onclick: () => selection.setMode(!selection.isOn()) });
  const update = () => {
    button.setAttribute("aria-pressed", String(selection.isOn()));
    button.textContent = selection.isOn() ? "Click images to select them" : "Select images";
  };
  button.update = update;
  update();
  return button;
}
selection.onChange(() => { for (const button of document.querySelectorAll("#select-mode")) button.update(); });
