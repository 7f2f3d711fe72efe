// Charts over time, drawn as SVG: lines, and a histogram of waits whose columns are moments.

const WIDTH = 560, HEIGHT = 150, LEFT = 74, BOTTOM = 18;
// Rows of the histories' histograms: below 1.024 us, then factors of four, then all longer waits.
const ROWS = 13;

function shape(name, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function element(name, attributes, ...content) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  node.append(...content);
  return node;
}

// An empty chart whose x axis ends now and begins `span` seconds earlier.
function frame(span, now, label) {
  const svg = shape("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT + BOTTOM}`, role: "img", "aria-label": label });
  const x = (end) => LEFT + (WIDTH - LEFT) * (1 - (now - end) / span);
  svg.append(shape("line", { class: "axis", x1: LEFT, x2: WIDTH, y1: HEIGHT, y2: HEIGHT }));
  const ago = (seconds) => (seconds >= 7200 ? `${seconds / 3600} h` : `${seconds / 60} min`);
  for (const [share, anchor] of [[1, "start"], [0.5, "middle"]]) {
    svg.append(shape("text", { x: x(now - span * share), y: HEIGHT + 14, "text-anchor": anchor }, `${ago(span * share)} ago`));
  }
  svg.append(shape("text", { x: WIDTH, y: HEIGHT + 14, "text-anchor": "end" }, "now"));
  return { svg, x };
}

function figure(title, keys, svg) {
  const legend = element("span", {});
  keys.forEach((key, index) => legend.append(element("span", { class: `c${index}` }, `${index ? "  " : ""}— ${key}`)));
  return element("figure", {}, element("figcaption", {}, element("b", {}, title), legend), svg);
}

// Lines of several columns; null values are gaps.
function lines(title, keys, columns, ends, span, now, format, most) {
  const { svg, x } = frame(span, now, `${title} over time`);
  const values = columns.flat().filter((value) => value != null);
  const top = most ?? (Math.max(...values, 0) || 1);
  const y = (value) => HEIGHT - (HEIGHT - 8) * Math.min(value / top, 1);
  for (const level of [0, 0.5, 1]) {
    svg.append(shape("line", { class: "grid", x1: LEFT, x2: WIDTH, y1: y(level * top), y2: y(level * top) }));
    svg.append(shape("text", { x: LEFT - 8, y: y(level * top) + 4, "text-anchor": "end" }, format(level * top)));
  }
  columns.forEach((column, index) => {
    let points = [];
    const draw = () => {
      if (points.length) svg.append(shape("polyline", { class: `c${index}`, points: points.join(" ") }));
      points = [];
    };
    column.forEach((value, step) => {
      if (value == null || now - ends[step] > span) draw();
      else points.push(`${x(ends[step]).toFixed(1)},${y(value).toFixed(1)}`);
    });
    draw();
  });
  return figure(title, keys, svg);
}

// Waits: darker where more frames waited so long.
function heat(title, columns, ends, span, now) {
  const { svg, x } = frame(span, now, `${title}: how many frames waited how long, over time`);
  const height = (HEIGHT - 8) / ROWS;
  const most = Math.log1p(Math.max(1, ...columns.flat()));
  for (const row of [0, 5, 10, 12]) {
    const label = row === ROWS - 1 ? "longer" : `< ${time(2 ** (10 + 2 * row))}`;
    svg.append(shape("text", { x: LEFT - 8, y: HEIGHT - height * (row + 0.5) + 4, "text-anchor": "end" }, label));
  }
  columns.forEach((rows, step) => {
    const width = ((WIDTH - LEFT) * (step ? ends[step] - ends[step - 1] : ends[1] - ends[0] || 5)) / span;
    rows.forEach((count, row) => {
      if (count < 1 || now - ends[step] > span) return;
      svg.append(shape("rect", {
        class: "cell", x: (x(ends[step]) - width).toFixed(1), y: (HEIGHT - height * (row + 1)).toFixed(1),
        width: (width + 0.3).toFixed(1), height: height.toFixed(1), opacity: (0.12 + (0.88 * Math.log1p(count)) / most).toFixed(2),
      }));
    });
  });
  return figure(title, [], svg);
}
