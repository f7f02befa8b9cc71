// Data, helpers, and thumbnails from the sprite sheets. Text is only ever set as text, never as HTML.
const data = JSON.parse(document.getElementById("data").textContent);
const ARRAYS = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, i4: Int32Array, f4: Float32Array };

function decodeBase64(base64) {
  const text = atob(base64);
  const bytes = new Uint8Array(text.length);
  for (let i = 0; i < text.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

const unpack = (column) => new ARRAYS[column.type](decodeBase64(column.data).buffer);

const images = { paths: data.images.paths, neighboursPerImage: data.images.neighboursPerImage };
for (const [name, column] of Object.entries(data.images)) if (column && column.type) images[name] = unpack(column);
const coordinates = unpack(data.map);
const clusters = data.clusters;
const N = images.paths.length;

// position of each image among the shown images, or -1
const tileIndex = new Int32Array(N).fill(-1);
images.shown.forEach((image, index) => { tileIndex[image] = index; });

function h(tag, properties, ...children) {
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
function setChildren(element, ...children) {
  element.replaceChildren(...children.flat(2).filter((child) => child !== null && child !== undefined && child !== false));
}

const svg = (tag, attributes, ...children) => {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [key, value] of Object.entries(attributes || {})) element.setAttribute(key, value);
  element.append(...children);
  return element;
};

const count = (n) => n.toLocaleString("en-GB");
const plural = (n, one, many) => `${count(n)} ${n === 1 ? one : many || `${one}s`}`;
const percent = (value) => (value === null || value === undefined ? "–" : (100 * value).toFixed(1));
const decimal = (x, digits = 2) => (x === null || x === undefined || !Number.isFinite(x) ? "–" : x.toFixed(digits));
const sampleEvenly = (list, n) =>
  list.length <= n ? list : Array.from({ length: n }, (_, i) => list[Math.round((i * (list.length - 1)) / (n - 1))]);

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "–";
  if (seconds < 90) return `${Math.round(seconds)} s`;
  const minutes = Math.round(seconds / 60);
  return minutes < 90 ? `${minutes} min` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

// Colours: a palette of ten, or hues that differ by the golden angle.
const PALETTE = ["#4a86c5", "#ee7733", "#2ca048", "#c4458c", "#cc9900", "#33aabb", "#d63f26", "#8f72d4", "#858585", "#a8713f"];
const colourOf = (number, total) => {
  if (total <= PALETTE.length) return PALETTE[number % PALETTE.length];
  return `hsl(${(number * 137.508) % 360} ${58 + 14 * (number % 3)}% ${42 + 8 * (Math.floor(number / 3) % 3)}%)`;
};
const nColours = Math.max(clusters.length, data.classes.length);
const clusterColour = (cluster) => colourOf(clusters[cluster].colour, nColours);
const classColour = (number) => colourOf(number, nColours);

// Thumbnails. A sheet is decoded only when one of its tiles is near the screen.
const sheetUrls = new Map();
const sheetImages = new Map();

function blobUrl(id) {
  const element = document.getElementById(id);
  return element && URL.createObjectURL(new Blob([decodeBase64(element.textContent)], { type: "image/webp" }));
}

function sheetUrl(sheet) {
  if (!sheetUrls.has(sheet)) sheetUrls.set(sheet, blobUrl(`sheet-${sheet}`));
  return sheetUrls.get(sheet);
}

// where an image is in its sheet: the corner, its size, and the size of the sheet
function tileOf(image) {
  const index = tileIndex[image];
  if (index < 0) return null;
  const { across, perSheet, pitch, margin } = data.tiles;
  const sheet = Math.floor(index / perSheet);
  const cell = index % perSheet;
  const rows = Math.ceil(Math.min(perSheet, images.shown.length - sheet * perSheet) / across);
  return {
    sheet,
    x: margin + (cell % across) * pitch,
    y: margin + Math.floor(cell / across) * pitch,
    width: images.tileSize[2 * index],
    height: images.tileSize[2 * index + 1],
    sheetWidth: across * pitch,
    sheetHeight: rows * pitch,
  };
}

// the sheet as an <img> for canvases; null until it is loaded, then onLoad is called
function sheetImage(sheet, onLoad) {
  let entry = sheetImages.get(sheet);
  if (!entry) {
    entry = new Image();
    entry.src = sheetUrl(sheet);
    sheetImages.set(sheet, entry);
  }
  if (entry.complete && entry.naturalWidth) return entry;
  if (onLoad) entry.addEventListener("load", onLoad, { once: true });
  return null;
}

// background position in percent: 0 and 100 align the borders of sheet and element
const along = (start, length, total) => (total > length ? `${(100 * start) / (total - length)}%` : "0%");

function paintTile(element) {
  const tile = tileOf(Number(element.dataset.image));
  if (!tile) return;
  const { x, y, width, height, sheetWidth, sheetHeight } = tile;
  element.style.backgroundImage = `url("${sheetUrl(tile.sheet)}")`;
  element.style.backgroundSize = `${(100 * sheetWidth) / width}% ${(100 * sheetHeight) / height}%`;
  element.style.backgroundPosition = `${along(x, width, sheetWidth)} ${along(y, height, sheetHeight)}`;
}

const lazyTiles = new IntersectionObserver(
  (entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      lazyTiles.unobserve(entry.target);
      paintTile(entry.target);
    }
  },
  { rootMargin: "400px" },
);

// the whole image in the middle of a square
function picture(image, extra = "") {
  const tile = tileOf(image);
  if (!tile) return h("span", { class: `picture no-picture ${extra}`, dataset: { image } });
  const pixels = h("span", { class: Math.max(tile.width, tile.height) < 64 ? "pixels small" : "pixels", dataset: { image } });
  pixels.style.aspectRatio = `${tile.width} / ${tile.height}`;
  pixels.style[tile.width >= tile.height ? "width" : "height"] = "100%";
  lazyTiles.observe(pixels);
  return h("span", { class: `picture ${extra}`, dataset: { image } }, pixels);
}

// true classes, and whether two images have the same
const hasTruth = data.classes.length > 0;
const truthOf = (image) => (images.truth[image] < 0 ? null : data.classes[images.truth[image]]);
function agreement(image, other) {
  if (images.truth[image] < 0 || images.truth[other] < 0) return "";
  return images.truth[image] === images.truth[other] ? "right" : "wrong";
}
function neighboursOf(image) {
  const index = tileIndex[image];
  if (index < 0) return [];
  const k = images.neighboursPerImage;
  return Array.from(images.neighbours.subarray(index * k, (index + 1) * k));
}

// the previous category of each image that moved since the previous run
const previousCategory = new Map();
if (data.changes) {
  const origin = unpack(data.changes.origin);
  unpack(data.changes.image).forEach((image, i) => previousCategory.set(image, data.changes.origins[origin[i]]));
}

// adds items to the galleries of a page until it is so high
function fillTo(height) {
  for (const container of document.querySelectorAll("#main .lazy"))
    while (document.documentElement.scrollHeight < height && container.addMore());
}

// labelled images that look like another category, most striking first
const likelyClass = new Map();
{
  const [others, margins] = [unpack(data.mislabelled.other), unpack(data.mislabelled.margin)];
  unpack(data.mislabelled.image).forEach((image, i) => likelyClass.set(image, { other: others[i], margin: margins[i] }));
}

// fills a container with items; more are added when its end is near the screen, or by its method addMore
function fillLazily(container, items, render, step = 120) {
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
