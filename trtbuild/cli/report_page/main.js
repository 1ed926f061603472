// The views, their tabs, and the theme.

const VIEWS = {
  overview: ["Overview", overview],
  timeline: ["Time line", timelineView],
  steps: ["Steps", stepsView],
  models: ["Models", modelsView],
  layers: ["Layers", layersView],
  checks: ["Checks", checksView],
  changes: ["Changes", changesView],
};

let onResize = null;

function go(view, argument = "") { location.hash = argument ? `${view}/${encodeURIComponent(argument)}` : view; }

function show() {
  const [name, argument = ""] = location.hash.slice(1).split("/");
  const view = Object.hasOwn(VIEWS, name) ? name : "overview";
  onResize = null;
  document.getElementById("tabs").replaceChildren(...Object.entries(VIEWS).map(([id, [title]]) =>
    el("a", {href: `#${id}`, "aria-current": id === view ? "page" : null}, title)));
  document.querySelector("#tabs [aria-current]").scrollIntoView({block: "nearest", inline: "nearest"});
  let chosen = "";
  try { chosen = decodeURIComponent(argument); } catch { /* a damaged address shows the whole view */ }
  document.getElementById("view").replaceChildren(...VIEWS[view][1](chosen));
  document.querySelector("tr.open")?.scrollIntoView({block: "start"});
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  document.getElementById("theme").textContent = theme === "dark" ? "Light" : "Dark";
}

const themeButton = document.getElementById("theme");
themeButton.hidden = false;
themeButton.addEventListener("click", () => setTheme(themeButton.textContent === "Dark" ? "dark" : "light"));
if (matchMedia("(prefers-color-scheme: dark)").matches) themeButton.textContent = "Light";
addEventListener("hashchange", show);
addEventListener("resize", () => onResize && onResize());
show();
