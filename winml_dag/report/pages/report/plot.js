// The trade-offs: size and latency against quality, a point per build, the front as a line.

const EDGE = { top: 14, right: 18, bottom: 44, left: 82 };
const MARK = 6;

function plots() {
  const quality = ["drop", "cosine", "sqnr", "accuracy"].map((id) => columnsById.get(id))
    .filter((one) => rows.filter((row) => one.value(row) !== null).length > 1);
  if (quality.length === 0) return null;
  const models = distinct((row) => row.model);
  const state = { model: models.length > 1 ? models[0] : "", target: "", quality: quality[0].id };
  const figures = ["size", "p50"].map((id) => el("figure", { class: "plot", "data-measure": id }));
  const draw = () => figures.forEach((figure) => drawPlot(figure, state));
  const pick = (name) => (value) => { state[name] = value; draw(); };
  const all = ["", "all"];
  const same = (one) => [one, one];
  new ResizeObserver(onWidth(draw)).observe(figures[0]);
  return section("trade-offs", "Trade-offs",
    el("div", { class: "controls" },
      models.length > 1 && chooser("Model", [all, ...models.map(same)], state.model, pick("model")),
      distinct(target).length > 1 && chooser("EP and device", [all, ...distinct(target).map(same)], "", pick("target")),
      quality.length > 1 && chooser("Quality", quality.map((one) => [one.id, fullLabel(one)]), state.quality, pick("quality"))),
    el("div", { class: "plots" }, ...figures),
    el("p", { class: "note", text: "Up and to the left is better. The line joins the Pareto-optimal builds; grey and hollow ones are Pareto-dominated. The table below has all figures." }));
}

/** Redraw only when the width has changed: drawing changes the height. */
function onWidth(draw) {
  let width = 0;
  return (entries) => {
    const now = Math.round(entries[0].contentRect.width);
    if (now > 0 && now !== width) { width = now; draw(); }
  };
}

function drawPlot(figure, state) {
  const x = columnsById.get(String(figure.dataset.measure));
  const y = columnsById.get(state.quality);
  const asked = rows.filter((row) => isThere(row) && (!state.model || row.model === state.model) && (!state.target || target(row) === state.target));
  const shown = asked.filter((row) => isFinitePoint(x, y, row) && !saysNothing(x, row));
  const caption = el("figcaption", {}, el("strong", { text: `${fullLabel(x)} against ${fullLabel(y).toLowerCase()}` }), el("span", { class: "left-out", text: whatIsNotShown(x, asked, shown) }));
  if (shown.length === 0) return figure.replaceChildren(caption);
  const points = shown.map((row) => ({ row, x: x.value(row) / unitOf(x), y: y.value(row) }));
  figure.replaceChildren(caption, drawing(points, x, y, Math.max(260, figure.clientWidth)), plotLegend(shown));
}

function isFinitePoint(x, y, row) {
  return [x, y].every((one) => one.value(row) !== null && Number.isFinite(one.value(row)));
}

function whatIsNotShown(x, asked, shown) {
  const emulated = x.part === "latency" ? asked.filter(isEmulated).length : 0;
  const missing = asked.length - shown.length - emulated;
  return [
    emulated ? `${counted(emulated, "build")} not shown: measured on an emulator.` : "",
    missing > 0 ? `${counted(missing, "build")} not shown: not measured.` : "",
  ].filter(Boolean).join(" ");
}

