// The picture of the NIC between its functions and its peers, with what passes on each link.
import { bits, percent, perSecond, si, svg } from "./dom.js";

const most = 10; // functions and peers that are drawn: the busiest
const wide = 1000, rowHeight = 44, boxHeight = 36;
const left = { x: 0, w: 250 }, middle = { x: 390, w: 220 }, right = { x: 750, w: 250 };

// topology returns the picture of a state. selected is the name of a function.
export function topology(s, selected) {
  const functions = busiest(s.functions, (f) => f.in + f.out, (f) => f.id === selected);
  const peers = busiest(s.peers, (p) => p.sent, () => false);
  const count = Math.max(functions.shown.length + (functions.rest ? 1 : 0), peers.shown.length + (peers.rest ? 1 : 0), 3);
  const high = count * rowHeight;
  const y = (i, n) => high / 2 + (i - (n - 1) / 2) * rowHeight; // of the middle of a box
  const links = [], boxes = [];

  const rows = functions.shown.length + (functions.rest ? 1 : 0);
  functions.shown.forEach((f, i) => {
    const at = y(i, rows);
    const up = f.state !== "ERROR" && f.link_up;
    links.push(link(left.x + left.w, at, middle.x, high / 2 + spread(i, rows), f.in + f.out, up));
    boxes.push(svg("a", { href: `#${f.id}`, "aria-label": `function ${f.id}, ${f.state}` },
      box(left, at, `${f.state === "ERROR" ? "error" : f.attached ? "used" : ""} ${f.id === selected ? "selected" : ""}`),
      line(left, at - 4, f.id, "title"), line(left, at + 11, traffic(f), "small")));
  });
  if (functions.rest) boxes.push(more(left, y(rows - 1, rows), functions.rest, "functions"));

  const rightRows = Math.max(peers.shown.length + (peers.rest ? 1 : 0), 1);
  peers.shown.forEach((p, i) => {
    const at = y(i, rightRows);
    const trouble = p.again > 0 && p.again > p.sent / 1000;
    links.push(link(middle.x + middle.w, high / 2 + spread(i, rightRows), right.x, at, p.sent, p.up, trouble));
    boxes.push(svg("g", {}, svg("title", {}, [p.identity, p.note, `path MTU ${p.path_mtu}`].filter(Boolean).join("\n")),
      box(right, at, p.up ? (p.note ? "warn" : "used") : "error"),
      line(right, at - 4, `peer ${p.name} · ${p.underlay}`, "title"),
      line(right, at + 11, p.up ? `${si(p.sent)} packets/s · ${loss(p)}` : p.note || "down", p.up ? "small" : "small bad")));
  });
  if (peers.rest) boxes.push(more(right, y(rightRows - 1, rightRows), peers.rest, "peers"));
  if (s.peers.length === 0) boxes.push(line(right, high / 2 + 4, "no peers are configured", "small"));

  const uplink = s.nic.uplinks[0];
  const impaired = uplink && ["rx", "tx"].some((d) => uplink[d].impairment.down || uplink[d].impairment.loss > 0);
  boxes.push(svg("g", {},
    svg("rect", { class: "box nic", x: middle.x, y: high / 2 - 56, width: middle.w, height: 112, rx: 10 }),
    line(middle, high / 2 - 32, s.nic.name, "title big"),
    ...(uplink ? [
      line(middle, high / 2 - 12, `${uplink.name} · ${uplink.addr}`, "small"),
      line(middle, high / 2 + 8, `out ${bits(s.rates.uplink_out)}`, "small"),
      line(middle, high / 2 + 26, `in ${bits(s.rates.uplink_in)}`, "small"),
      line(middle, high / 2 + 44, impaired ? `impaired: ${perSecond(s.rates.lost)} lost` : `MTU ${uplink.mtu}`, impaired ? "small bad" : "small"),
    ] : [])));

  return svg("svg", { class: "topology", viewBox: `-2 -2 ${wide + 4} ${high + 4}`, role: "group", "aria-label": describe(s) }, ...links, ...boxes);
}

// busiest returns the elements with most traffic, in the order of the list, and how many there are
// besides.
function busiest(list, traffic, must) {
  if (list.length <= most) return { shown: list, rest: 0 };
  const size = (x) => (must(x) ? 99 : Math.floor(Math.log2(1 + traffic(x)))); // coarse, so that it stays
  const chosen = new Set(list.map((x, i) => [size(x), i]).sort((a, b) => b[0] - a[0] || a[1] - b[1]).slice(0, most).map(([, i]) => i));
  return { shown: list.filter((_, i) => chosen.has(i)), rest: list.length - most };
}

const spread = (i, n) => (n < 2 ? 0 : ((i - (n - 1) / 2) / (n - 1)) * 80);

function link(x1, y1, x2, y2, rate, up, trouble) {
  const bend = (x1 + x2) / 2;
  const weight = rate > 0 ? 1 + Math.min(Math.log10(1 + rate) / 2, 5) : 1;
  const kind = !up ? "down" : trouble ? "lossy" : rate > 0 ? "busy" : "idle";
  return svg("path", { class: `link ${kind}`, d: `M${x1} ${y1} C${bend} ${y1} ${bend} ${y2} ${x2} ${y2}`, "stroke-width": weight.toFixed(1) });
}

function box(column, at, kind) {
  return svg("rect", { class: `box ${kind}`, x: column.x, y: at - boxHeight / 2, width: column.w, height: boxHeight, rx: 6 });
}

function line(column, y, words, kind) {
  const room = kind.includes("small") ? 37 : 30;
  const cut = words.length > room ? `${words.slice(0, room - 1)}…` : words;
  return svg("text", { class: kind, x: column.x + 12, y }, cut);
}

function more(column, at, count, what) {
  return line(column, at + 4, `… ${count} more ${what}`, "small");
}

function traffic(f) {
  if (f.state === "ERROR") return f.fault || "in error";
  if (f.in + f.out === 0) return f.attached ? "attached, idle" : f.state.toLowerCase();
  return `out ${bits(f.out)} · in ${bits(f.in)}`;
}

function loss(p) {
  if (p.again === 0) return "no loss";
  return p.sent > 0 ? `${percent(p.again / p.sent)} again` : `${perSecond(p.again)} again`;
}

function describe(s) {
  const up = s.peers.filter((p) => p.up).length;
  return `${s.functions.length} functions, the NIC ${s.nic.name}, and ${s.peers.length} peers, ${up} of them reached`;
}
