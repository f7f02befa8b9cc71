// Helpers of the report and of the labelling app. Text is only ever set as text, never as HTML.
export const ARRAYS = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, i4: Int32Array, f4: Float32Array };

export function decodeBase64(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

export const unpack = (column) => new ARRAYS[column.type](decodeBase64(column.data).buffer);

export function h(tag, properties, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(properties || {})) {
    if (value === undefined || value === null || value === false) continue;
    if (key.startsWith("on")) element.addEventListener(key.slice(2), value);
    else if (key === "class") element.className = value;
    else if (key === "dataset") Object.assign(element.dataset, value);
    else if (key in element && key !== "list") element[key] = value;
    else element.setAttribute(key, value);
  }
  setChildren(element, ...children);
  return element;
}

// replaces the children of an element; null and false are left out
export function setChildren(element, ...children) {
  element.replaceChildren(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
}

// a box that scrolls sideways, also by keyboard
export const scrollBox = (label, content) => h("div", { class: "scroll", tabIndex: 0, role: "region", "aria-label": label }, content);

// draws again what is in a box; the focus, and the place in a text, stay where they were
export function keepFocus(box, draw) {
  const before = box.contains(document.activeElement) ? document.activeElement : null;
  const range = before && before.type === "text" ? [before.selectionStart, before.selectionEnd] : null;
  draw();
  const now = before && (before.isConnected ? before : before.id && box.querySelector(`#${CSS.escape(before.id)}`));
  if (!now || document.activeElement === now) return;
  now.focus({ preventScroll: true });
  if (range && now === before) now.setSelectionRange(...range);
}

export const svg = (tag, attributes, ...children) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
  element.append(...children);
  return element;
};

const numberFormat = new Intl.NumberFormat("en-GB"); // toLocaleString makes a new one each time
export const count = (n) => numberFormat.format(n);
export const plural = (n, one, many) => `${count(n)} ${n === 1 ? one : many || `${one}s`}`;
export const percent = (value) => (value === null || value === undefined ? "–" : (100 * value).toFixed(1));
export const decimal = (x, digits = 2) => (x === null || x === undefined || !Number.isFinite(x) ? "–" : x.toFixed(digits));
export const sampleEvenly = (list, n) =>
  list.length <= n ? list : Array.from({ length: n }, (_, i) => list[Math.round((i * (list.length - 1)) / (n - 1))]);

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 90 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

// The colour of a category by its number alone, so that it stays when others are added: a palette of ten, then hues that
// differ by the golden angle. The 3 keeps the first hues far from the palette.
export const PALETTE = ["#4a86c5", "#ee7733", "#2ca048", "#c4458c", "#cc9900", "#33aabb", "#d63f26", "#8f72d4", "#858585", "#a8713f"];
export const colourOf = (number) => {
  if (number < PALETTE.length) return PALETTE[number];
  const n = number + 3;
  return `hsl(${(n * 137.508) % 360} ${58 + 14 * (n % 3)}% ${42 + 8 * (Math.floor(n / 3) % 3)}%)`;
};

// the overlay that lists keyboard shortcuts: pairs of keys and what they do
export function fillHelp(dialog, shortcuts) {
  const keys = (text) => text.split(/(?:, | )/).map((key, i) => [i ? " " : "", /\w|[/?←→↑↓]/.test(key) ? h("kbd", {}, key) : key]).flat();
  setChildren(dialog, h("h2", {}, "Keyboard shortcuts"),
    h("dl", { class: "facts" }, shortcuts.flatMap(([names, action]) => [h("dt", {}, keys(names)), h("dd", {}, action)])),
    h("button", { type: "button", id: "close-help", onclick: () => dialog.close() }, "Close"));
  dialog.addEventListener("click", (event) => { if (event.target === dialog) dialog.close(); });
}

export const isTyping = (element) => element.matches("input:not([type=checkbox]), select, textarea");

// changes between light and dark mode
export function toggleTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
}

// fills a container with items; more are added when its end is near the screen, or by its method addMore
export function fillLazily(container, items, render, step = 120) {
  let done = 0;
  const end = h("div", { class: "end" });
  const addMore = () => {
    if (done >= items.length) return false;
    end.before(...items.slice(done, done + step).map(render));
    done += step;
    if (done >= items.length) { observer.disconnect(); end.remove(); }
    return true;
  };
  if (container.lazyObserver) container.lazyObserver.disconnect(); // of an earlier content
  const observer = new IntersectionObserver((entries) => { if (entries.some((e) => e.isIntersecting)) addMore(); }, { rootMargin: "600px" });
  Object.assign(container, { addMore, lazyObserver: observer });
  container.classList.add("lazy");
  container.replaceChildren(end);
  if (items.length) { addMore(); if (done < items.length) observer.observe(end); } else end.remove();
}
