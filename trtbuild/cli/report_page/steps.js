// The view of all steps with their reasons, and the view of the changes since the build before.

const stepById = new Map(data.steps.map((step) => [step.id, step]));

function stepsView(chosenId) {
  return [tableSection({
    title: "Steps",
    rows: data.steps,
    text: (step) => `${step.id} ${step.verdict} ${step.reason.code} ${step.reason.text} ${step.source || ""}`,
    filters: [
      {title: "verdict", value: (step) => step.verdict},
      {title: "stage", value: (step) => step.stage},
      {title: "reason", value: (step) => step.reason.code},
    ],
    chosen: chosenId ? (step) => step.id === chosenId : null,
    details: stepFacts,
    columns: [
      {title: "step", kind: "name", cell: (step) => step.id, order: (step) => step.id},
      {title: "verdict", cell: (step) => badge(step.verdict), order: (step) => step.verdict},
      {title: "why", kind: "text", cell: (step) => step.reason.text},
      {title: "time", kind: "n", cell: (step) => duration(step.duration_s), order: (step) => step.duration_s},
      {title: "saved", kind: "n", cell: (step) => duration(step.saved_s), order: (step) => step.saved_s},
      {title: "memory", kind: "n", cell: (step) => bytes(step.peak_rss_bytes), order: (step) => step.peak_rss_bytes ?? 0},
      {title: "results", kind: "n", cell: (step) => bytes(step.output_bytes), order: (step) => step.output_bytes},
      {title: "from", cell: (step) => step.source || "–"},
    ],
  })];
}

/** Why a step ran or was a hit, the facts about its run, and a table of the changed parts of its recipe. */
function stepFacts(step) {
  const changed = step.reason.changed;
  const waited = step.waited_for
    ? el("span", {}, stepLink(step.waited_for),
      step.waited_s >= 0.05 ? `; its inputs were ready ${duration(step.waited_s)} before it started` : "") : null;
  return el("div", {},
    facts([
      ["verdict", badge(step.verdict)],
      ["why", step.reason.text],
      ["started at", step.start_s === null ? null : duration(step.start_s)],
      ["took", step.start_s === null && !step.duration_s ? null : duration(step.duration_s)],
      ["saved", step.saved_s ? duration(step.saved_s) : null],
      ["worker", step.farm_worker ? `${step.worker}: ${step.farm_worker}` : step.worker],
      ["waited for", waited],
      ["memory peak", bytes(step.peak_rss_bytes)],
      ["results", bytes(step.output_bytes)],
      ["from", step.source],
      ["built by", [step.builder, step.finished].filter((part) => part).join(", ")],
      ["signed by", step.signer],
      ["not cached", step.uncacheable],
      ["key", step.key ? value(step.key) : null],
    ]),
    step.error ? problem({...step.error, step: null}) : null,
    changed.length ? el("table.changes", {},
      el("thead", {}, el("tr", {}, ...["part", "was", "now"].map((title) => el("th", {scope: "col"}, title)))),
      el("tbody", {}, ...changed.slice(0, 200).map((change) => el("tr", {},
        el("td", {title: change.part}, change.name || change.part), el("td", {}, value(change.was)), el("td", {}, value(change.now)))))) : null);
}

/** A value of a recipe, or a key. A digest is shown by its first digits, and a tooltip has all digits. */
function value(text) {
  return el("code", {title: text}, /^[0-9a-f]{64}$/.test(text) ? `${text.slice(0, 16)}…` : text);
}

function changesView() {
  const comparison = data.comparison;
  if (!comparison) return [section("Changes", el("p.empty", {}, "The build before is not known."))];
  const since = comparison.started.replace("T", " ").replace("Z", " UTC");
  const differing = comparison.steps.filter((step) => step.change !== "same").length;
  const change = {new: "new", removed: "removed", changed: "other key", failed: "failed", same: "same key"};
  return [
    section("The build before", facts([
      ["started", since],
      ["ended", comparison.status],
      ["time", `${duration(comparison.duration_before_s)} before, ${duration(comparison.duration_now_s)} now`],
      ["steps", `${number(differing)} with another result; ${number(comparison.steps.length - differing)} with the same `
        + `result and another verdict; ${number(comparison.unchanged)} without a difference`],
    ])),
    tableSection({
      title: "Steps that differ",
      rows: comparison.steps,
      text: (step) => `${step.id} ${step.reason}`,
      filters: [{title: "change", value: (step) => change[step.change]}],
      columns: [
        {title: "step", kind: "text", cell: (step) => (stepById.has(step.id) ? stepLink(step.id) : step.id), order: (step) => step.id},
        {title: "change", cell: (step) => change[step.change], order: (step) => step.change},
        {title: "before", cell: (step) => (step.verdict_before ? badge(step.verdict_before) : "–")},
        {title: "now", cell: (step) => (step.verdict_now ? badge(step.verdict_now) : "–")},
        {title: "time before", kind: "n", cell: (step) => duration(step.seconds_before), order: (step) => step.seconds_before ?? 0},
        {title: "time now", kind: "n", cell: (step) => duration(step.seconds_now), order: (step) => step.seconds_now ?? 0},
        {title: "size before", kind: "n", cell: (step) => bytes(step.bytes_before), order: (step) => step.bytes_before ?? 0},
        {title: "size now", kind: "n", cell: (step) => bytes(step.bytes_now), order: (step) => step.bytes_now ?? 0},
        {title: "why", kind: "text", cell: (step) => step.reason},
      ],
    }),
  ];
}
