// A text field that suggests categories while the user types. Enter takes the suggestion, or creates a category.
import { count, h, setChildren } from "./dom.js";
import { colour, completions, exactly, nameOf, sizeOf } from "./model.js";

let fields = 0;

// onChoose({ category }) or onChoose({ name }); options: what may be chosen, and whether a new name is allowed
export function completingField({ id, label, placeholder, allows = () => true, canCreate = true, onChoose, value = "" }) {
  const listId = `completions-${fields++}`;
  const popup = h("div", { class: "completions", id: listId, role: "listbox", "aria-label": "Categories", hidden: true });
  const input = h("input", { type: "text", id, placeholder, maxLength: 200, autocomplete: "off", value, role: "combobox",
    "aria-label": label, "aria-expanded": "false", "aria-autocomplete": "list", "aria-controls": listId });
  const element = h("span", { class: "completing" }, input, popup);
  let shown = [];
  let at = 0;

  function options() {
    const text = input.value.trim();
    const found = completions(text).filter(allows).slice(0, 8).map((category) => ({ category }));
    if (text && canCreate && exactly(text) < 0) found.push({ name: text });
    return found;
  }

  function draw() {
    shown = options();
    at = Math.max(0, Math.min(at, shown.length - 1));
    const isUnknown = !shown.length && input.value.trim() !== "";
    popup.hidden = (!shown.length && !isUnknown) || document.activeElement !== input;
    input.setAttribute("aria-expanded", String(!popup.hidden));
    setChildren(popup, isUnknown ? h("div", { role: "option", class: "option muted", "aria-disabled": "true" }, "No category has this name.") : null, shown.map((option, k) => {
      const swatch = h("span", { class: "swatch" });
      swatch.style.backgroundColor = option.name ? "transparent" : colour(option.category);
      return h("div", { role: "option", id: `${listId}-${k}`, class: k === at ? "option on" : "option", "aria-selected": String(k === at),
        onpointerdown: (event) => { event.preventDefault(); choose(option); } },
      swatch, h("span", { class: "option-name" }, option.name ? `Create “${option.name}”` : nameOf(option.category)),
      option.name ? null : h("span", { class: "muted" }, count(sizeOf(option.category))));
    }));
    if (popup.hidden || !shown.length) input.removeAttribute("aria-activedescendant");
    else input.setAttribute("aria-activedescendant", `${listId}-${at}`);
  }

  function close() {
    popup.hidden = true;
    input.setAttribute("aria-expanded", "false");
    input.removeAttribute("aria-activedescendant");
  }

  function choose(option) {
    close();
    onChoose(option);
  }

  function chooseNow() {
    const found = input.value.trim() ? options() : [];
    if (found.length) choose(found[Math.min(at, found.length - 1)]);
    else input.focus();
  }

  input.addEventListener("input", () => { at = 0; draw(); });
  input.addEventListener("focus", () => { at = 0; draw(); });
  input.addEventListener("blur", close);
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      at = (at + (event.key === "ArrowDown" ? 1 : -1) + shown.length) % Math.max(1, shown.length);
      draw();
    } else if (event.key === "Enter") {
      chooseNow();
    } else if (event.key === "Escape") {
      if (popup.hidden) return; // closes the dialog, or leaves the field
      close();
    } else return;
    event.preventDefault();
    event.stopPropagation();
  });
  return { element, input, set(text) { input.value = text; close(); }, chooseNow };
}
