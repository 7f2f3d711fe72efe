// The live page: one reading a second, links, tenants and vifs drawn from it; a history for whatever is chosen.

const PERIOD = 1000, HISTORY_PERIOD = 5000;
const ROW_HEIGHT = 35;
// How far a share may be below what is due and still count as met.
const SAME_SHARE = 0.01;

const COLUMNS = [
  { key: "name", of: (vif) => vif.name },
  { key: "link", of: (vif) => vif.link, from: "wide" },
  { key: "tenant", of: (vif) => vif.tenant ?? "", from: "wide" },
  { key: "state", of: state, from: "middle" },
  { key: "sent", of: (vif) => vif.sent_rate, shown: (vif) => rate(vif.sent_rate) },
  { key: "received", of: (vif) => vif.received_rate, shown: (vif) => rate(vif.received_rate), from: "middle" },
  { key: "share", of: (vif) => vif.share },
  { key: "due", of: (vif) => vif.due ?? -1, shown: (vif) => part(vif.due), from: "wide" },
  { key: "p99 <", of: (vif) => vif.wait_p99 ?? -1, shown: (vif) => time(vif.wait_p99), from: "middle" },
  { key: "drops/s", of: (vif) => vif.drop_rate, shown: (vif) => number(vif.drop_rate) },
];

const get = (selector) => document.querySelector(selector);
const view = { reading: null, rows: [], drawn: new Map(), places: null, order: null, down: false, chosen: null, span: "recent", paused: false, history: null };

// Links

function meter(label, value, most, shown) {
  return [element("dt", {}, label), bar(most ? value / most : 0), element("dd", {}, shown)];
}

function bar(filled) {
  const node = element("span", { class: "bar" }, element("i", {}));
  fillBar(node, filled);
  return node;
}

// A transformation lays nothing out anew, a width does.
function fillBar(bar, filled) {
  bar.firstChild.style.transform = `scaleX(${Math.min(filled, 1)})`;
}

// A share as a bar with a mark where it should end, and as a number.
function share(has, due) {
  const node = element("span", { class: "share" }, bar(has), element("span", {}, " "));
  fillShare(node, has, due);
  return node;
}

function fillShare(node, has, due) {
  const [bar, text] = node.children;
  fillBar(bar, has);
  text.firstChild.data = part(has);
  if (due == null) bar.children[1]?.remove();
  else if (!bar.children[1]) bar.append(element("u", {}));
  if (due != null) bar.children[1].style.left = `calc(${Math.min(due, 1) * 100}% - 1px)`;
  node.classList.toggle("low", due != null && has < due - SAME_SHARE);
}

function chooser(kind, name) {
  const button = element("button", { type: "button", class: "name" }, name);
  button.addEventListener("click", () => choose(kind, name));
  return button;
}

function drawLinks(reading) {
  const cards = reading.links.map((link) => {
    const uplink = link.uplink ? `uplink ${link.uplink.state}` : "no uplink";
    const limit = link.rate ? ` of ${rate(link.rate)}` : "";
    const facts = element("dl", {},
      ...meter("out", link.out_rate, link.rate, rate(link.out_rate) + limit),
      ...meter("in", link.in_rate, link.rx_rate, rate(link.in_rate)),
      ...meter("worker", link.busy, 1, `${(link.busy * 100).toFixed(0)}%`));
    return element("div", { class: "link", "data-link": link.name }, chooser("link", link.name),
      element("span", {}, ` ${link.scheduler}, ${uplink}`), facts);
  });
  get("#links").replaceChildren(...cards);
}

function drawTenants(reading) {
  get("#tenants").hidden = reading.tenants.length === 0;
  const rows = reading.tenants.map((tenant) => {
    const on = tenant.links.length ? tenant.links : [{ link: "-", share: 0, due: null }];
    return element("tr", { "data-tenant": tenant.name },
      element("td", {}, chooser("tenant", tenant.name)),
      element("td", {}, on.map((use) => use.link).join(", ")),
      element("td", { class: "n" }, rate(tenant.sent_rate)), element("td", { class: "n" }, rate(tenant.received_rate)),
      element("td", {}, ...on.map((use) => share(use.share, use.due))), element("td", { class: "n wide" }, String(tenant.weight)));
  });
  get("#tenants tbody").replaceChildren(...rows);
}

// Vifs: only the rows in sight exist.

function drawHead() {
  const heads = COLUMNS.map((column) => {
    const button = element("button", { type: "button" }, column.key);
    button.addEventListener("click", () => sortBy(column));
    const head = element("th", { class: `${column.shown ? "n" : ""} ${column.from ?? ""}` }, button);
    column.head = head;
    return head;
  });
  get("#vifs thead tr").replaceChildren(...heads);
}

