// A chart of the last minutes: lines over time, with what they are now, or were where the pointer is.
import { el, svg, text } from "./dom.js";

const shown = 300; // seconds, fewer at first
const least = 60;
const gap = 10; // seconds without a value: the line ends
const width = 300, height = 80;

export class Chart {
  // series have a name, a class for their colour, and of(rates), their value. format writes one.
  constructor(title, format, series) {
    this.format = format;
    this.series = series.map((s) => ({ ...s, path: svg("path", { class: `line ${s.class}` }), value: el("b") }));
    this.points = [];
    this.at = null; // where the pointer is, 0 to 1
    this.top = el("span", { class: "top" });
    this.from = el("span");
    this.when = el("span");
    this.cross = svg("line", { class: "cross", y1: 0, y2: height, visibility: "hidden" });
    this.picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", "aria-hidden": "true" },
      ...[0, 0.5, 1].map((y) => svg("line", { class: "grid", x1: 0, x2: width, y1: y * height, y2: y * height })),
      ...this.series.map((s) => s.path), this.cross);
    this.picture.addEventListener("pointermove", (e) => {
      const box = this.picture.getBoundingClientRect();
      this.at = (e.clientX - box.left) / box.width;
      this.draw();
    });
    this.picture.addEventListener("pointerleave", () => {
      this.at = null;
      this.draw();
    });
    this.element = el("figure", { class: "card chart" },
      el("figcaption", {}, el("h2", {}, title),
        el("p", {}, ...this.series.map((s) => el("span", { class: "legend" }, el("i", { class: s.class }), s.name, " ", s.value)))),
      el("div", { class: "plot" }, this.picture, this.top),
      el("p", { class: "times" }, this.from, this.when));
  }

  // push adds the rates at a time in seconds.
  push(time, rates) {
    this.points.push({ time, values: this.series.map((s) => s.of(rates)) });
    while (this.points.length > 2 * shown || this.points[0].time < time - shown) this.points.shift();
    this.draw();
  }

  draw() {
    if (this.points.length === 0) return;
    const last = this.points[this.points.length - 1];
    const span = Math.max(last.time - this.points[0].time, least);
    const x = (p) => width - ((last.time - p.time) / span) * width;
    const highest = Math.max(...this.points.flatMap((p) => p.values));
    const max = ceiling(highest);
    this.series.forEach((s, i) => {
      let d = "", before = -Infinity;
      for (const p of this.points) {
        d += `${p.time - before > gap ? "M" : "L"}${x(p).toFixed(1)} ${(height - (p.values[i] / max) * height).toFixed(1)}`;
        before = p.time;
      }
      s.path.setAttribute("d", d);
    });
    text(this.top, highest > 0 ? this.format(max) : "");
    text(this.from, span < 90 ? `${Math.round(span)} s ago` : `${Math.round(span / 60)} min ago`);
    let of = last;
    if (this.at !== null) {
      const time = last.time - (1 - this.at) * span;
      of = this.points.reduce((a, b) => (Math.abs(b.time - time) < Math.abs(a.time - time) ? b : a));
      this.cross.setAttribute("x1", x(of));
      this.cross.setAttribute("x2", x(of));
    }
    this.cross.setAttribute("visibility", this.at === null ? "hidden" : "visible");
    text(this.when, this.at === null ? "now" : new Date(of.time * 1000).toLocaleTimeString());
    this.series.forEach((s, i) => text(s.value, this.format(of.values[i])));
  }
}

// ceiling returns a round number that is not less.
function ceiling(v) {
  if (v <= 0) return 1;
  const ten = 10 ** Math.floor(Math.log10(v));
  return [1, 2, 5, 10].find((m) => m * ten >= v) * ten;
}
