// Requests as a trace saw them: a bar for each, from its first step to its last.
import { el, hex, span, svg } from "./dom.js";

const most = 200; // requests that are drawn: the longest

// parse returns the operations of a trace's lines, and what else they tell.
export function parse(lines) {
  const operations = [];
  let lost = 0;
  for (const l of lines.split("\n")) {
    if (l === "") continue;
    const line = JSON.parse(l);
    if (line.operation) operations.push(line.operation);
    lost += line.lost || 0;
  }
  return { operations, lost };
}

const whole = (o) => o.steps[o.steps.length - 1].at_ns - o.steps[0].at_ns;

// timeline draws operations, the longest first, all from the same edge.
export function timeline(operations) {
  const list = operations.filter((o) => o.steps.length > 1).sort((a, b) => whole(b) - whole(a)).slice(0, most);
  if (list.length === 0) return el("p", { class: "muted" }, "No request was seen from its beginning to its end.");
  const longest = Math.max(whole(list[0]), 1);
  const steps = [];
  for (const o of list) {
    for (const s of o.steps.slice(1)) if (!steps.includes(s.step)) steps.push(s.step);
  }
  const body = el("tbody", {}, ...list.map((o) => el("tr", {},
    el("td", {}, `${o.op} ${o.side === "responder" ? "(peer's)" : ""}`),
    el("td", { class: "number" }, hex(o.qpn)),
    el("td", { class: "number" }, String(o.bytes)),
    el("td", {}, o.transport),
    el("td", { class: o.again ? "number bad" : "number" }, String(o.again)),
    el("td", { class: o.open ? "muted" : o.status && o.status !== "success" ? "bad" : "" }, o.open ? "not complete" : o.status || ""),
    el("td", { class: "number" }, span(whole(o))),
    el("td", { class: "bars" }, bar(o, longest)))));
  return el("div", {},
    el("p", { class: "legend-row" }, "Time until: ", ...steps.map((s) => el("span", { class: "legend" }, el("i", { class: `step ${s}` }), s.replaceAll("_", " ")))),
    el("div", { class: "scroll" }, el("table", {},
      el("thead", {}, el("tr", {}, ...["Request", "QP", "Bytes", "Over", "Again", "Status", "Time", `0 to ${span(longest)}`]
        .map((t, i) => el("th", { scope: "col", class: [1, 2, 4, 6].includes(i) ? "number" : undefined }, t)))), body)));
}

function bar(o, longest) {
  const begin = o.steps[0].at_ns;
  const words = o.steps.map((s, i) => (i === 0 ? s.step : `${s.step} +${span(s.after_ns)}`)).join(", ");
  return svg("svg", { viewBox: "0 0 1000 10", preserveAspectRatio: "none", role: "img", "aria-label": words }, svg("title", {}, words),
    ...o.steps.slice(1).map((s, i) => svg("rect", {
      class: `step ${s.step}`, y: 0, height: 10,
      x: ((o.steps[i].at_ns - begin) / longest) * 1000,
      width: Math.max((s.after_ns / longest) * 1000, 0.5),
    })));
}