// Figures are sorted with the largest first.
function sortBy(column) {
  const down = typeof column.of(view.reading?.vifs[0] ?? {}) === "number";
  if (view.order !== column) [view.order, view.down] = [column, down];
  else if (view.down === down) view.down = !down;
  else view.order = null;
  for (const { head } of COLUMNS) head.removeAttribute("aria-sort");
  view.order?.head.setAttribute("aria-sort", view.down ? "descending" : "ascending");
  arrange();
}

// Chooses and sorts the rows.
function arrange() {
  const wanted = get("#search").value.trim().toLowerCase();
  const has = (vif) => [vif.name, vif.link, vif.tenant ?? "", state(vif)].some((text) => text.toLowerCase().includes(wanted));
  const all = view.reading?.vifs ?? [];
  view.rows = wanted ? all.filter(has) : [...all];
  if (view.order) {
    const { of } = view.order, sign = view.down ? -1 : 1;
    view.rows.sort((a, b) => (of(a) < of(b) ? -sign : of(a) > of(b) ? sign : 0));
  }
  get("#found").textContent = wanted ? `${view.rows.length} of ${all.length}` : "";
  drawRows();
}

function drawRows() {
  const body = get("#vifs tbody");
  const above = Math.max(0, -body.getBoundingClientRect().top);
  const first = Math.max(0, Math.floor(above / ROW_HEIGHT) - 5);
  const last = Math.min(view.rows.length, first + Math.ceil(innerHeight / ROW_HEIGHT) + 10);
  const space = (rows) => {
    const row = element("tr", { class: "space", "aria-hidden": "true" }, element("td", { colspan: COLUMNS.length }));
    row.firstChild.style.height = `${rows * ROW_HEIGHT}px`;
    return row;
  };
  const shown = view.rows.slice(first, last);
  const rows = shown.map((vif) => view.drawn.get(vif.name) ?? row(vif));
  const places = `${first} ${view.rows.length - last}`;
  // Rows that stay are not touched: placing and laying out a table costs more than all figures.
  if (places !== view.places || rows.length !== view.drawn.size || rows.some((row, index) => body.rows[index + 1] !== row)) {
    // The row with the focus must not be replaced by a new one under the user's hands.
    const focused = body.contains(document.activeElement) ? document.activeElement : null;
    body.replaceChildren(space(first), ...rows, space(view.rows.length - last));
    focused?.focus();
    view.places = places;
    view.drawn = new Map(shown.map((vif, index) => [vif.name, rows[index]]));
  }
  shown.forEach((vif, index) => fill(rows[index], vif));
}

// A row whose figures are to be filled in.
function row(vif) {
  const cells = COLUMNS.map((column) => {
    const content = column.key === "name" ? chooser("vif", vif.name) : column.key === "share" ? share(0, null) : " ";
    return element("td", { class: `${column.shown ? "n" : ""} ${column.from ?? ""}`, "data-figure": column.key }, content);
  });
  return element("tr", { "data-vif": vif.name }, ...cells);
}

// Changes what differs from what is shown.
function fill(row, vif) {
  const chosen = view.chosen?.kind === "vif" && view.chosen.name === vif.name ? "chosen" : "";
  const kind = `${vif.state} ${chosen}`;
  if (row.className !== kind) row.className = kind;
  for (const [index, column] of COLUMNS.entries()) {
    const cell = row.cells[index];
    const shown = column.key === "share" ? `${part(vif.share)} ${part(vif.due)}` : String((column.shown ?? column.of)(vif));
    if (cell.shown === shown) continue;
    cell.shown = shown;
    if (column.key === "share") fillShare(cell.firstChild, vif.share, vif.due);
    else if (column.key !== "name") cell.firstChild.data = shown;
  }
}

// Details

function choose(kind, name) {
  view.chosen = { kind, name };
  view.history = null;
  get("#details").hidden = false;
  drawDetails();
  drawRows();
  loadHistory();
  get("#details").scrollIntoView({ block: "nearest" });
}

function settings({ weight, min_rate, min_rate_on = {}, max_rate, max_frames }, prefix) {
  const said = [`${prefix}weight ${weight}`];
  if (min_rate) said.push(`${prefix}min_rate ${rate(min_rate)}`);
  for (const [link, on] of Object.entries(min_rate_on)) said.push(`min_rate ${on ? rate(on) : "none"} on ${link}`);
  if (max_rate != null) said.push(`${prefix}max_rate ${rate(max_rate)}`);
  if (max_frames != null) said.push(`${prefix}max_frames ${max_frames}`);
  return said;
}

function about(kind, seen) {
  if (seen.state === "disabled") return `disabled: ${seen.reason}`;
  if (kind === "link") return `scheduler ${seen.scheduler}, rate ${seen.rate ? rate(seen.rate) : "none"}, rx_rate ${seen.rx_rate ? rate(seen.rx_rate) : "none"}`;
  if (kind === "tenant") return settings(seen, "").join(", ");
  const said = [...settings(seen, ""), ...settings(seen.receive, "rx_")];
  if (seen.tenant) said.push(`tenant ${seen.tenant}`);
  if (seen.waits_for) said.push(`waits for ${seen.waits_for}`);
  said.push(...notServed(seen));
  if (seen.receive.queued_frames) said.push(`${seen.receive.queued_frames} frames (${size(seen.receive.queued_bytes)}) wait for its guest`);
  if (seen.receive.marked_frames) said.push(`${seen.receive.marked_frames} frames for its guest marked (ECN)`);
  return said.join(", ");
}

