// A grid of pictures that draws only the rows near the screen, so it scrolls over any number of them.
import { h } from "./dom.js";
import { base } from "./server.js";

const OVERSCAN = 2; // rows above and below the screen
const FAST = 2.2; // screens per 100 ms; faster, pictures are not loaded

// picks the picture that is sharp at this size
export const pictureUrl = (image, points) => {
  const pixels = points * (window.devicePixelRatio || 1);
  return `${base}image/${image}/${pixels <= 160 ? 160 : pixels <= 320 ? 320 : pixels <= 640 ? 640 : 1600}`;
};

// describe(image) gives { label, tag, marks } of a cell; open(image, list) shows it in large
export function createGrid({ selection, describe, open, smallest = 150, label = "Images" }) {
  const space = h("div", { class: "grid-space", role: "presentation" });
  const box = h("div", { class: "grid", role: "listbox", tabIndex: 0, "aria-label": label, "aria-multiselectable": "true" }, space);
  const band = h("div", { class: "band", hidden: true, role: "presentation" });
  space.append(band);
  const cells = new Map(); // by position in the list
  const free = [];
  let list = [];
  let layout = { columns: 1, side: smallest, gap: 8 };
  let focused = 0;
  let frame = 0;
  let before = { top: 0, time: 0 };
  let settle = 0;

  // sizes and position of the box: reading them from the document would compute its layout once more
  const seen = { width: 0, height: 0, top: 0 };

  function measure() {
    const width = seen.width - 14;
    if (width <= 0) return;
    const gap = width < 500 ? 5 : 8;
    const least = width < 500 ? Math.min(smallest, 104) : smallest;
    const columns = Math.max(1, Math.floor((width + gap) / (least + gap)));
    layout = { columns, gap, side: Math.floor((width - gap * (columns - 1)) / columns) };
    const rows = Math.ceil(list.length / columns);
    space.style.height = `${rows * (layout.side + gap) + 8}px`;
    space.style.setProperty("--side", `${layout.side}px`);
  }

  const placeOf = (position) => ({
    left: 2 + (position % layout.columns) * (layout.side + layout.gap),
    top: 2 + Math.floor(position / layout.columns) * (layout.side + layout.gap),
  });

  function newCell() {
    const picture = h("img", { alt: "", decoding: "async" });
    picture.draggable = false;
    picture.addEventListener("load", () => { picture.classList.toggle("small", Math.max(picture.naturalWidth, picture.naturalHeight) <= 64); picture.classList.add("loaded"); });
    picture.addEventListener("error", () => { if (picture.getAttribute("src")) picture.parentElement.classList.add("no-picture"); });
    const cell = h("div", { class: "cell", role: "option" }, picture,
      h("span", { class: "tag" }), h("span", { class: "picked", "aria-hidden": "true" }, "✓"), h("span", { class: "enlarge", title: "Show it large (Enter)", "aria-hidden": "true" }, "⤢"));
    Object.assign(cell, { picture, tag: cell.querySelector(".tag") });
    return cell;
  }

  function showState(cell, image) {
    const { text, tag, classes } = describe(image);
    const isSelected = selection.has(image);
    cell.className = `cell ${classes}${isSelected ? " is-selected" : ""}${cell.position === focused ? " is-focused" : ""}${cell.classList.contains("no-picture") ? " no-picture" : ""}`;
    if (cell.total !== list.length) { cell.total = list.length; cell.setAttribute("aria-setsize", list.length); }
    cell.setAttribute("aria-selected", String(isSelected));
    if (cell.getAttribute("aria-label") !== text) cell.setAttribute("aria-label", text);
    if (cell.tag.textContent !== tag) cell.tag.textContent = tag;
  }

  function place(cell, position) {
    const image = list[position];
    const { left, top } = placeOf(position);
    Object.assign(cell, { position });
    if (cell.image !== image) {
      cell.image = image;
      cell.dataset.image = image;
      cell.picture.removeAttribute("src");
      cell.picture.classList.remove("loaded");
      cell.classList.remove("no-picture");
    }
    cell.id = `cell-${image}`;
    cell.setAttribute("aria-posinset", position + 1);
    cell.style.transform = `translate(${left}px, ${top}px)`;
    showState(cell, image);
  }

  function loadPictures() {
    for (const cell of cells.values()) {
      const url = pictureUrl(cell.image, layout.side);
      if (cell.picture.getAttribute("src") !== url) cell.picture.setAttribute("src", url);
    }
  }

  function draw() {
    frame = 0;
    const step = layout.side + layout.gap;
    const first = Math.max(0, Math.floor(seen.top / step) - OVERSCAN) * layout.columns;
    const last = Math.min(list.length, (Math.ceil((seen.top + seen.height) / step) + OVERSCAN) * layout.columns);
    for (const [position, cell] of cells) {
      if (position >= first && position < last) continue;
      cells.delete(position);
      free.push(cell);
    }
    for (let position = first; position < last; position++) {
      let cell = cells.get(position);
      if (!cell) {
        cell = free.pop() || newCell();
        cells.set(position, cell);
        if (!cell.isConnected) space.append(cell);
      }
      if (cell.image !== list[position] || cell.position !== position || cell.side !== layout.side) { place(cell, position); cell.side = layout.side; }
    }
    for (const cell of free.splice(0)) cell.remove();
    const time = performance.now();
    const speed = Math.abs(seen.top - before.top) / Math.max(1, seen.height) / Math.max(1, time - before.time) * 100;
    before = { top: seen.top, time };
    clearTimeout(settle);
    if (speed < FAST) loadPictures(); else settle = setTimeout(loadPictures, 90);
    setActive();
  }

  function setActive() {
    const cell = cells.get(focused);
    if (cell) box.setAttribute("aria-activedescendant", cell.id); else box.removeAttribute("aria-activedescendant");
  }

  const redraw = () => { if (!frame) frame = requestAnimationFrame(draw); };
  const showStates = () => { for (const [position, cell] of cells) if (list[position] === cell.image) showState(cell, cell.image); };

  function resize() { Object.assign(seen, { width: box.clientWidth, height: box.clientHeight, top: box.scrollTop }); measure(); for (const cell of cells.values()) cell.side = -1; draw(); }
  new ResizeObserver(resize).observe(box);
  box.addEventListener("scroll", () => { seen.top = box.scrollTop; redraw(); }, { passive: true });
  selection.onChange(showStates);

  // -- mouse, pen and finger ---------------------------------------------------------------------------
  const columnAt = (x) => Math.min(layout.columns - 1, Math.max(0, Math.floor((x - 2) / (layout.side + layout.gap))));
  const inSpace = (event) => {
    const bounds = space.getBoundingClientRect();
    return [event.clientX - bounds.left, event.clientY - bounds.top];
  };
  let drag = null; // from where, and what was selected

  function choose(position, event) {
    const image = list[position];
    if (image === undefined) return;
    focus(position, false);
    if (event.shiftKey) selection.extendTo(image, list); else selection.toggle(image);
  }
  box.addEventListener("click", (event) => {
    const cell = event.target.closest(".cell");
    if (!cell || (drag && drag.moved)) return;
    if (event.target.classList.contains("enlarge")) { focus(cell.position, false); open(cell.image, list); return; }
    choose(cell.position, event);
  });
  box.addEventListener("dblclick", (event) => {
    const cell = event.target.closest(".cell");
    if (cell && !event.target.classList.contains("enlarge")) open(cell.image, list);
  });
  box.addEventListener("pointerdown", (event) => {
    drag = null;
    if (event.pointerType === "touch" || event.button !== 0 || event.clientX > box.getBoundingClientRect().left + box.clientWidth) return;
    drag = { from: inSpace(event), kept: event.ctrlKey || event.metaKey || event.shiftKey ? selection.list() : [], moved: false, at: event };
  });
  function drawBand() {
    const [ax, ay] = drag.from;
    const [bx, by] = inSpace(drag.at);
    const [left, right, top, bottom] = [Math.min(ax, bx), Math.max(ax, bx), Math.max(0, Math.min(ay, by)), Math.max(ay, by)];
    Object.assign(band.style, { left: `${left}px`, top: `${top}px`, width: `${right - left}px`, height: `${bottom - top}px` });
    band.hidden = false;
    const step = layout.side + layout.gap;
    const inside = [];
    const [firstColumn, lastColumn] = [columnAt(left), columnAt(right)];
    for (let row = Math.floor((top - 2) / step); row <= Math.floor((bottom - 2) / step); row++)
      for (let column = firstColumn; column <= lastColumn; column++) {
        const image = list[row * layout.columns + column];
        if (row >= 0 && image !== undefined) inside.push(image);
      }
    selection.set([...drag.kept, ...inside]);
  }
  function scrollWhileDragging() {
    if (!drag || !drag.moved) return;
    const bounds = box.getBoundingClientRect();
    const over = Math.max(0, drag.at.clientY - bounds.bottom + 30) - Math.max(0, bounds.top + 30 - drag.at.clientY);
    if (over) { box.scrollTop += over / 3; drawBand(); }
    requestAnimationFrame(scrollWhileDragging);
  }
  box.addEventListener("pointermove", (event) => {
    if (!drag || !(event.buttons & 1)) return;
    drag.at = event;
    const [x, y] = inSpace(event);
    if (!drag.moved && Math.hypot(x - drag.from[0], y - drag.from[1]) > 8) {
      drag.moved = true;
      box.setPointerCapture(event.pointerId);
      requestAnimationFrame(scrollWhileDragging);
    }
    if (drag.moved) drawBand();
  });
  const endDrag = () => { band.hidden = true; if (drag && drag.moved) setTimeout(() => { drag = null; }); };
  box.addEventListener("pointerup", endDrag);
  box.addEventListener("pointercancel", endDrag);

  // -- keyboard ------------------------------------------------------------------------------------------
  function focus(position, scroll = true) {
    const old = cells.get(focused);
    focused = Math.max(0, Math.min(list.length - 1, position));
    if (old) old.classList.remove("is-focused");
    if (scroll) {
      const { top } = placeOf(focused);
      if (top < box.scrollTop) box.scrollTop = top - 2;
      else if (top + layout.side > box.scrollTop + box.clientHeight - bottomSpace()) box.scrollTop = top + layout.side + 6 - box.clientHeight + bottomSpace();
      seen.top = box.scrollTop;
      draw();
    }
    const now = cells.get(focused);
    if (now) now.classList.add("is-focused");
    setActive();
  }
  const bottomSpace = () => (selection.size() ? 90 : 0); // the bar covers it
  box.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !list.length) return;
    const page = Math.max(1, Math.floor(box.clientHeight / (layout.side + layout.gap))) * layout.columns;
    const steps = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -layout.columns, ArrowDown: layout.columns, PageUp: -page, PageDown: page, Home: -list.length, End: list.length };
    if (event.key in steps) {
      const from = focused;
      const target = focused + steps[event.key];
      if (target < 0 && event.key === "ArrowUp") return;
      if (event.shiftKey && !selection.has(list[from])) selection.toggle(list[from]);
      focus(target);
      if (event.shiftKey) selection.extendTo(list[focused], list);
    } else if (event.key === " ") {
      if (event.shiftKey) selection.extendTo(list[focused], list); else selection.toggle(list[focused]);
    } else if (event.key === "Enter") open(list[focused], list);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  box.addEventListener("focus", () => { box.classList.add("has-focus"); });
  box.addEventListener("blur", () => { box.classList.remove("has-focus"); });

  return {
    element: box,
    list: () => list,
    // other images; the position on the screen stays, unless it is another set
    setList(images, { keep = true } = {}) {
      list = images;
      measure();
      if (!keep) { box.scrollTop = 0; seen.top = 0; focused = 0; }
      focused = Math.max(0, Math.min(focused, list.length - 1));
      draw();
      showStates();
    },
    showStates,
    focus: () => box.focus({ preventScroll: true }),
  };
}
