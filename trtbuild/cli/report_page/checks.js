// The comparisons with PyTorch, and the latencies of trtbuild bench.

function checksView() {
  const parts = data.packages.flatMap((view) => [
    ...view.verified.map((entry) => verified(view, entry)),
    view.void ? section(view.model, el("p.warning", {}, view.void)) : null,
  ]).filter((part) => part);
  if (!parts.length) parts.push(section("Comparisons with PyTorch", el("p.empty", {}, "No comparison is recorded: trtbuild verify")));
  const benches = data.benches.map(bench);
  if (!benches.length) benches.push(section("Latencies", el("p.empty", {}, "No latencies are kept: trtbuild bench MODEL")));
  return [...parts, ...benches];
}

/** `value`, or an empty array if it is missing. A document of another version may lack it. */
function list(value) { return Array.isArray(value) ? value : []; }

/** The style of the badge of a status. */
function badgeStyle(status) { return ["right", "wrong", "unchecked"].includes(status) ? status : "skipped"; }

function verified(view, entry) {
  const tolerance = entry.tolerance;
  const rows = [...list(entry.partitions), entry.whole ? {...entry.whole, partition: "whole model"} : null].filter((row) => row);
  return el("section", {},
    el("div.head", {}, el("h2", {}, `${view.model}: ${entry.by} against ${entry.against ?? "PyTorch"}`),
      badge(badgeStyle(entry.status), String(entry.status))),
    facts([
      ["targets", list(entry.targets).join(", ")],
      ["tolerance", small(tolerance)],
      ["points", list(entry.points).map(pointText).join(" · ")],
      ["compared", [entry.builder, entry.finished].filter((part) => part).join(", ")],
    ]),
    ...pagedTable({
      rows, text: (row) => String(row.partition),
      columns: [
        {title: "partition", kind: "name", cell: (row) => String(row.partition)},
        {title: "result", cell: (row) => badge(badgeStyle(row.status), String(row.status))},
        {title: "largest error", kind: "n", cell: (row) => small(row.error), order: (row) => row.error ?? 0},
        {title: "allowed", kind: "n", cell: (row) => small(row.tolerance ?? tolerance)},
        {title: "share of the tolerance (log)", cell: (row) => errorBar(row.error, row.tolerance ?? tolerance)},
        {title: "at", kind: "text", cell: (row) => (row.worst ? pointText(row.worst) : "–")},
        {title: "module", kind: "text", cell: (row) => (row.place ? row.place.module ?? row.place.text ?? "" : "")},
      ],
      details: (row) => errorsByPoint(row, list(entry.points), row.tolerance ?? tolerance),
    }).childNodes);
}

/** The errors of one row at each point. */
function errorsByPoint(row, points, tolerance) {
  const errors = list(row.by_point);
  if (!errors.length) return el("p", {}, "The errors at each point were not recorded.");
  return el("table.points", {},
    el("thead", {}, el("tr", {}, ...["point", "largest error", "share of the tolerance (log)"].map((title) => el("th", {scope: "col"}, title)))),
    el("tbody", {}, ...errors.map((each) => el("tr", {},
      el("td", {}, points[each.point] ? pointText(points[each.point]) : String(each.point)),
      el("td", {}, small(each.error)),
      el("td", {}, typeof each.share === "number" ? errorBar(each.share, 1) : errorBar(each.error, tolerance))))));
}

/** A bar for an error, on a logarithmic scale: empty at a millionth of the tolerance, full at the tolerance. */
function errorBar(error, tolerance) {
  if (typeof error !== "number" || !tolerance) return "–";
  const share = error > 0 ? 1 + Math.log10(error / tolerance) / 6 : 0;
  return el("span.bars", {title: `${small(error)} of ${small(tolerance)}`}, bar(share, error > tolerance ? "wrong" : ""));
}

function pointText(point) {
  const dims = Object.entries(point.dims ?? {}).map(([name, size]) => `${name} ${size}`).join(", ");
  return `${point.profile ?? ""} ${point.which ?? ""}${dims ? ` (${dims})` : ""}`.trim();
}

function bench(document) {
  const runs = list(document.runs), points = list(document.points);
  const longest = Math.max(...runs.map((run) => run.latency_ms.p99), 1e-9);
  const ms = (value) => `${value.toPrecision(3)} ms`;
  return el("section", {},
    el("div.head", {}, el("h2", {}, `${document.model}: latencies by shape`),
      el("span.soft", {}, [document.device_name ?? document.device, document.computed_by].filter((part) => part).join(", "))),
    ...pagedTable({
      rows: runs, text: (run) => run.runner,
      columns: [
        {title: "shape", kind: "text", cell: (run) => points[run.point]?.label ?? "–"},
        {title: "runner", cell: (run) => run.runner},
        {title: "calls", kind: "n", cell: (run) => number(run.count)},
        {title: "first", kind: "n", cell: (run) => duration(run.first_s)},
        {title: "median", kind: "n", cell: (run) => ms(run.latency_ms.p50), order: (run) => run.latency_ms.p50},
        {title: "99 %", kind: "n", cell: (run) => ms(run.latency_ms.p99), order: (run) => run.latency_ms.p99},
        {title: "median and 99 %", cell: (run) => el("span.bars", {},
          bar(run.latency_ms.p99 / longest, "soft"), bar(run.latency_ms.p50 / longest))},
      ],
    }).childNodes);
}
