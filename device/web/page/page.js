// The page of one NIC: it draws the states that GET /events sends.
import { $, bits, el, hex, long, meters, percent, perSecond, rows, si, span, text } from "./dom.js";
import { Chart } from "./chart.js";
import { topology } from "./topology.js";
import { parse, timeline } from "./timeline.js";

let state = null; // the last one, and when it came
let came = 0;
let version = null; // of the NIC that this page is from
let stream = null;

// The selected function is in the address, so that a link leads to it, and is "" for none.
const selected = () => (/^#h\d+\.pf/.test(location.hash) ? location.hash.slice(1) : "");

const charts = [
  new Chart("Uplink", bits, [
    { name: "out", class: "out", of: (r) => r.uplink_out },
    { name: "in", class: "in", of: (r) => r.uplink_in },
  ]),
  new Chart("RDMA data", bits, [
    { name: "out", class: "out", of: (r) => r.data_out },
    { name: "in", class: "in", of: (r) => r.data_in },
  ]),
  new Chart("Plain IP", bits, [
    { name: "from ports", class: "out", of: (r) => r.ports_out },
    { name: "to ports", class: "in", of: (r) => r.ports_in },
  ]),
  new Chart("Losses, packets", perSecond, [
    { name: "sent again", class: "again", of: (r) => r.again },
    { name: "dropped", class: "dropped", of: (r) => r.dropped + r.lost },
  ]),
];
$("rates").append(...charts.map((c) => c.element));

// The stream. A browser connects again by itself when a connection ends, and gives up when an answer
// is an error.
function connect() {
  if (stream) stream.close();
  const name = selected();
  stream = new EventSource(name ? `events?function=${encodeURIComponent(name)}` : "events");
  stream.addEventListener("state", (e) => {
    state = JSON.parse(e.data);
    came = Date.now();
    version ??= state.nic.version;
    if (version !== state.nic.version) location.reload(); // an upgraded NIC brings its own page
    draw();
    status("live", "live");
  });
  stream.addEventListener("function", (e) => drawFunction(JSON.parse(e.data)));
  stream.addEventListener("trouble", (e) => status("lost", `the NIC does not answer: ${JSON.parse(e.data)}`));
  const mine = stream;
  stream.onerror = () => {
    status("lost", came ? `not reached; this is the state of ${new Date(came).toLocaleTimeString()}` : "not reached");
    if (mine.readyState === EventSource.CLOSED) {
      setTimeout(() => mine === stream && connect(), 2000);
    }
  };
}

function status(kind, words) {
  document.body.dataset.status = kind;
  text($("status-text"), words);
}

function draw() {
  const s = state;
  document.title = `${s.nic.name} · vnic`;
  text($("name"), s.nic.name);
  const up = s.peers.filter((p) => p.up).length;
  text($("about"), `host ${s.nic.host} · vnic ${s.nic.version} · up ${long(s.nic.uptime_ms)} · ${up} of ${s.peers.length} peers` +
    (s.nic.starts > 1 ? ` · worker ${s.nic.starts}` : ""));
  const warnings = [...(s.nic.warnings || []), ...(s.nic.upgrade_refused ? [`upgrade refused: ${s.nic.upgrade_refused}`] : []),
    ...s.peers.filter((p) => p.note).map((p) => `peer ${p.name}: ${p.note}`)];
  $("warnings").hidden = warnings.length === 0;
  if ($("warnings").dataset.words !== warnings.join("\n")) {
    $("warnings").dataset.words = warnings.join("\n");
    $("warnings").replaceChildren(...warnings.map((w) => el("li", {}, w)));
  }
  if (s.seconds > 0) charts.forEach((c) => c.push(s.at_ms / 1000, s.rates));
  drawMap();
  drawFunctions();
  drawWaits();
  meters($("nic-credits"), s.credits[0]);
}

function drawMap() {
  const map = $("map");
  const focused = map.contains(document.activeElement) ? document.activeElement.getAttribute("href") : null;
  map.replaceChildren(topology(state, selected()));
  if (focused) map.querySelector(`a[href="${CSS.escape(focused)}"]`)?.focus();
}

// The table of functions.
const step = 100; // rows that are added at a time
let limit = step, order = "id", down = false;

const columns = [
  { title: "Function", key: "id", cell: nameCell },
  { title: "State", key: "state", cell: (f, td) => void (text(td, f.state), (td.className = f.state === "ERROR" ? "bad" : ""), (td.title = f.fault || "")) },
  { title: "Tenant", key: "tenant", class: "number", cell: (f) => f.tenant || "–" },
  { title: "Address", key: "addr", cell: (f) => f.addr || "–" },
  { title: "Guest", key: "guest", cell: (f) => (f.guest ? `${f.guest}${f.attached ? "" : " (away)"}` : "–") },
  { title: "Port", key: "port", cell: (f) => (f.port ? `${f.port}${f.port_up ? "" : " (down)"}` : "–") },
  { title: "Out", key: "out", class: "number", cell: (f) => bits(f.out) },
  { title: "In", key: "in", class: "number", cell: (f) => bits(f.in) },
  { title: "QPs", key: "qps", class: "number", cell: (f) => f.qps },
  { title: "Waiting", key: "waiting", class: "number", cell: (f) => f.waiting || 0 },
  { title: "Credit used", key: "credit", class: "number", cell: (f) => percent(f.credit) + (f.refused > 0 ? `, refused ${perSecond(f.refused)}` : "") },
];

function nameCell(f, td) {
  if (!td.firstChild) td.append(el("a", { href: `#${f.id}` }, f.id));
  const here = f.id === selected();
  td.parentElement.classList.toggle("selected", here);
  if (here) td.firstChild.setAttribute("aria-current", "true");
  else td.firstChild.removeAttribute("aria-current");
}

function matching() {
  const words = $("filter").value.toLowerCase().split(/\s+/).filter(Boolean);
  const list = state.functions.filter((f) => {
    const all = `${f.id} ${f.state} ${f.tenant} ${f.addr} ${f.guest || ""} ${f.port || ""} ${f.fault || ""}`.toLowerCase();
    return words.every((w) => all.includes(w));
  });
  const value = (f) => f[order] ?? (typeof state.functions[0]?.[order] === "number" ? 0 : "");
  if (order !== "id") list.sort((a, b) => (value(a) < value(b) ? -1 : value(a) > value(b) ? 1 : 0));
  return down ? list.reverse() : list;
}

function drawFunctions() {
  const list = matching();
  const table = $("function-table");
  rows(table, columns, list.slice(0, limit), (f) => f.id, "No function is like that.");
  [...table.tHead.rows[0].cells].forEach((th, i) => {
    if (!th.dataset.key) {
      th.dataset.key = columns[i].key;
      th.replaceChildren(el("button", { type: "button" }, columns[i].title));
      th.firstChild.addEventListener("click", () => sortBy(columns[i]));
    }
    if (columns[i].key === order) th.setAttribute("aria-sort", down ? "descending" : "ascending");
    else th.removeAttribute("aria-sort");
  });
  text($("functions-count"), list.length === state.functions.length ? `${list.length}` : `${list.length} of ${state.functions.length}`);
  $("more").hidden = list.length <= limit;
  text($("more"), `Show ${Math.min(step, list.length - limit)} more of ${list.length - limit}`);
}

function sortBy(c) {
  down = order === c.key ? !down : c.class === "number"; // of numbers the largest first
  order = c.key;
  drawFunctions();
}

$("filter").addEventListener("input", () => {
  limit = step;
  if (state) drawFunctions();
});
$("more").addEventListener("click", () => {
  limit += step;
  drawFunctions();
});

// One function.
const reasons = {
  credit: "credit: the function, its host or the NIC holds as much as it may",
  rate: "rate: max_tx_rate, or its share of a busy NIC",
};
const queuePairs = [
  { title: "QP", class: "number", cell: (q) => hex(q.qpn) },
  { title: "Type", cell: (q) => q.type },
  { title: "State", cell: (q, td) => void (text(td, q.state), (td.className = q.state === "ERR" || q.state === "SQE" ? "bad" : "")) },
  { title: "Peer", cell: (q) => (q.peer ? `${q.peer} ${hex(q.peer_qpn || 0)}` : "–") },
  { title: "Posted", class: "number", cell: (q) => q.posted },
  { title: "In flight", class: "number", cell: (q) => q.in_flight },
  { title: "Packets", class: "number", cell: (q) => q.packets },
  { title: "Waits for", cell: (q, td) => void (text(td, q.waits || "–"), (td.title = reasons[q.waits] || ""), (td.className = q.waits ? "warn" : "")) },
];
const connectionColumns = [
  { title: "Over", cell: (c) => c.wire },
  { title: "To", cell: (c) => [c.peer_name, c.peer_function || c.peer_address || "–"].filter(Boolean).join(" ") },
  { title: "State", cell: (c) => c.state },
  { title: "QPs", cell: (c) => `${hex(c.qpn)} – ${hex(c.peer_qpn)}` },
  { title: "Window", class: "number", cell: (c) => si(c.cwnd) },
  { title: "Round trip", class: "number", cell: (c) => (c.rtt_ns ? span(c.rtt_ns) : "–") },
  { title: "Sent again", class: "number", cell: (c) => c.retransmits },
  { title: "Note", cell: (c) => c.note || "" },
];

function drawFunction(d) {
  const name = selected(), f = d.function;
  if (!name || (f && f.id !== name)) return; // of an earlier selection
  $("function").hidden = false;
  text($("function-title"), name);
  text($("function-state"), f ? f.state : "This NIC has no such function now.");
  $("function-fault").hidden = !f?.fault;
  text($("function-fault"), f?.fault || "");
  facts(f ? [
    ["Guest", f.guest ? `${f.guest}${f.attached ? `, attached by ${f.attached}` : ", not attached"}` : "none"],
    ["Tenant", f.tenant || "none"], ["Address", f.addr || "none"], ["MAC", f.mac],
    ["Link", `${f.link_up ? "up" : "down"} (${f.link})`],
    ["Port", f.port ? `${f.port.name}, ${f.port.type}, MTU ${f.port.mtu}, ${f.port.up ? "up" : "down"}${f.port.fault ? `: ${f.port.fault}` : ""}` : "none"],
    ["Rate", f.max_tx_rate ? `at most ${f.max_tx_rate} Mbit/s, weight ${f.weight}` : `no limit, weight ${f.weight}`],
    ["Resets", f.resets],
    ...(f.type === "pf" ? [["VFs", `${f.num_vfs || 0} of ${f.total_vfs || 0}`]] : []),
  ] : []);
  meters($("function-credits"), d.credits);
  rows($("qps"), queuePairs, d.qps, (q) => q.qpn, "No queue pairs.");
  rows($("connections"), connectionColumns, d.connections, (c) => `${c.wire} ${c.qpn} ${c.peer_qpn} ${c.local_cid}`, "No connections.");
  $("omitted").hidden = !d.omitted;
  text($("omitted"), `${d.omitted} more are not listed; vnic show qps and vnic show connections have all.`);
}

function facts(list) {
  const box = $("facts");
  if (box.children.length !== list.length) box.replaceChildren(...list.map(() => el("div", {}, el("dt"), el("dd"))));
  list.forEach(([k, v], i) => {
    text(box.children[i].firstChild, k);
    text(box.children[i].lastChild, v);
  });
}

function drawWaits() {
  const s = state;
  const kinds = Object.entries(s.waits).map(([why, n]) => `${n} for ${why}`);
  text($("waits-text"), kinds.length ? `Of ${s.qps} queue pairs wait ${kinds.join(", ")}.` : `None of ${s.qps} queue pairs waits for credit or its rate.`);
  rows($("waiting"), [
    { title: "Function", cell: (q, td) => void (td.firstChild || td.append(el("a", { href: `#${q.function}` }, q.function))) }, ...queuePairs,
  ], s.waiting, (q) => `${q.function} ${q.qpn}`, "Nothing waits.");
  rows($("drops"), [
    { title: "Counter", cell: (d) => d.counter }, { title: "Packets", class: "number", cell: (d) => perSecond(d.rate) },
  ], s.drops, (d) => d.counter, "Nothing is dropped.");
}

// Recordings.
$("trace-form").addEventListener("submit", async (e) => {
  e.preventDefault();
  const say = (s) => text($("trace-status"), s);
  const time = $("trace-time").value;
  const query = new URLSearchParams({ function: selected(), qp: $("trace-qp").value.trim() || "0", for: time });
  say(`tracing for ${time} …`);
  try {
    const answer = await fetch(`trace?${query}`);
    const words = await answer.text();
    if (!answer.ok) throw new Error(words.trim());
    const { operations, lost } = parse(words);
    $("timeline").replaceChildren(timeline(operations));
    say(`${operations.length} requests, the longest first${lost ? `; ${lost} events were too many to keep` : ""}`);
  } catch (err) {
    say(err.message);
  }
});

$("capture-form").addEventListener("submit", async (e) => {
  e.preventDefault();
  const say = (s) => text($("capture-status"), s);
  const time = $("capture-time").value;
  say(`capturing for ${time} …`);
  try {
    const answer = await fetch(`capture?for=${time}`);
    if (!answer.ok) throw new Error((await answer.text()).trim());
    const file = await answer.blob();
    const link = el("a", { href: URL.createObjectURL(file), download: `vnic-host${state ? state.nic.host : ""}.pcapng` });
    link.click();
    URL.revokeObjectURL(link.href);
    say(`${si(file.size)}B captured`);
  } catch (err) {
    say(err.message);
  }
});

// Selection and keys.
window.addEventListener("hashchange", () => {
  $("function").hidden = true;
  $("timeline").replaceChildren();
  text($("trace-status"), "");
  connect();
  if (state) {
    drawMap();
    drawFunctions();
  }
});
$("function-close").addEventListener("click", (e) => {
  e.preventDefault();
  close();
});

function close() {
  const name = selected();
  if (!name) return;
  history.pushState(null, "", location.pathname);
  window.dispatchEvent(new HashChangeEvent("hashchange"));
  link(name)?.focus();
}

const link = (name) => document.querySelector(`#function-table a[href="#${CSS.escape(name)}"]`);

document.addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.altKey || e.metaKey) return;
  const typing = e.target.matches("input, select");
  if (e.key === "/" && !typing) {
    e.preventDefault();
    $("filter").focus();
  } else if (e.key === "Escape" && e.target === $("filter") && e.target.value !== "") {
    e.target.value = "";
    limit = step;
    if (state) drawFunctions();
  } else if (e.key === "Escape") {
    close();
  } else if ((e.key === "ArrowDown" || e.key === "ArrowUp") && (!typing || e.target === $("filter"))) {
    const links = [...document.querySelectorAll("#function-table tbody a")];
    const at = links.indexOf(e.target);
    if (at < 0 && e.target !== $("filter") && e.target !== document.body) return;
    e.preventDefault();
    const to = links[Math.max(at + (e.key === "ArrowDown" ? 1 : -1), 0)];
    (to || e.target).focus();
  }
});

connect();
