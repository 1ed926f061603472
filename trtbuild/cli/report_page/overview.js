// The first view: errors, warnings, models × targets, outputs and remotes.

function overview() {
  const parts = [];
  const texts = new Set();  // equal errors of one step are shown once
  const errors = data.errors.filter((error) => !texts.has(error.step + error.text) && texts.add(error.step + error.text));
  if (errors.length) parts.push(section(count(errors.length, "error"), ...errors.slice(0, 100).map(problem)));
  const interrupted = {
    interrupted: "The build was interrupted. The finished results are in the cache.",
    running: "The events end before the end of the build: it still runs, or its process was killed.",
  }[data.status];
  const warnings = [interrupted, ...data.notes, ...data.warnings].filter((text) => text);
  if (warnings.length) parts.push(section("Warnings", ...warnings.map((text) => el("p.warning", {}, text))));
  if (data.targets.length) parts.push(targetTable());
  if (data.outputs.length) parts.push(tableSection({
    title: "Outputs", rows: data.outputs, text: (row) => row.join(" "),
    columns: [
      {title: "model", kind: "text", cell: (row) => row[0]},
      {title: "kind", cell: (row) => row[1]},
      {title: "path", kind: "text", cell: (row) => el("code", {}, row[2])},
    ],
  }));
  if (data.remotes.length) parts.push(remoteTable());
  if (!parts.length) parts.push(section("Nothing was built", el("p.empty", {}, "No model was planned in this build.")));
  return parts;
}

function problem(error) {
  const place = [error.file, error.line, error.column].filter((part) => part !== null && part !== undefined).join(":");
  return el("article.problem", {},
    el("h3", {}, error.step ? stepLink(error.step) : error.type), el("pre", {}, error.text),
    facts([["at", place], ["next", error.hint], ["log", error.log]]));
}

function targetTable() {
  return tableSection({
    title: "Models and targets",
    rows: data.targets,
    text: (row) => `${row.model} ${row.target} ${row.verdict} ${row.sources.join(" ")}`,
    filters: [{title: "target", value: (row) => row.target}, {title: "verdict", value: (row) => row.verdict}],
    columns: [
      {title: "model", kind: "text", cell: (row) => row.model, order: (row) => row.model},
      {title: "target", cell: (row) => row.target, order: (row) => row.target},
      {title: "verdict", cell: (row) => badge(row.verdict), order: (row) => row.verdict},
      {title: "engines", kind: "n", cell: (row) => number(row.engines), order: (row) => row.engines},
      {title: "run", kind: "n", cell: (row) => number(row.runs), order: (row) => row.runs},
      {title: "size", kind: "n", cell: (row) => bytes(row.output_bytes), order: (row) => row.output_bytes},
      {title: "time", kind: "n", cell: (row) => duration(row.duration_s), order: (row) => row.duration_s},
      {title: "saved", kind: "n", cell: (row) => duration(row.saved_s), order: (row) => row.saved_s},
      {title: "from", cell: (row) => row.sources.join(", ") || "–"},
      {title: "built by", kind: "text", cell: (row) => row.builders.join(", ") || "–"},
      {title: "signed by", cell: (row) => row.signers.join(", ") || "–"},
    ],
  });
}

function remoteTable() {
  return tableSection({
    title: "Remote caches",
    rows: data.remotes,
    text: (row) => `${row.name} ${row.place}`,
    columns: [
      {title: "name", kind: "text", cell: (row) => row.name},
      {title: "place", kind: "text", cell: (row) => row.place},
      {title: "hits", kind: "n", cell: (row) => number(row.hits)},
      {title: "received", kind: "n", cell: (row) => bytes(row.bytes_down)},
      {title: "sent", kind: "n", cell: (row) => bytes(row.bytes_up)},
      {title: "failures", kind: "n", cell: (row) => number(row.failures)},
      {title: "given up", kind: "text", cell: (row) => row.given_up || "no"},
    ],
  });
}
