// The time line: one lane for each worker, the phases of the build (such as planning), the critical path (the steps that
// decided how long the build took), and the memory of the running steps.

const LANE_PX = 30, AXIS_PX = 26, MEMORY_PX = 84, LABEL_PX = 78;

function timelineView() {
  const ran = data.steps.filter((step) => step.start_s !== null);
  if (!ran.length && !data.phases.length) return [section("Time line", el("p.empty", {}, "No step has run."))];
  const detail = el("section", {hidden: true});
  const holder = el("div.timeline", {tabindex: 0, role: "group", "aria-label": "Time line"});
  let zoom = 1, chosen = null;

  function draw() {
    const visible = Math.max(320, (holder.clientWidth || 900));
    holder.replaceChildren(drawing(ran, visible * zoom, chosen, choose));
  }

  function choose(step) {
    chosen = step;
    detail.hidden = false;
    detail.replaceChildren(el("h3", {}, step.id), el("p", {}), stepFacts(step));
    const left = holder.scrollLeft;
    draw();
    holder.scrollLeft = left;
  }

  function rescale(factor) {
    const middle = (holder.scrollLeft + holder.clientWidth / 2) / zoom;
    zoom = Math.min(64, Math.max(1, zoom * factor));
    draw();
    holder.scrollLeft = middle * zoom - holder.clientWidth / 2;
  }

  const controls = el("div.controls", {},
    el("button.quiet", {type: "button", onclick: () => rescale(2)}, "Zoom in"),
    el("button.quiet", {type: "button", onclick: () => rescale(0.5)}, "Zoom out"),
    el("button.quiet", {type: "button", onclick: () => rescale(1 / 64)}, "Fit"));
  const stages = [...new Set(ran.map((step) => step.stage))];
  const legend = el("div.legend", {}, ...stages.map((stage) => el("span", {}, el(`i.${stage}`), stage)),
    el("span", {}, el("i.critical"), "critical path"));
  onResize = draw;
  requestAnimationFrame(draw);
  return [
    el("section", {}, el("div.head", {}, el("h2", {}, "Time line"), controls), holder, legend),
    detail,
    criticalPath(ran),
  ];
}