function drawing(points, x, y, width) {
  const height = Math.round(Math.min(380, Math.max(260, width * 0.62)));
  const signX = x.better === "low" ? 1 : -1, signY = y.better === "low" ? 1 : -1;
  const across = axisOf(points.map((point) => point.x), EDGE.left, width - EDGE.right);
  const up = axisOf(points.map((point) => point.y), height - EDGE.bottom, EDGE.top, signY === 1);
  const fronts = [...grouped(points).values()].map((some) => frontOf(some, signX, signY));
  const onFront = new Set(fronts.flat().map((point) => point.row));
  const marks = inReadingOrder(points).map((point) => mark(point, across.at(point.x), up.at(point.y), onFront.has(point.row), x, y));
  const picture = svg("svg", { viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": `${fullLabel(x)} against ${fullLabel(y)}, ${counted(points.length, "build")}. Arrow keys move between builds.` },
    ...ticksAcross(across, x, height, width), ...ticksUp(up, y, width),
    ...fronts.map((front) => svg("path", { class: "front", d: staircase(front.map((point) => [across.at(point.x), up.at(point.y)])) })),
    ...[...marks].sort((one, other) => Number(one.classList.contains("best")) - Number(other.classList.contains("best"))), ...labels(points, onFront, across, up, width));
  roving(picture, marks, (from, key) => ({ ArrowRight: from + 1, ArrowDown: from + 1, ArrowLeft: from - 1, ArrowUp: from - 1 })[key] ?? null);
  return picture;
}

/** Models are not alternatives to each other, so each has its own front. */
function grouped(points) {
  const groups = new Map();
  for (const point of points) groups.set(point.row.model, [...(groups.get(point.row.model) || []), point]);
  return groups;
}

function inReadingOrder(points) {
  return [...points].sort((one, other) => one.x - other.x || one.y - other.y);
}

function axisOf(values, from, to, isTurned = false) {
  const least = Math.min(...values), most = Math.max(...values);
  const margin = (most - least || Math.abs(most) || 1) * 0.08;
  const low = least >= 0 ? Math.max(0, least - margin) : least - margin, high = most + margin;
  const ends = isTurned ? [high, low] : [low, high];
  const stride = niceStride((high - low) / 5);
  const ticks = [];
  for (let place = Math.ceil(low / stride); place * stride <= high; place += 1) ticks.push(place * stride);
  return { at: (value) => from + ((value - ends[0]) / (ends[1] - ends[0])) * (to - from), ticks };
}

function niceStride(rough) {
  const power = 10 ** Math.floor(Math.log10(rough));
  return power * ([1, 2, 5, 10].find((one) => one * power >= rough) || 10);
}

function ticksAcross(axis, x, height, width) {
  const base = height - EDGE.bottom;
  return [
    ...axis.ticks.flatMap((value) => [
      svg("line", { class: "grid", x1: axis.at(value), x2: axis.at(value), y1: EDGE.top, y2: base }),
      svg("text", { class: "tick", x: axis.at(value), y: base + 16, "text-anchor": "middle", text: tickText(value, axis.ticks) })]),
    svg("text", { class: "axis", x: (EDGE.left + width - EDGE.right) / 2, y: height - 6, "text-anchor": "middle", text: axisLabel(x) }),
  ];
}

function ticksUp(axis, y, width) {
  const middle = axis.ticks.length ? (axis.at(axis.ticks[0]) + axis.at(axis.ticks[axis.ticks.length - 1])) / 2 : 100;
  return [
    ...axis.ticks.flatMap((value) => [
      svg("line", { class: "grid", x1: EDGE.left, x2: width - EDGE.right, y1: axis.at(value), y2: axis.at(value) }),
      svg("text", { class: "tick", x: EDGE.left - 8, y: axis.at(value) + 4, "text-anchor": "end", text: tickText(value, axis.ticks) })]),
    svg("text", { class: "axis", transform: `translate(13 ${middle}) rotate(-90)`, "text-anchor": "middle", text: axisLabel(y) }),
  ];
}

/** Sizes are drawn in MiB, so that the scale has round numbers. */
function unitOf(one) {
  return one.part === "size" ? 2 ** 20 : 1;
}

function axisLabel(one) {
  return one.part === "latency" ? `${fullLabel(one)} (ms)` : one.part === "size" ? `${fullLabel(one)} (MiB)` : fullLabel(one);
}

function tickText(value, ticks) {
  const stride = ticks.length > 1 ? ticks[1] - ticks[0] : Math.abs(value) || 1;
  return value.toFixed(Math.max(0, Math.min(6, -Math.floor(Math.log10(stride) + 1e-9)))).replace("-", "\u2212");
}

/** The path along the front, in steps through values that are certainly achievable. */
function staircase(places) {
  return places.map(([x, y], place) => (place === 0 ? `M${x},${y}` : `H${x}V${y}`)).join("");
}

function mark(point, x, y, isOnFront, across, up) {
  const place = distinct(target).indexOf(target(point.row)) % 4;
  const link = svg("a", { href: addressOf(point.row), class: `mark target-${place} ${isOnFront ? "best" : "beaten"}`,
    "aria-label": `${point.row.name}: ${fullLabel(across)} ${textOf(across, point.row)}, ${fullLabel(up)} ${textOf(up, point.row)}${isOnFront ? ", on the front" : ", beaten by another"}` },
  svg("circle", { class: "reach", cx: x, cy: y, r: MARK * 2 }), svg("path", { d: shape(place, x, y, isOnFront ? MARK : MARK - 1) }));
  return withTooltip(link, () => [...aboutRow(point.row), [isOnFront ? "Pareto-optimal." : "Pareto-dominated: another build here is at least as good in both."]]);
}

/** A shape per target, so that they differ not only by colour. */
function shape(place, x, y, r) {
  return [
    `M${x - r},${y}a${r},${r} 0 1 0 ${2 * r},0a${r},${r} 0 1 0 ${-2 * r},0z`,
    `M${x - r + 0.5},${y - r + 0.5}h${2 * r - 1}v${2 * r - 1}h${1 - 2 * r}z`,
    `M${x},${y - r - 1}L${x + r + 1},${y + r - 1}H${x - r - 1}z`,
    `M${x},${y - r - 1.5}L${x + r + 1.5},${y}L${x},${y + r + 1.5}L${x - r - 1.5},${y}z`,
  ][place];
}

/** Labels for the points on the front, where there is room. */
function labels(points, onFront, across, up, width) {
  const taken = points.map((point) => [across.at(point.x) - MARK, up.at(point.y) - MARK, across.at(point.x) + MARK, up.at(point.y) + MARK]);
  const severalModels = grouped(points).size > 1, severalTargets = new Set(points.map((point) => target(point.row))).size > 1;
  return inReadingOrder(points).filter((point) => onFront.has(point.row)).flatMap((point) => {
    const choice = [severalTargets && target(point.row), point.row.precision + trialMark(point.row)].filter(Boolean).join(" ");
    const text = severalModels ? `${point.row.model} ${choice}` : choice;
    const short = text.length > 30 ? `${text.slice(0, 29)}\u2026` : text;
    const place = freePlace(across.at(point.x), up.at(point.y), short.length * 6.6, taken, width);
    return place ? [svg("text", { class: "name", x: place[0], y: place[1], "aria-hidden": "true", direction: "ltr", text: short })] : [];
  });
}

function freePlace(x, y, length, taken, width) {
  for (const [left, base] of [[x + 6, y - 8], [x - length / 2, y - 11], [x - length - 6, y - 8], [x + 9, y + 16], [x - length - 9, y + 4], [x + 10, y + 4]]) {
    const box = [left, base - 11, left + length, base + 3];
    const overlaps = taken.some((other) => box[0] < other[2] && other[0] < box[2] && box[1] < other[3] && other[1] < box[3]);
    if (!overlaps && left > EDGE.left && left + length < width - 2 && base > 12) {
      taken.push(box);
      return [left, base];
    }
  }
  return null;
}

function plotLegend(shown) {
  const all = distinct(target);
  const here = all.filter((one) => shown.some((row) => target(row) === one));
  return el("p", { class: "legend" }, ...here.map((one) => el("span", { class: "entry" },
    svg("svg", { width: 16, height: 16, viewBox: "0 0 16 16", "aria-hidden": "true", class: `mark target-${all.indexOf(one) % 4} best` }, svg("path", { d: shape(all.indexOf(one) % 4, 8, 8, MARK) })), own(one))));
}

/** The points on the front, from left to right. `signX` and `signY` are 1 if less is better, -1 if more is. */
function frontOf(points, signX, signY) {
  const inOrder = [...points].sort((one, other) => signX * (one.x - other.x) || signY * (one.y - other.y));
  const front = [];
  for (const point of inOrder) {
    const last = front[front.length - 1];
    if (!last || signY * point.y < signY * last.y || (point.x === last.x && point.y === last.y)) front.push(point);
  }
  return front;
}
