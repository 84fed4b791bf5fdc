// What the other files share: making elements, and writing numbers.
// Names of guests, peers and functions reach the page as text nodes and attributes only.

const svgNames = "http://www.w3.org/2000/svg";

export const $ = (id) => document.getElementById(id);

// el makes an HTML element. Children are elements, or become text.
export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

// svg makes an SVG element likewise.
export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(svgNames, name), attributes, children);
}

function fill(e, attributes, children) {
  for (const [k, v] of Object.entries(attributes)) {
    if (v !== undefined && v !== null && v !== false) e.setAttribute(k, v === true ? "" : v);
  }
  e.append(...children.filter((c) => c !== null && c !== undefined));
  return e;
}

// text changes the text of an element, if it is another one.
export function text(e, s) {
  s = String(s);
  if (e.textContent !== s) e.textContent = s;
}

// rows shows a list in a table with a row for each element. Rows live as long as their element has
// the same key, so that focus and selection stay. A column has a title, and cell(element), which
// returns text or elements; its class is that of its cells.
export function rows(table, columns, list, key, empty) {
  const head = table.tHead;
  if (!head.firstChild) {
    head.append(el("tr", {}, ...columns.map((c) => el("th", { scope: "col", class: c.class }, c.title))));
  }
  const body = table.tBodies[0];
  const old = new Map();
  for (const tr of body.rows) old.set(tr.dataset.key, tr);
  let at = body.firstElementChild;
  for (const x of list) {
    const k = String(key(x));
    let tr = old.get(k);
    old.delete(k);
    if (!tr) {
      tr = el("tr", { "data-key": k }, ...columns.map((c) => el("td", { class: c.class })));
    }
    columns.forEach((c, i) => {
      const v = c.cell(x, tr.cells[i]);
      if (v !== undefined) text(tr.cells[i], v);
    });
    if (tr === at) at = at.nextElementSibling;
    else body.insertBefore(tr, at);
  }
  for (const tr of old.values()) tr.remove();
  if (list.length === 0) {
    body.append(el("tr", { "data-key": "", class: "muted" }, el("td", { colspan: columns.length }, empty)));
  }
}

// meters shows the counters of a node of the credit tree as bars.
export function meters(box, node) {
  const names = node ? Object.keys(node.limit).sort() : [];
  if (box.dataset.names !== names.join()) {
    box.dataset.names = names.join();
    box.replaceChildren(...names.map((n) =>
      el("div", { class: "meter" }, el("span", {}, n), el("meter", { min: 0, max: 1, high: 0.8, optimum: 0, "aria-label": n }), el("span", { class: "number" }))));
    if (names.length === 0) box.append(el("p", { class: "muted" }, "No limits."));
  }
  names.forEach((n, i) => {
    const [, bar, number] = box.children[i].children;
    const used = node.in_use[n] || 0;
    bar.value = used / node.limit[n];
    text(number, `${used} / ${node.limit[n]}`);
  });
}

// si writes a number with three digits and a prefix, as 1.23k.
export function si(v) {
  for (const [at, prefix] of [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]]) {
    if (v >= at * 0.9995) return three(v / at) + prefix;
  }
  return v > 0 && v < 0.01 ? "<0.01" : three(v);
}

function three(v) {
  if (v === 0) return "0";
  return v >= 99.95 ? v.toFixed(0) : v >= 9.995 ? v.toFixed(1) : v.toFixed(2);
}

export const bits = (v) => `${si(v)}bit/s`.replace(/^([\d.<]+)([kMGT]?)/, "$1 $2");
export const perSecond = (v) => `${si(v)}/s`;

// percent writes a part of 1.
export function percent(v) {
  return v === 0 ? "0 %" : v < 0.001 ? "<0.1 %" : `${(100 * v).toFixed(v < 0.1 ? 1 : 0)} %`;
}

// span writes a time given in nanoseconds.
export function span(ns) {
  for (const [at, unit] of [[1e9, "s"], [1e6, "ms"], [1e3, "µs"]]) {
    if (ns >= at * 0.9995) return `${three(ns / at)} ${unit}`;
  }
  return `${Math.round(ns)} ns`;
}

// long writes a time given in milliseconds, for people who wait.
export function long(ms) {
  const s = Math.floor(ms / 1000);
  const parts = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const i = Math.max(parts.findIndex(([n]) => s >= n), 0);
  if (s < 60) return `${s} s`;
  const [n, unit] = parts[i], [m, small] = parts[i + 1];
  return `${Math.floor(s / n)} ${unit} ${Math.floor((s % n) / m)} ${small}`;
}

export const hex = (n) => `0x${n.toString(16)}`;
