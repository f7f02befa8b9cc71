// The field that names a cluster. A name that exists already, in any letter case, is an offer to merge.
// plan(cluster, target) is called before the cluster is named, or merged into the target, and returns what to do then.
function nameField(cluster, plan) {
  const offer = h("div", { class: "offer", hidden: true, role: "alert" });
  const input = h("input", { type: "text", class: "name", placeholder: "Name this category", value: decisions.givenName(cluster), maxLength: 200, autocomplete: "off", list: "category-names", "aria-label": `Name of ${clusters[cluster].name}`, oninput: () => { offer.hidden = true; } });

  function keep() {
    const then = plan(cluster, -1);
    decisions.name(cluster, input.value);
    then();
  }

  function merge(target) {
    const then = plan(cluster, target);
    decisions.merge(cluster, target);
    then();
  }

  function ask(target) {
    const name = decisions.nameOf(target);
    const isSame = name === input.value.trim();
    setChildren(offer,
      h("span", {}, "The category ", h("strong", {}, name), ` exists, with ${plural(membersOf(target).length, "image")}.`),
      h("button", { type: "button", class: "primary merge-offer", onclick: () => merge(target) }, "Merge"),
      isSame ? null : h("button", { type: "button", class: "keep-name", onclick: keep }, "Keep as its own"),
      h("button", { type: "button", onclick: () => { offer.hidden = true; input.focus(); input.select(); } }, "Change the name"));
    offer.hidden = false;
    offer.querySelector(".merge-offer").focus();
  }

  const form = h("form", { class: "name-form", dataset: { name: cluster }, onsubmit: (event) => {
    event.preventDefault();
    const target = input.value.trim() ? decisions.categoryNamed(input.value, cluster) : -1;
    if (target >= 0) ask(target); else keep();
  } }, h("span", { class: "inline" }, input, h("button", { type: "submit", class: "save-name" }, "Save")), offer);
  return form;
}

// the names that fields suggest
function updateNames() {
  const options = decisions.roots().map((c) =>
    h("option", { value: decisions.nameOf(c), label: `${clusters[c].known ? "known" : "new"}, ${plural(membersOf(c).length, "image")}` }));
  setChildren(document.getElementById("category-names"), options, decisions.extraNames().map((name) => h("option", { value: name })));
}
