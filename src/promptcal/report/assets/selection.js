// Images that the user has selected, in any gallery or with the lasso, and the bar that labels them.
const selection = createSelection();

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
