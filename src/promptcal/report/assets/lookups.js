// What the columns of a run say of single images, for the report and the labelling app.
import { unpack } from "./dom.js";

// position of each image among the shown images, or -1
export function positionsOf(shown, n) {
  const positions = new Int32Array(n).fill(-1);
  shown.forEach((image, index) => { positions[image] = index; });
  return positions;
}

// true classes, and whether two images have the same
export function createTruth(classes, truth) {
  const truthOf = (image) => (truth[image] < 0 ? null : classes[truth[image]]);
  const agreement = (image, other) => (truth[image] < 0 || truth[other] < 0 ? "" : truth[image] === truth[other] ? "right" : "wrong");
  return { hasTruth: classes.length > 0, truthOf, agreement };
}

// the nearest shown images of a shown image
export const createNeighbours = ({ neighbours, neighboursPerImage: k }, positions) => (image) =>
  (positions[image] < 0 ? [] : Array.from(neighbours.subarray(positions[image] * k, (positions[image] + 1) * k)));

// the previous category of each image that moved since the previous run
export function createOrigins(changes) {
  const previous = new Map();
  if (!changes) return previous;
  const origin = unpack(changes.origin);
  unpack(changes.image).forEach((image, i) => previous.set(image, changes.origins[origin[i]]));
  return previous;
}

// labelled images that look like another category, most striking first
export function createLikelyClasses(mislabelled) {
  const likely = new Map();
  const [others, margins] = [unpack(mislabelled.other), unpack(mislabelled.margin)];
  unpack(mislabelled.image).forEach((image, i) => likely.set(image, { other: others[i], margin: margins[i] }));
  return likely;
}