function drawing(ran, width, chosen, choose) {
  const end = Math.max(data.duration_s, 0.001), scale = (width - LABEL_PX - 8) / end;
  const x = (seconds) => LABEL_PX + seconds * scale;
  const workers = [...new Set(ran.map((step) => step.worker || ""))].sort((a, b) => a.localeCompare(b, "en", {numeric: true}));
  const phases = phaseLanes();
  const memory = memorySteps(ran, end), peak = Math.max(...memory.map(([, size]) => size), 0);
  const lanes = phases.length + workers.length;
  const height = AXIS_PX + lanes * LANE_PX + (peak ? MEMORY_PX + 16 : 0);
  const picture = svg("svg", {width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": "Steps by worker"});
  for (const second of ticks(end, width)) {
    picture.append(svg("line.grid", {x1: x(second), x2: x(second), y1: AXIS_PX - 6, y2: height}),
      svg("text", {x: x(second) + 3, y: 14}, axisText(second)));
  }
  phases.forEach((lane, position) => {
    const y = AXIS_PX + position * LANE_PX;
    if (position === 0) picture.append(svg("text", {x: 0, y: y + 19}, "build"));
    for (const phase of lane) picture.append(box(x(phase.start_s), y, x(phase.end_s), "phase", phase.name, null));
  });
  const place = new Map();
  workers.forEach((worker, position) => {
    const y = AXIS_PX + (phases.length + position) * LANE_PX;
    picture.append(svg("rect.lane", {x: LABEL_PX, y: y + 3, width: width - LABEL_PX - 8, height: LANE_PX - 6, rx: 4}),
      svg("text", {x: 0, y: y + 19}, worker || "–"));
    place.set(worker, y);
  });
  for (const step of [...ran].sort((a, b) => a.critical - b.critical)) {
    const names = [step.verdict === "failed" ? "failed" : step.stage, step.critical ? "critical" : "", step === chosen ? "chosen" : ""];
    const group = box(x(step.start_s), place.get(step.worker || ""), x(step.end_s ?? end), names.filter((n) => n).join("."), step.id, choose, step);
    picture.append(group);
  }
  if (chosen && chosen.waited_for) {
    const before = stepById.get(chosen.waited_for);
    if (before && before.end_s !== null) {
      const [y1, y2] = [before, chosen].map((step) => place.get(step.worker || "") + LANE_PX / 2);
      picture.append(svg("path.waits", {d: `M${x(before.end_s)},${y1} L${x(chosen.start_s)},${y2}`}));
    }
  }
  if (peak) picture.append(...memoryArea(memory, peak, x, AXIS_PX + lanes * LANE_PX + 12, end));
  return picture;
}

function box(left, y, right, names, label, choose, step) {
  const width = Math.max(2, right - left);
  const act = choose ? {tabindex: -1, onclick: () => choose(step)} : {};
  const shape = svg(`rect.bar.${names}`, {x: left, y: y + 4, width, height: LANE_PX - 8, rx: 3, ...act}, svg("title", {}, label));
  const room = Math.floor((width - 10) / 6.6);
  if (room < 5) return shape;
  const text = label.length > room ? `${label.slice(0, room - 1)}…` : label;
  return svg("g", {}, shape, svg(choose ? "text.inside" : "text", {x: left + 6, y: y + 19}, text));
}

/** The phases of the build in at most four lanes without overlaps. Phases that do not fit into these lanes are left out. */
function phaseLanes() {
  const lanes = [];
  for (const phase of [...data.phases].sort((a, b) => a.start_s - b.start_s)) {
    const lane = lanes.find((other) => other[other.length - 1].end_s <= phase.start_s);
    if (lane) lane.push(phase);
    else if (lanes.length < 4) lanes.push([phase]);
  }
  return lanes;
}

/** The sum of the memory peaks of the steps that run, as [second, bytes] at each change. */
function memorySteps(ran, end) {
  const changes = [];
  for (const step of ran) {
    if (!step.peak_rss_bytes) continue;
    changes.push([step.start_s, step.peak_rss_bytes], [step.end_s ?? end, -step.peak_rss_bytes]);
  }
  changes.sort((a, b) => a[0] - b[0] || a[1] - b[1]);
  let sum = 0;
  return changes.map(([second, change]) => [second, (sum += change)]);
}

function memoryArea(memory, peak, x, top, end) {
  const y = (size) => top + MEMORY_PX - (size / peak) * (MEMORY_PX - 16);
  let path = `M${x(0)},${y(0)}`, last = 0;
  for (const [second, size] of memory) {
    path += ` L${x(second)},${y(last)} L${x(second)},${y(size)}`;
    last = size;
  }
  path += ` L${x(end)},${y(last)} L${x(end)},${y(0)} Z`;
  return [svg("path.memory", {d: path}), svg("text", {x: 0, y: top + 12}, "memory"), svg("text", {x: 0, y: top + 28}, bytes(peak))];
}

function ticks(end, width) {
  const wanted = end / Math.max(2, width / 110);
  const unit = [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 36000]
    .find((step) => step >= wanted) ?? 86400;
  return Array.from({length: Math.floor(end / unit) + 1}, (_, position) => position * unit);
}

function axisText(seconds) {
  if (seconds < 60) return `${Number(seconds.toFixed(2))} s`;
  const minutes = Math.floor(seconds / 60), rest = Math.round(seconds % 60);
  return minutes < 60 ? `${minutes}:${String(rest).padStart(2, "0")}` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

function criticalPath(ran) {
  const path = ran.filter((step) => step.critical).sort((a, b) => a.start_s - b.start_s);
  return tableSection({
    title: `Critical path: ${duration(data.critical_s)} of ${duration(data.duration_s)}`,
    rows: path,
    text: (step) => step.id,
    columns: [
      {title: "step", kind: "name", cell: (step) => stepLink(step.id)},
      {title: "start", kind: "n", cell: (step) => duration(step.start_s)},
      {title: "time", kind: "n", cell: (step) => duration(step.duration_s), order: (step) => step.duration_s},
      {title: "waited", kind: "n", cell: (step) => duration(step.waited_s), order: (step) => step.waited_s},
      {title: "for the end of", kind: "text", cell: (step) => (step.waited_for ? stepLink(step.waited_for) : "–")},
    ],
  });
}
