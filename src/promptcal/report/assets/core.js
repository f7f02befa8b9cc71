// Data, and thumbnails from the sprite sheets.
const data = JSON.parse(document.getElementById("data").textContent);
const images = { paths: data.images.paths, neighboursPerImage: data.images.neighboursPerImage };
for (const [name, column] of Object.entries(data.images)) if (column && column.type) images[name] = unpack(column);
const coordinates = unpack(data.map);
const clusters = data.clusters;
const N = images.paths.length;

const tileIndex = positionsOf(images.shown, N);

const clusterColour = (cluster) => colourOf(clusters[cluster].colour);
const classColour = (number) => colourOf(number);

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

const { hasTruth, truthOf, agreement } = createTruth(data.classes, images.truth);
const neighboursOf = createNeighbours(images, tileIndex);

const previousCategory = createOrigins(data.changes);

// adds items to the galleries of a page until it is so high
function fillTo(height) {
  for (const container of document.querySelectorAll("#main .lazy"))
    while (document.documentElement.scrollHeight < height && container.addMore());
}

const likelyClass = createLikelyClasses(data.mislabelled);
