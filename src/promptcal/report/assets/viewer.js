// One image large, what is known of it, and its nearest neighbours.
const viewer = (() => {
  const dialog = document.getElementById("viewer");
  let list = [];
  let at = 0;

  const fact = (name, ...value) => [h("dt", {}, name), h("dd", {}, ...value)];
  const chip = (cluster) =>
    h("a", { class: "chip", href: `#cluster-${decisions.rootOf(cluster)}`, onclick: close },
      swatch(decisions.rootOf(cluster)), decisions.nameOf(cluster));

  function facts(image) {
    const truth = truthOf(image);
    const second = images.second[image];
    return h("dl", {},
      fact("Cluster", chip(images.cluster[image])),
      movedFrom.has(image) ? fact("Before", movedFrom.get(image)) : null,
      fact("Confidence", decimal(images.confidence[image], 3)),
      Number.isFinite(images.margin[image]) && decisions.rootOf(second) !== decisions.rootOf(images.cluster[image]) && fact("Second best", chip(second), ` margin ${decimal(images.margin[image], 3)}`),
      images.labelled[image] ? fact("Label given", clusters[images.cluster[image]].label) : null,
      truth !== null && fact("Truth", truth),
    );
  }

  // the file itself, where it still lies on this machine; every character of its name but the slash is escaped
  function fileUrl(image) {
    const name = images.paths[image];
    const whole = /^\/|^[A-Za-z]:[\\/]/.test(name) ? name : `${data.folder}/${name}`;
    const path = /^[A-Za-z]:/.test(whole) ? `/${whole.replaceAll("\\", "/")}` : whole; // C:\ is a folder of Windows
    return `file://${path.split("/").map(encodeURIComponent).join("/").replace(/^\/([A-Za-z])%3A\//, "/$1:/")}`;
  }

  function show() {
    const image = list[at];
    const near = neighboursOf(image);
    const isWrong = decisions.isWrong(image);
    const full = data.root ? `${data.root.replace(/[\\/]$/, "")}/${images.paths[image]}` : images.paths[image];
    fill(dialog,
      h("div", { class: "viewer-head" },
        h("button", { type: "button", class: "icon", title: "Previous", disabled: at === 0, onclick: () => step(-1) }, "‹"),
        h("span", {}, `${count(at + 1)} of ${count(list.length)}`),
        h("button", { type: "button", class: "icon", title: "Next", disabled: at >= list.length - 1, onclick: () => step(1) }, "›"),
        h("span", { class: "space" }),
        h("button", { type: "button", class: isWrong ? "mark on" : "mark", id: "mark-wrong", title: "Key x",
          "aria-pressed": String(isWrong), onclick: mark }, isWrong ? "Marked wrong" : "Mark wrong"),
        h("button", { type: "button", class: "icon", title: "Close", id: "close-viewer", onclick: close }, "✕")),
      h("div", { class: "viewer-body" },
        h("div", { class: "large" }, picture(image, isWrong ? "is-wrong" : "")),
        h("div", {}, facts(image), h("p", { class: "path", id: "viewer-path" }, full),
          data.folder ? h("p", {}, h("a", { id: "open-file", href: fileUrl(image), target: "_blank", rel: "noopener noreferrer" }, "Open the file")) : null)),
      near.length ? h("h3", {}, "Nearest neighbours") : null,
      h("div", { class: "near" }, near.map((other) =>
        h("button", { type: "button", class: "thumb", title: images.paths[other], onclick: () => open(other, near) },
          picture(other, agreement(image, other)), h("span", { class: "caption" }, truthOf(other) ?? decisions.nameOf(images.cluster[other]))))),
    );
  }

  function open(image, among = [image]) {
    list = among;
    at = Math.max(0, among.indexOf(image));
    show();
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
  }
  function close() { if (dialog.open) dialog.close(); }
  function step(by) { if (list[at + by] !== undefined) { at += by; show(); } }
  function mark() { decisions.toggleWrong([list[at]]); show(); }

  dialog.addEventListener("click", (event) => { if (event.target === dialog) close(); });
  dialog.addEventListener("keydown", (event) => {
    if (event.key === "ArrowLeft") step(-1);
    if (event.key === "ArrowRight") step(1);
    if (event.key === "x") mark();
  });
  return { open, close };
})();

const swatch = (cluster) => {
  const mark = h("span", { class: clusters[cluster].known ? "swatch" : "swatch diamond" });
  mark.style.backgroundColor = clusterColour(cluster);
  return mark;
};

// A gallery's image: opens the viewer, or marks it wrong where the person is marking.
let marking = false;
function thumb(image, among, caption) {
  const button = h("button", { type: "button", class: "thumb", title: images.paths[image], dataset: { thumb: image } },
    picture(image), caption ? h("span", { class: "caption" }, caption) : null);
  if (images.labelled[image]) button.classList.add("labelled");
  if (decisions.isWrong(image)) button.classList.add("is-wrong");
  button.addEventListener("click", () => {
    if (marking) decisions.toggleWrong([image]);
    else viewer.open(image, among);
  });
  return button;
}
decisions.onChange(() => {
  for (const element of document.querySelectorAll("[data-thumb]"))
    element.classList.toggle("is-wrong", decisions.isWrong(Number(element.dataset.thumb)));
});
