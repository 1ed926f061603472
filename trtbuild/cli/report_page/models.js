// The partitions of each model, and the layers of the engines.

const MOST_CHIPS = 8, PARTS_ON_A_PAGE = 20;

function modelsView(chosenModel) {
  if (!data.packages.length) return [section("Models", el("p.empty", {}, "This build wrote no package that can be read."))];
  const shown = data.packages.find((view) => view.model === chosenModel) ?? data.packages[0];
  const choice = el("select", {"aria-label": "Model", onchange: () => go("models", choice.value)},
    ...data.packages.map((view) => el("option", {value: view.model, selected: view === shown}, view.model)));
  return [
    el("section", {},
      el("div.head", {}, el("h2", {}, shown.model), data.packages.length > 1 ? el("div.controls", {}, choice) : null),
      facts([
        ["signature", el("code", {}, shown.signature)],
        ["precision", shown.precision],
        ["package", el("code", {}, shown.path)],
      ])),
    ...shown.cuts.map((cut) => cutSection(shown, cut)),
  ];
}

function cutSection(view, cut) {
  const kinds = {tensorrt: 0, torch: 0};
  for (const part of cut.partitions) kinds[part.kind]++;
  const list = el("div.parts"), pager = el("div.pager");
  let page = 0;
  const pages = Math.ceil(cut.partitions.length / PARTS_ON_A_PAGE);

  function show(next, focus = null) {
    page = next;
    const shown = cut.partitions.slice(page * PARTS_ON_A_PAGE, (page + 1) * PARTS_ON_A_PAGE);
    list.replaceChildren(...shown.map((part) => partCard(view, cut, part)));
    pager.hidden = pages < 2;
    pager.replaceChildren(el("span", {}, `page ${page + 1} of ${pages}`),
      el("button.quiet", {type: "button", disabled: page === 0, onclick: () => show(page - 1)}, "Previous"),
      el("button.quiet", {type: "button", disabled: page >= pages - 1, onclick: () => show(page + 1)}, "Next"));
    if (focus !== null) list.children[focus % PARTS_ON_A_PAGE].scrollIntoView({block: "center"});
  }

  const map = el("div.map", {}, ...cut.partitions.slice(0, 400).map((part, position) => {
    const block = el(`button.${part.kind}`, {type: "button", title: `${part.name}: ${count(part.calls, "call")}`,
      "aria-label": part.name, onclick: () => show(Math.floor(position / PARTS_ON_A_PAGE), position)},
    cut.partitions.length <= 24 ? part.name : "");
    block.style.flexGrow = Math.max(1, Math.sqrt(part.calls));
    return block;
  }));
  show(0);
  return el("section", {},
    el("div.head", {}, el("h2", {}, `Partitions for ${cut.targets.join(", ")}`),
      el("span.soft", {}, `${kinds.tensorrt} in TensorRT, ${kinds.torch} in PyTorch`)),
    map, list, pager);
}

function partCard(view, cut, part) {
  const modules = Object.entries(part.modules);
  const reasons = Object.entries(part.reasons);
  const layers = part.kind === "tensorrt"
    ? el("a", {href: `#layers/${encodeURIComponent(engineName(view.model, part.name, cut.targets[0]))}`}, "layers") : null;
  return el(`article.part.${part.kind}`, {},
    el("div.row", {}, el("h3", {}, part.name), badge(part.kind, part.kind === "tensorrt" ? "TensorRT" : "PyTorch"),
      el("span.soft", {}, count(part.calls, "call")), layers),
    facts([
      ["reads", part.reads.join(", ") || "nothing"],
      ["returns", el("code", {}, part.outputs.slice(0, 12).join(", "))],
      ["computes in", part.types.join(", ")],
      ["modules", modules.length ? el("div.chips", {}, ...modules.slice(0, MOST_CHIPS).map(([path]) => el("span.chip", {}, path)),
        modules.length > MOST_CHIPS ? el("span.soft", {}, `and ${number(modules.length - MOST_CHIPS)} more`) : null) : null],
      ["in PyTorch because", reasons.length ? el("dl.reasons", {}, ...reasons.map(([operator, reason]) =>
        [el("dt", {}, el("code", {}, operator)), el("dd", {}, reason)])) : null],
    ]));
}

function engineName(model, partition, target) { return `${model}/${partition}@${target}`; }

function layersView(chosenEngine) {
  const names = data.engines.map((engine) => engineName(engine.model, engine.partition, engine.target));
  if (!data.layers.length) return [section("Layers", el("p.empty", {}, "No package of this build lists the layers of its engines."))];
  const column = (title, index, kind = "") => ({title, kind, cell: (layer) => layer[index] || "–", order: (layer) => layer[index]});
  const left = data.layers_left_out;
  return [tableSection({
    title: count(data.layers.length, "layer"),
    note: left ? `${count(left, "more layer")} with trtbuild inspect MODEL --layers` : "",
    rows: data.layers,
    text: (layer) => `${layer.slice(1).join(" ")} ${names[layer[0]]}`,
    filters: [
      {title: "engine", value: (layer) => names[layer[0]], selected: chosenEngine},
      {title: "type", value: (layer) => layer[2]},
    ],
    columns: [
      column("layer", 1, "text"), column("type", 2), column("module", 3, "text"), column("operator", 4, "text"),
      column("reads", 5), column("writes", 6),
      {title: "engine", kind: "text", cell: (layer) => names[layer[0]], order: (layer) => names[layer[0]]},
    ],
  })];
}
