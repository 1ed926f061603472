// Tables of many rows: one page of rows at a time, with search, filters, order and details.

const PAGE_ROWS = 50;

/**
 * A table of `rows`. A column is {title, cell(row), order?(row), kind?: "n" | "name" | "text"}.
 *
 * `text(row)` is the text that a search looks in. `filters` are {title, value(row), selected?}: a list of the distinct
 * values. `details(row)` is shown below a row that was chosen. `chosen(row)`: the row that is shown and open at first.
 * `note`: a text beside the title.
 */
function pagedTable({columns, rows, text, filters = [], details = null, chosen = null, title = "", note = ""}) {
  let page = 0, order = null, down = false, open = chosen ? rows.find(chosen) ?? null : null;
  let found = rows;
  const texts = text ? new Map() : null;
  const search = el("input", {type: "search", placeholder: "Search", "aria-label": `Search ${title}`, oninput: refilter});
  const selects = filters.map((filter) => {
    const values = [...new Set(rows.map(filter.value))].filter((value) => value).sort();
    return el("select", {"aria-label": filter.title, onchange: refilter},
      el("option", {value: ""}, `${filter.title}: all`), ...values.map((value) => el("option", {value, selected: value === filter.selected}, value)));
  });
  const head = el("tr"), body = el("tbody"), pager = el("div.pager");
  const usefulSelects = selects.filter((select) => select.options.length > 2);

  function refilter() {
    const words = search.value.toLowerCase().split(/\s+/).filter((word) => word);
    found = rows.filter((row) => {
      if (selects.some((select, position) => select.value && filters[position].value(row) !== select.value)) return false;
      if (!words.length) return true;
      if (!texts.has(row)) texts.set(row, text(row).toLowerCase());
      return words.every((word) => texts.get(row).includes(word));
    });
    sort();
    page = 0;
    show();
  }

  function sort() {
    if (!order) return;
    const value = order.order;
    found = [...found].sort((first, second) => {
      const [a, b] = [value(first), value(second)];
      return (a < b ? -1 : a > b ? 1 : 0) * (down ? -1 : 1);
    });
  }

  function reorder(column) {
    [order, down] = [column, order === column ? !down : column.kind === "n"];
    sort();
    page = 0;
    show();
  }

  function turn(pages) {
    page += pages;
    show();
    body.closest("section")?.scrollIntoView({block: "start"});
  }

  function show() {
    head.replaceChildren(...columns.map((column) => {
      const arrow = order === column ? (down ? " ↓" : " ↑") : "";
      const label = column.title + arrow;
      const inside = column.order ? el("button", {type: "button", onclick: () => reorder(column)}, label) : label;
      return el(column.kind === "n" ? "th.n" : "th", {scope: "col"}, inside);
    }));
    const shown = found.slice(page * PAGE_ROWS, (page + 1) * PAGE_ROWS);
    body.replaceChildren(...shown.flatMap(rowElements));
    if (!shown.length) body.append(el("tr", {}, el("td.empty", {colspan: columns.length}, "Nothing to show.")));
    const pages = Math.ceil(found.length / PAGE_ROWS);
    pager.hidden = pages < 2;
    pager.replaceChildren(
      el("span", {}, `${number(page * PAGE_ROWS + 1)}–${number(page * PAGE_ROWS + shown.length)} of ${number(found.length)}`),
      el("button.quiet", {type: "button", disabled: page === 0, onclick: () => turn(-1)}, "Previous"),
      el("button.quiet", {type: "button", disabled: page >= pages - 1, onclick: () => turn(1)}, "Next"));
  }

  function rowElements(row) {
    const isOpen = details && row === open;
    const toggle = () => { open = isOpen ? null : row; show(); };
    const cells = columns.map((column) => {
      const content = column.cell(row);
      const inside = details && column.kind === "name"
        ? el("button", {type: "button", "aria-expanded": String(Boolean(isOpen)), onclick: toggle}, content) : content;
      return el(column.kind ? `td.${column.kind}` : "td", {}, inside);
    });
    const line = el(isOpen ? "tr.open" : "tr", {}, ...cells);
    return isOpen ? [line, el("tr.detail", {}, el("td", {colspan: columns.length}, details(row)))] : [line];
  }

  refilter();
  if (open) {
    page = Math.floor(found.indexOf(open) / PAGE_ROWS);
    show();
  }
  const controls = rows.length > 8 || usefulSelects.length
    ? el("div.controls", {}, text && rows.length > 8 ? search : null, ...usefulSelects) : null;
  return el("div", {}, title || controls ? el("div.head", {}, el("h2", {}, title), note ? el("span.soft", {}, note) : null, controls) : null,
    el("div.scroll", {}, el("table", {}, el("thead", {}, head), body)), pager);
}

/** A section with a paged table. */
function tableSection(options) { return el("section", {}, ...pagedTable(options).childNodes); }
