// The map of the report.
function mapView() {
  function listed(list, close) {
    const counts = new Map();
    for (const image of list) {
      const root = decisions.rootOf(images.cluster[image]);
      counts.set(root, (counts.get(root) || 0) + 1);
    }
    const gallery = h("div", { class: "gallery captions" });
    fillLazily(gallery, list, (image) => thumb(image, list, decisions.nameOf(images.cluster[image])));
    return [
      h("h3", { id: "lasso-count" }, `${plural(list.length, "image")} in the lasso`),
      h("div", { class: "toolbar" },
        [...counts].sort((a, b) => b[1] - a[1]).slice(0, 12).map(([c, n]) => h("a", { class: "chip", href: `#cluster-${c}` }, swatch(c), decisions.nameOf(c), ` ${count(n)}`)),
        h("button", { type: "button", id: "close-lasso", onclick: close }, "Close")),
      gallery,
    ];
  }

  const isCluster = (colouring) => colouring === "cluster";
  return createMap({
    shown: images.shown,
    coordinates,
    selection,
    listed,
    order: () => images.order,
    colourings: [["cluster", "Colour by cluster"], ...(hasTruth ? [["truth", "Colour by true class"]] : [])],
    groupOf: (image, colouring) => (isCluster(colouring) ? decisions.rootOf(images.cluster[image]) : images.truth[image]),
    colour: (group, colouring) => (group < 0 ? "#888888" : isCluster(colouring) ? clusterColour(group) : classColour(group)),
    groupName: (group, colouring) => (group < 0 ? "unknown" : isCluster(colouring) ? decisions.nameOf(group) : data.classes[group]),
    isNewGroup: (group, colouring) => isCluster(colouring) && !clusters[group].known,
    isNew: (image) => !clusters[images.cluster[image]].known,
    pictureOf: (image, redraw) => { const tile = tileOf(image); return { ...tile, source: sheetImage(tile.sheet, redraw) }; },
    describe: (image) => [
      picture(image), h("strong", {}, decisions.nameOf(images.cluster[image])),
      truthOf(image) !== null ? h("span", {}, `true class: ${truthOf(image)}`) : null,
      h("span", { class: "muted" }, images.paths[image].slice(-60)),
    ],
    open: (image) => viewer.open(image, [image, ...neighboursOf(image)]),
    about: [
      "t-SNE of the embeddings: near points are similar images; large distances have no meaning. ● known ◆ discovered. Zoom in to see the images. Click a name to highlight it.",
      ...(images.shown.length < N ? [`${count(images.shown.length)} of ${count(N)} images, from all clusters.`] : []),
    ],
  });
}
