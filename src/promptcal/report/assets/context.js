// What the pages that the labelling app shows, too, are made from.
const report = {
  data, images, swatch, thumb, withThumbnail, truthOf, hasTruth, agreement, neighboursOf, selection, selectButton, likelyClass, previousCategory,
  nameOf: (c) => decisions.nameOf(c),
  rootOf: (c) => decisions.rootOf(c),
  roots: () => decisions.roots(),
  hrefOf: (c) => `#cluster-${c}`,
  open: (image, list) => viewer.open(image, list),
  attentionUrl: () => blobUrl("attention-sheet"),
  labelAs: (pairs) => decisions.labelAsCategories(pairs),
  redraw: () => showPage(),
};