function list(title, entries) {
  if (!entries.length) return [];
  const items = entries.map(([name, value]) => element("li", {}, `${name}: ${value}`));
  return [element("div", {}, element("h3", {}, title), element("ul", {}, ...items))];
}

function drawDetails() {
  const { kind, name } = view.chosen;
  const seen = view.reading[`${kind}s`].find((one) => one.name === name);
  get("#details h2").textContent = `${kind} ${name}`;
  get("#details .settings").textContent = seen ? about(kind, seen) : "gone";
  get("#details .settings").classList.toggle("bad", !seen || seen.state === "disabled");
  const port = kind === "link" ? seen?.uplink : seen;
  const early = seen?.early_ack;
  get("#details .facts").replaceChildren(
    ...list("Frames since its start", port?.sent_frames == null ? [] : [["sent", port.sent_frames], ["received", port.received_frames]]),
    ...list("Drops by reason", Object.entries(port?.drops ?? {})),
    ...list("Early ack", early ? [
      ["mode", early.engaged ? `${early.mode}, engaged` : early.mode], ["flows", early.flows], ["retained", size(early.retained)],
      ["ACKs sent", early.early_acks], ["retransmissions", early.retransmissions], ["resets", early.resets]] : []),
    ...list("Flows left to their ends", Object.entries(early?.fallbacks ?? {})));
}

function drawHistory() {
  const charts = get("#details .charts");
  if (!view.history) {
    charts.replaceChildren(element("p", {}, "no history yet: its first step ends within five seconds"));
    return;
  }
  const { kind } = view.chosen;
  const history = view.history[view.span], { end } = history;
  const span = view.span === "day" ? 86400 : 600, now = view.reading.time / 1e9;
  const drawn = [lines("Rates", kind === "link" ? ["out", "in"] : ["sent", "received"], [history.sent_rate, history.received_rate], end, span, now, rate)];
  if (history.share.some((value) => value != null)) {
    drawn.push(lines("Share of the link", ["share", "due"], [history.share, history.due], end, span, now, part, 1));
  }
  if (kind !== "tenant") drawn.push(heat("Waits in the ring", history.waits, end, span, now), heat("Waits for the guest", history.rx_waits, end, span, now));
  if (history.drop_rate.some((value) => value > 0)) drawn.push(lines("Drops a second", ["frames"], [history.drop_rate], end, span, now, number));
  charts.replaceChildren(...drawn);
}

async function loadHistory() {
  if (!view.chosen || view.paused) return;
  const { kind, name } = view.chosen;
  const answer = await fetch(`api/v1/history?${new URLSearchParams({ [kind]: name })}`).catch(() => null);
  const history = answer?.ok ? await answer.json() : null;
  if (view.chosen?.name === name && view.chosen.kind === kind) {
    view.history = history ?? view.history;
    drawHistory();
  }
}

// The loop

function draw(reading) {
  view.reading = reading;
  get("#summary").textContent = `${several(reading.links.length, "link")}, ${several(reading.vifs.length, "vif")}, up ${duration(reading.time)}`;
  drawLinks(reading);
  drawTenants(reading);
  arrange();
  if (view.chosen) drawDetails();
  document.body.dataset.time = reading.time;
}

function tell(text, bad) {
  get("#state").textContent = text;
  get("#state").classList.toggle("bad", bad);
  document.body.classList.toggle("stale", bad);
}

async function update() {
  if (!view.paused && !document.hidden) {
    try {
      const answer = await fetch("api/v1/snapshot");
      if (!answer.ok) throw new Error((await answer.text()).trim());
      draw(await answer.json());
      tell("live", false);
    } catch (error) {
      tell(`no figures: ${error.message}`, true);
    }
  }
  setTimeout(update, PERIOD);
}

get("#pause").addEventListener("click", () => {
  view.paused = !view.paused;
  get("#pause").textContent = view.paused ? "Go on" : "Pause";
  if (view.paused) tell("paused", false);
});
get("#close").addEventListener("click", () => {
  view.chosen = null;
  get("#details").hidden = true;
  drawRows();
});
for (const button of document.querySelectorAll(".choice button")) {
  button.addEventListener("click", () => {
    view.span = button.dataset.span;
    for (const other of document.querySelectorAll(".choice button")) other.setAttribute("aria-pressed", other === button);
    drawHistory();
  });
}
get("#search").addEventListener("input", arrange);
addEventListener("scroll", drawRows, { passive: true });
addEventListener("resize", drawRows);
drawHead();
update();
setInterval(loadHistory, HISTORY_PERIOD);
