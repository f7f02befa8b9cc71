// Keyboard shortcuts, and the overlay that lists them.
const SHORTCUTS = [
  ["1 … 9", "open a tab"],
  ["/", "search clusters and files"],
  ["n, p", "next, previous cluster"],
  ["b", "back to all clusters"],
  ["e", "name the cluster; Enter saves and goes to the next field"],
  ["s", "select images by click; or Ctrl and click, Shift and click"],
  ["a", "select all images of the gallery"],
  ["l", "label the selected images"],
  ["x", "mark the selected images, or the open image, as wrong"],
  ["Esc", "clear the selection, close a window"],
  ["← →", "previous, next image in the open window"],
  ["u", "undo"],
  ["?", "show these shortcuts"],
];

const help = (() => {
  const dialog = document.getElementById("help");
  fillHelp(dialog, SHORTCUTS);
  document.getElementById("show-help").addEventListener("click", () => dialog.showModal());
  return { open: () => dialog.showModal() };
})();

function clickIfThere(selector) {
  const element = document.querySelector(`#main ${selector}`);
  if (element) element.click();
}

function focusIfThere(selector) {
  const element = document.querySelector(`#main ${selector}`);
  if (element) { element.scrollIntoView({ block: "nearest" }); element.focus(); }
}

const KEYS = {
  "/": () => { if (currentHash() !== "clusters") location.hash = "#clusters"; setTimeout(() => focusIfThere("#search")); },
  n: () => clickIfThere("#next-cluster"),
  p: () => clickIfThere("#previous-cluster"),
  b: () => clickIfThere("#all-clusters"),
  e: () => focusIfThere(".name"),
  s: () => selection.setMode(!selection.isOn()),
  a: () => { if (current && current.gallery) selection.set(current.gallery()); },
  l: () => { if (selection.size()) selectionBar.focus(); },
  x: () => selectionBar.markWrong(),
  u: () => decisions.undo(),
  "?": () => help.open(),
  Escape: () => selection.clear(),
};

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
  if (isTyping(event.target)) { if (event.key === "Escape") event.target.blur(); return; }
  const tab = /^[1-9]$/.test(event.key) ? TABS[Number(event.key) - 1] : null;
  if (tab) location.hash = `#${tab[0]}`;
  else if (KEYS[event.key]) KEYS[event.key]();
  else return;
  event.preventDefault();
});
