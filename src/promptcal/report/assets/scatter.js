// A map of images: a point for each; zoom, pan, hover, lasso. At high zoom, points become thumbnails.
// The host has what it shows: shown (images), coordinates, order() (all images, the most typical first), colourings
// (pairs of key and text), groupOf(image, colouring), colour(group, colouring), groupName(group, colouring),
// isNewGroup(group, colouring), isNew(image), selection, pictureOf(image, redraw) with source (null until it is loaded),
// x, y, width and height, describe(image) for the tip, open(image), listed(images, close) for what is in the lasso, and
// about (texts).
import { count, h, setChildren } from "./dom.js";

export function createMap(host) {
  const { coordinates, shown, selection } = host;
  const canvas = h("canvas", { id: "map-canvas", tabIndex: 0, "aria-label": "Map of the images. Drag or arrows move it, the wheel or + and - zoom, Enter selects what is in view." });
  const tip = h("div", { class: "tip", hidden: true });
  const legend = h("div", { class: "legend", id: "legend" });
  const lassoed = h("div", { id: "lassoed" });
  const lassoButton = h("button", { type: "button", id: "lasso", "aria-pressed": "false", title: "Or hold Shift and drag", onclick: () => setLasso(!lassoing) }, "Lasso");
  const n = shown.length;
  const points = { x: new Float32Array(n), y: new Float32Array(n) };
  let viewport = { scale: 1, x: 0, y: 0 };
  let size = { width: 0, height: 0 };
  let colouring = host.colourings[0][0];
  const indexOf = new Map(Array.from(shown, (image, i) => [image, i]));
  let onlyGroup = -1; // the only group that is not dimmed, or -1
  let lassoing = false;
  let polygon = null;
  let showsNames = true;
  let isRedrawPending = false;
  let centres = []; // of the groups, for their names
  let listed = []; // images in the lasso

  const group = (i) => host.groupOf(shown[i], colouring);
  const colour = (number) => host.colour(number, colouring);
  const isNew = (i) => host.isNew(shown[i]);

  function project() {
    const unit = Math.min(size.width, size.height) * 0.47 * viewport.scale;
    for (let i = 0; i < n; i++) {
      points.x[i] = size.width / 2 + viewport.x + coordinates[2 * i] * unit;
      points.y[i] = size.height / 2 + viewport.y - coordinates[2 * i + 1] * unit;
    }
  }

  function draw() {
    isRedrawPending = false;
    const ratio = window.devicePixelRatio || 1;
    const context = canvas.getContext("2d");
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, size.width, size.height);
    project();
    const visible = [];
    for (let i = 0; i < n; i++)
      if (points.x[i] > -30 && points.y[i] > -30 && points.x[i] < size.width + 30 && points.y[i] < size.height + 30) visible.push(i);
    const asThumbnails = viewport.scale > 2.5 && visible.length <= 600;
    canvas.dataset.thumbnails = String(asThumbnails);
    if (asThumbnails) drawThumbnails(context, visible);
    else drawPoints(context, visible);
    if (showsNames) drawNames(context);
    if (polygon) drawPolygon(context);
  }

  function drawPoints(context, visible) {
    const base = Math.max(1.6, Math.min(4, 130 / Math.sqrt(n))) * Math.min(2.2, Math.sqrt(viewport.scale));
    const groups = new Map();
    for (const i of visible) {
      const g = group(i);
      if (!groups.has(g)) groups.set(g, []);
      groups.get(g).push(i);
    }
    for (const [g, members] of [...groups].sort((a, b) => (a[0] === onlyGroup) - (b[0] === onlyGroup))) {
      context.fillStyle = colour(g);
      context.globalAlpha = onlyGroup >= 0 && g !== onlyGroup ? 0.12 : 0.88;
      context.beginPath();
      for (const i of members) {
        const x = points.x[i];
        const y = points.y[i];
        const r = selection.has(shown[i]) ? base * 1.6 : base;
        if (isNew(i)) {
          const d = r * 1.25;
          context.moveTo(x, y - d); context.lineTo(x + d, y); context.lineTo(x, y + d); context.lineTo(x - d, y);
          context.closePath();
        } else {
          context.moveTo(x + r, y);
          context.arc(x, y, r, 0, 2 * Math.PI);
        }
      }
      context.fill();
    }
    context.globalAlpha = 1;
    if (selection.size()) {
      context.strokeStyle = getComputedStyle(canvas).color;
      context.lineWidth = 1;
      context.beginPath();
      for (const i of visible) {
        if (!selection.has(shown[i])) continue;
        context.moveTo(points.x[i] + base * 2.1, points.y[i]);
        context.arc(points.x[i], points.y[i], base * 2.1, 0, 2 * Math.PI);
      }
      context.stroke();
    }
  }

  function drawThumbnails(context, visible) {
    const side = Math.max(22, Math.min(56, 9 * viewport.scale));
    for (const i of visible) {
      const tile = host.pictureOf(shown[i], redraw);
      const scale = side / Math.max(tile.width, tile.height);
      const width = tile.width * scale;
      const height = tile.height * scale;
      const left = points.x[i] - width / 2;
      const top = points.y[i] - height / 2;
      const g = group(i);
      context.globalAlpha = onlyGroup >= 0 && g !== onlyGroup ? 0.15 : 1;
      context.fillStyle = selection.has(shown[i]) ? getComputedStyle(canvas).color : colour(g);
      context.fillRect(left - 2, top - 2, width + 4, height + 4);
      if (tile.source) context.drawImage(tile.source, tile.x, tile.y, tile.width, tile.height, left, top, width, height);
    }
    context.globalAlpha = 1;
  }

  // the middle of each group: the medians of its coordinates
  function middles() {
    const members = new Map();
    for (let i = 0; i < n; i++) {
      if (!members.has(group(i))) members.set(group(i), []);
      members.get(group(i)).push(i);
    }
    const median = (list, axis) => list.map((i) => coordinates[2 * i + axis]).sort((a, b) => a - b)[list.length >> 1];
    return [...members].map(([g, list]) => ({ group: g, size: list.length, x: median(list, 0), y: median(list, 1) }))
      .sort((a, b) => b.size - a.size);
  }

  // names of the largest groups first; a name that would cover another is left out
  function drawNames(context) {
    const unit = Math.min(size.width, size.height) * 0.47 * viewport.scale;
    const style = getComputedStyle(canvas);
    const taken = [];
    context.font = `600 13px ${style.fontFamily}`;
    context.textAlign = "center";
    context.textBaseline = "middle";
    context.lineJoin = "round";
    const namesDrawn = [];
    for (const { group: g, x, y } of centres) {
      if (g < 0 || (onlyGroup >= 0 && g !== onlyGroup)) continue;
      const name = groupName(g);
      const text = name.length > 26 ? `${name.slice(0, 25)}…` : name;
      const [left, top] = [size.width / 2 + viewport.x + x * unit, size.height / 2 + viewport.y - y * unit];
      const half = context.measureText(text).width / 2 + 4;
      const box = [left - half, top - 10, left + half, top + 10];
      if (taken.some((other) => box[0] < other[2] && box[2] > other[0] && box[1] < other[3] && box[3] > other[1])) continue;
      taken.push(box);
      namesDrawn.push(text);
      context.lineWidth = 4;
      context.strokeStyle = style.backgroundColor;
      context.strokeText(text, left, top);
      context.fillStyle = style.color;
      context.fillText(text, left, top);
    }
    canvas.dataset.names = JSON.stringify(namesDrawn);
  }

  function drawPolygon(context) {
    const ink = getComputedStyle(canvas).color;
    context.beginPath();
    polygon.forEach(([x, y], k) => (k ? context.lineTo(x, y) : context.moveTo(x, y)));
    context.closePath();
    context.globalAlpha = 0.08;
    context.fillStyle = ink;
    context.fill();
    context.globalAlpha = 1;
    context.strokeStyle = ink;
    context.setLineDash([4, 3]);
    context.stroke();
    context.setLineDash([]);
  }

  function redraw() {
    if (isRedrawPending) return;
    isRedrawPending = true;
    requestAnimationFrame(draw);
  }

  function fit() {
    const box = canvas.getBoundingClientRect();
    const ratio = window.devicePixelRatio || 1;
    size = { width: box.width, height: box.height };
    canvas.width = Math.round(box.width * ratio);
    canvas.height = Math.round(box.height * ratio);
    redraw();
  }

  function zoom(factor, x = size.width / 2, y = size.height / 2) {
    const scale = Math.max(0.5, Math.min(80, viewport.scale * factor));
    const by = scale / viewport.scale;
    viewport = {
      scale,
      x: (viewport.x - (x - size.width / 2)) * by + (x - size.width / 2),
      y: (viewport.y - (y - size.height / 2)) * by + (y - size.height / 2),
    };
    redraw();
  }

  function nearest(x, y) {
    let best = -1;
    let closest = 18 ** 2;
    for (let i = 0; i < n; i++) {
      const distance = (points.x[i] - x) ** 2 + (points.y[i] - y) ** 2;
      if (distance < closest) { closest = distance; best = i; }
    }
    return best;
  }

  function hover(x, y) {
    const point = nearest(x, y);
    tip.hidden = point < 0;
    canvas.style.cursor = lassoing ? "crosshair" : point < 0 ? "grab" : "pointer";
    if (point < 0) return;
    const image = shown[point];
    if (tip.dataset.image !== String(image)) {
      tip.dataset.image = image;
      setChildren(tip, host.describe(image));
    }
    const isOnTheRight = x > size.width / 2;
    tip.style.left = isOnTheRight ? "auto" : `${x + 16}px`;
    tip.style.right = isOnTheRight ? `${size.width - x + 16}px` : "auto";
    tip.style.top = `${Math.max(0, Math.min(y - 60, size.height - 210))}px`;
  }

  function setLasso(on) {
    lassoing = on;
    lassoButton.setAttribute("aria-pressed", String(on));
    canvas.style.cursor = on ? "crosshair" : "grab";
  }

  function inside(x, y) {
    let within = false;
    for (let i = 0, j = polygon.length - 1; i < polygon.length; j = i++) {
      const [ax, ay] = polygon[i];
      const [bx, by] = polygon[j];
      if (ay > y !== by > y && x < ((bx - ax) * (y - ay)) / (by - ay) + ax) within = !within;
    }
    return within;
  }

  function selectInside() {
    project(); // a key may have moved the map since it was drawn
    const list = Array.from(host.order()).filter((image) => {
      const i = indexOf.get(image);
      return i !== undefined && inside(points.x[i], points.y[i]);
    });
    polygon = null;
    setLasso(false);
    listInside(list);
    selection.set(list);
  }

  function listInside(list) {
    listed = list;
    if (!list.length) { lassoed.replaceChildren(); return; }
    setChildren(lassoed, host.listed(list, () => { listInside([]); selection.clear(); }));
  }

  const groupName = (g) => host.groupName(g, colouring);

  function fillLegend() {
    centres = middles();
    const present = new Map();
    for (let i = 0; i < n; i++) present.set(group(i), (present.get(group(i)) || 0) + 1);
    legend.replaceChildren(...[...present.keys()].sort((a, b) => a - b).map((g) => {
      const mark = h("span", { class: host.isNewGroup(g, colouring) ? "swatch diamond" : "swatch" });
      mark.style.backgroundColor = colour(g);
      const name = groupName(g);
      return h("button", { type: "button", class: "chip", "aria-pressed": String(onlyGroup === g), title: "Show only this", onclick: () => {
        onlyGroup = onlyGroup === g ? -1 : g;
        fillLegend();
        redraw();
      } }, mark, h("span", { class: "legend-name" }, name), h("span", { class: "muted" }, count(present.get(g))));
    }));
  }

  // one finger or the mouse pans or draws the lasso; two fingers zoom
  const pointers = new Map();
  let moved = 0;
  const position = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, position(event));
    moved = 0;
    if ((lassoing || event.shiftKey) && pointers.size === 1) polygon = [position(event)];
    tip.hidden = true;
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = position(event);
    const before = pointers.get(event.pointerId);
    if (!before) { if (event.pointerType === "mouse") hover(x, y); return; }
    if (polygon) {
      polygon.push([x, y]);
      redraw();
    } else if (pointers.size === 1) {
      viewport = { ...viewport, x: viewport.x + x - before[0], y: viewport.y + y - before[1] };
      redraw();
    } else {
      const [other] = [...pointers].find(([id]) => id !== event.pointerId);
      const [ox, oy] = pointers.get(other);
      const was = Math.hypot(before[0] - ox, before[1] - oy);
      zoom(Math.hypot(x - ox, y - oy) / Math.max(was, 1), (x + ox) / 2, (y + oy) / 2);
    }
    moved += Math.hypot(x - before[0], y - before[1]);
    pointers.set(event.pointerId, [x, y]);
  });
  const release = (event) => {
    if (!pointers.delete(event.pointerId)) return;
    if (polygon) {
      if (polygon.length > 2) selectInside();
      else { polygon = null; setLasso(false); redraw(); }
    } else if (event.type === "pointerup" && moved < 5) {
      const hit = nearest(...position(event));
      if (hit >= 0) host.open(shown[hit]);
    }
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("pointerleave", () => { tip.hidden = true; });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    zoom(Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0015)), ...position(event));
    tip.hidden = true;
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    const steps = { ArrowLeft: [40, 0], ArrowRight: [-40, 0], ArrowUp: [0, 40], ArrowDown: [0, -40] };
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "+" || event.key === "=") zoom(1.3);
    else if (event.key === "-") zoom(1 / 1.3);
    else if (event.key === "Enter") { polygon = [[0, 0], [size.width, 0], [size.width, size.height], [0, size.height]]; selectInside(); }
    else if (steps[event.key]) { viewport = { ...viewport, x: viewport.x + steps[event.key][0], y: viewport.y + steps[event.key][1] }; redraw(); }
    else return;
    event.preventDefault();
  });
  new ResizeObserver(fit).observe(canvas);

  const colourBy = h("select", { id: "colour-by", "aria-label": "Colour by", onchange: (event) => { colouring = event.target.value; onlyGroup = -1; fillLegend(); redraw(); } },
    host.colourings.map(([value, text]) => h("option", { value }, text)));
  const namesButton = h("button", { type: "button", id: "names", "aria-pressed": "true", onclick: () => {
    showsNames = !showsNames;
    namesButton.setAttribute("aria-pressed", String(showsNames));
    redraw();
  } }, "Names");
  const view = h("section", {},
    h("div", { class: "toolbar" }, host.colourings.length > 1 ? colourBy : null, lassoButton, namesButton,
      h("span", { class: "joined" },
        h("button", { type: "button", title: "Zoom in", onclick: () => zoom(1.5) }, "+"),
        h("button", { type: "button", title: "Zoom out", onclick: () => zoom(1 / 1.5) }, "−"),
        h("button", { type: "button", onclick: () => { viewport = { scale: 1, x: 0, y: 0 }; redraw(); } }, "Reset"))),
    h("div", { class: "map-layout" },
      h("div", { class: "map-box" }, canvas, tip),
      h("div", {}, legend,
        host.about.map((text) => h("p", { class: "muted" }, text)))),
    lassoed);
  fillLegend();
  return { view, keepsState: true, gallery: () => listed, refresh: (categoriesChanged) => { if (categoriesChanged) { onlyGroup = -1; fillLegend(); } redraw(); } };
}
