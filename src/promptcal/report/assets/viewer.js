// One image in large, its facts, and its nearest neighbours.
const viewer = (() => {
  const dialog = document.getElementById("viewer");
  let list = [];
  let position = 0;

  const fact = (name, ...value) => [h("dt", {}, name), h("dd", {}, ...value)];
  const chip = (cluster) =>
    h("a", { class: "chip", href: `#cluster-${decisions.rootOf(cluster)}`, onclick: close },
      swatch(decisions.rootOf(cluster)), decisions.nameOf(cluster));

  function facts(image) {
    const truth = truthOf(image);
    const second = images.second[image];
    return h("dl", {},
      fact("Cluster", chip(images.cluster[image])),
      previousCategory.has(image) ? fact("Previous category", previousCategory.get(image)) : null,
      fact("Confidence", decimal(images.confidence[image], 3)),
      images.stability ? fact("Stability", h("span", { title: "Share of the read-outs from other starts that agree on the cluster" }, decimal(images.stability[image]))) : null,
      Number.isFinite(images.margin[image]) && decisions.rootOf(second) !== decisions.rootOf(images.cluster[image]) && fact("Second best", chip(second), ` margin ${decimal(images.margin[image], 3)}`),
      images.labelled[image] ? fact("Given label", clusters[images.cluster[image]].label) : null,
      likelyClass.has(image) ? fact("Looks like", chip(likelyClass.get(image).other)) : null,
      decisions.labelGiven(image) !== null ? fact("Your label", h("span", { id: "your-label" }, decisions.labelGiven(image))) : null,
      truth !== null && fact("True class", truth),
    );
  }

  function labelForm(image) {
    const input = h("input", { type: "text", id: "label-image", placeholder: "Label this image as …", "aria-label": "Label of this image", maxLength: 200, autocomplete: "off", list: "category-names", value: decisions.labelGiven(image) ?? "" });
    return h("form", { class: "inline", onsubmit: (event) => { event.preventDefault(); decisions.labelImages([image], input.value); update(); } },
      input, h("button", { type: "submit", id: "save-label" }, "Label"));
  }

  // address of the image file, if it exists on this computer; everything but the slash is escaped
  function fileUrl(image) {
    const name = images.paths[image];
    const full = /^\/|^[A-Za-z]:[\\/]/.test(name) ? name : `${data.folder}/${name}`;
    const path = /^[A-Za-z]:/.test(full) ? `/${full.replaceAll("\\", "/")}` : full; // a path of Windows
    return `file://${path.split("/").map(encodeURIComponent).join("/").replace(/^\/([A-Za-z])%3A\//, "/$1:/")}`;
  }

  function update() {
    const image = list[position];
    const near = neighboursOf(image);
    const isWrong = decisions.isWrong(image);
    const full = data.root ? `${data.root.replace(/[\\/]$/, "")}/${images.paths[image]}` : images.paths[image];
    setChildren(dialog,
      h("div", { class: "viewer-head" },
        h("button", { type: "button", class: "icon", title: "Previous", disabled: position === 0, onclick: () => step(-1) }, "‹"),
        h("span", {}, `${count(position + 1)} of ${count(list.length)}`),
        h("button", { type: "button", class: "icon", title: "Next", disabled: position >= list.length - 1, onclick: () => step(1) }, "›"),
        h("span", { class: "space" }),
        h("button", { type: "button", class: isWrong ? "mark on" : "mark", id: "mark-wrong", title: "Key x",
          "aria-pressed": String(isWrong), onclick: mark }, isWrong ? "Marked as wrong" : "Mark as wrong"),
        h("button", { type: "button", class: "icon", title: "Close", id: "close-viewer", onclick: close }, "✕")),
      h("div", { class: "viewer-body" },
        h("div", { class: "large" }, picture(image, isWrong ? "is-wrong" : "")),
        h("div", {}, facts(image), labelForm(image), h("p", { class: "path", id: "viewer-path" }, full),
          data.folder ? h("p", {}, h("a", { id: "open-file", href: fileUrl(image), target: "_blank", rel: "noopener noreferrer" }, "Open the image file")) : null)),
      near.length ? h("h3", {}, "Nearest neighbours") : null,
      h("div", { class: "near" }, near.map((other) =>
        h("button", { type: "button", class: "thumb", title: images.paths[other], onclick: () => open(other, near) },
          picture(other, agreement(image, other)), h("span", { class: "caption" }, truthOf(other) ?? decisions.nameOf(images.cluster[other]))))),
    );
  }

  function open(image, gallery = [image]) {
    list = gallery;
    position = Math.max(0, gallery.indexOf(image));
    update();
    if (!dialog.open) dialog.showModal();
    dialog.scrollTop = 0;
  }
  function close() { if (dialog.open) dialog.close(); }
  function step(by) { if (list[position + by] !== undefined) { position += by; update(); } }
  function mark() { decisions.toggleWrong([list[position]]); update(); }

  dialog.addEventListener("click", (event) => { if (event.target === dialog) close(); });
  dialog.addEventListener("keydown", (event) => {
    if (isTyping(event.target)) return;
    if (event.key === "ArrowLeft") step(-1);
    if (event.key === "ArrowRight") step(1);
    if (event.key === "x") mark();
    if (event.key === "l") { dialog.querySelector("#label-image").focus(); event.preventDefault(); }
  });
  return { open, close };
})();

const swatch = (cluster) => {
  const mark = h("span", { class: clusters[cluster].known ? "swatch" : "swatch diamond" });
  mark.style.backgroundColor = clusterColour(cluster);
  return mark;
};

// A thumbnail. A click opens the viewer; in its corner, with Ctrl or Shift, or in selecting mode, it selects.
function thumb(image, gallery, caption) {
  const button = h("button", { type: "button", class: "thumb", title: images.paths[image], dataset: { thumb: image } },
    picture(image), h("span", { class: "corner" }), h("span", { class: "tag" }), caption ? h("span", { class: "caption" }, caption) : null);
  if (images.labelled[image]) button.classList.add("labelled");
  showState(button);
  button.addEventListener("click", (event) => {
    if (event.shiftKey) selection.extendTo(image, gallery);
    else if (selection.isOn() || event.ctrlKey || event.metaKey || event.target.classList.contains("corner")) selection.toggle(image);
    else viewer.open(image, gallery);
  });
  return button;
}

function showState(element) {
  const image = Number(element.dataset.thumb);
  element.classList.toggle("is-wrong", decisions.isWrong(image));
  element.classList.toggle("is-selected", selection.has(image));
  const label = decisions.labelGiven(image);
  element.classList.toggle("has-label", label !== null);
  element.querySelector(".tag").textContent = label ?? "";
}
const showStates = () => { for (const element of document.querySelectorAll("[data-thumb]")) showState(element); };
decisions.onChange(showStates);
selection.onChange(showStates);
