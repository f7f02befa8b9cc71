// The images that the user has selected: one by one, from one to another, or all of a list.
export function createSelection() {
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
}
