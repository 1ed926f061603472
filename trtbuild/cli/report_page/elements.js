// Elements, and readable forms of values. Texts are set with textContent, so they never become markup.

const data = JSON.parse(document.getElementById("data").textContent);

/** A new element: `el("td.n", {title: "…"}, "text", child)`. Children that are null are left out. */
function el(selector, attributes = {}, ...children) {
  const [tag, ...classes] = selector.split(".");
  const element = document.createElement(tag);
  return fill(element, classes, attributes, children);
}

/** A new element of SVG. */
function svg(selector, attributes = {}, ...children) {
  const [tag, ...classes] = selector.split(".");
  return fill(document.createElementNS("http://www.w3.org/2000/svg", tag), classes, attributes, children);
}

function fill(element, classes, attributes, children) {
  if (classes.length) element.setAttribute("class", classes.join(" "));
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value);
  }
  for (const child of children.flat()) if (child !== null && child !== undefined) element.append(child);
  return element;
}

function duration(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds > 0 && seconds < 0.05) return `${Math.max(1, Math.round(seconds * 1000))} ms`;
  if (seconds < 99.95) return `${seconds.toFixed(1)} s`;
  const whole = Math.round(seconds);
  const two = (number) => String(number).padStart(2, "0");
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${two(whole % 60)} s`;
  return `${Math.floor(whole / 3600)} h ${two(Math.floor((whole % 3600) / 60))} min`;
}

function bytes(size) {
  if (size === null || size === undefined) return "";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  for (; size >= 1000 && unit < units.length - 1; unit++) size /= 1024;
  return unit ? `${size.toFixed(1)} ${units[unit]}` : `${size} B`;
}

function number(value) { return value.toLocaleString("en"); }

function count(amount, word) { return `${number(amount)} ${word}${amount === 1 ? "" : "s"}`; }

/** An error of a comparison: `2.2e-7`, or `nan` as text. */
function small(value) {
  if (typeof value !== "number") return typeof value === "string" ? value : "–";
  return value === 0 ? "0" : value.toExponential(1);
}

function badge(verdict, text = verdict) { return el(`span.badge.${verdict}`, {}, text); }

function section(title, ...children) { return el("section", {}, el("h2", {}, title), ...children); }

function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return el("dl.facts", {}, ...shown.map(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

/** A horizontal bar of a share between 0 and 1. `kind` is "", "soft" or "wrong". */
function bar(share, kind = "") {
  const inside = el(kind ? `i.${kind}` : "i");
  inside.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return inside;
}

/** A link to a step in the view of steps. */
function stepLink(id) { return el("a", {href: `#steps/${encodeURIComponent(id)}`}, id); }
