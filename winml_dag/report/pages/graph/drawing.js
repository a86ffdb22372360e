/* The drawing of one view: boxes as elements, edges as two paths, one for all and one for the highlighted ones. */

const BOX = { width: 176, height: 38 };
/* Below this width of the window, boxes are narrower and show less text. */
const NARROW = 600;
/* The least distance between columns and between rows. */
const least = (isTall) => (isTall ? { column: 84, row: BOX.width + 14 } : { column: BOX.width + 60, row: 48 });
const MARKS = { reused: "\u2713", ran: "\u25b6", failed: "\u2717", source: "", unknown: "" };
/* Labels of the statuses in a plan or in the last run. */
const STATUS = { reused: "reused", ran: "would run", failed: "failed", source: "source", unknown: "not come to" };

/** How a view is laid out: in the direction that fits the window at the larger scale, stretched to fill it. */
const layoutFor = (view, window) => {
  BOX.width = window.width < NARROW ? 116 : 176;
  const [first, second] = [false, true].map((isTall) => {
    const { column, row } = least(isTall);
    const along = (view.width - 1) * column, across = (view.height - 1) * row;
    const [width, height] = isTall ? [across, along] : [along, across];
    const room = [Math.max(window.width - 2 * MARGIN, 1), Math.max(window.height - 2 * MARGIN - 20, 1)];
    const scale = Math.min(room[0] / (width + BOX.width), room[1] / (height + BOX.height), 1);
    const stretch = (size, own, at) => (size ? Math.min(2.2, Math.max(1, (room[at] / scale - own) / size)) : 1);
    const [x, y] = [stretch(width, BOX.width, 0), stretch(height, BOX.height, 1)];
    return { scale, isTall, column: column * (isTall ? y : x), row: row * (isTall ? x : y) };
  });
  return second.scale > first.scale ? second : first;
};

let layout = { isTall: false, column: 0, row: 0 };
const left = (box) => (layout.isTall ? box.row * layout.row : box.column * layout.column);
const top = (box) => (layout.isTall ? box.column * layout.column : box.row * layout.row);
const isShared = (box) => box.cells && box.cells.length > 1 && box.status !== "source";
const isGroup = (box) => Boolean(box.members) && box.members.length > 1;

/** Shorten to *most* letters by cutting out the middle. */
const shortened = (text, most) => {
  const letters = [...text];
  if (letters.length <= most) return text;
  const end = Math.floor((most - 1) / 2);
  return `${letters.slice(0, most - 1 - end).join("")}\u2026${letters.slice(letters.length - end).join("")}`;
};

/** The elements of a view, ready to insert into the picture. */
class Drawing {
  constructor(view) {
    this.view = view;
    this.before = view.boxes.map(() => []);
    this.after = view.boxes.map(() => []);
    for (const [maker, reader] of view.lines) {
      this.after[maker].push(reader);
      this.before[reader].push(maker);
    }
    this.boxes = view.boxes.map((box, place) => this.#box(box, place));
    const isOfSource = ([maker]) => view.boxes[maker].status === "source";
    this.all = svg("g", { class: "all" },
      svg("path", { class: "lines sources", d: this.#path(view.lines.filter(isOfSource)) }),
      svg("path", { class: "lines", d: this.#path(view.lines.filter((line) => !isOfSource(line))) }));
    this.near = svg("path", { class: "lines near", d: "" });
    this.moved = svg("g", {}, this.all, this.near, ...this.#heads(), svg("g", {}, ...this.boxes));
  }

  get size() {
    const end = { column: this.view.width - 1, row: this.view.height - 1 };
    return { width: left(end) + BOX.width, height: top(end) + BOX.height };
  }

  /** All indices reachable from *places* by *neighbours*, including themselves. */
  reached(places, neighbours) {
    const seen = new Set(places);
    const waiting = [...seen];
    while (waiting.length) {
      for (const next of neighbours[waiting.pop()]) {
        if (!seen.has(next)) {
          seen.add(next);
          waiting.push(next);
        }
      }
    }
    return seen;
  }

  /** Everything that *places* depend on or that depends on them. */
  pathOf(places) {
    return new Set([...this.reached(places, this.before), ...this.reached(places, this.after)]);
  }

  /** Draw edges with both ends in *places* on top of the others. */
  highlightLines(places) {
    const lines = places ? this.view.lines.filter(([maker, reader]) => places.has(maker) && places.has(reader)) : [];
    this.near.setAttribute("d", this.#path(lines));
  }

  /** A curve from box to box, straight between the boxes of each column that it passes. */
  #path(lines) {
    return lines.map(([maker, reader, route]) => {
      const from = this.view.boxes[maker];
      const stops = [from, ...route.map((row, place) => ({ row, column: from.column + 1 + place })), this.view.boxes[reader]];
      return stops.map((stop, place) => {
        const side = BOX[layout.isTall ? "width" : "height"] / 2, length = BOX[layout.isTall ? "height" : "width"];
        const [along, across] = layout.isTall ? [top(stop), left(stop) + side] : [left(stop), top(stop) + side];
        const point = (forward, beside) => (layout.isTall ? [beside, forward] : [forward, beside]).map((one) => one.toFixed(1)).join(" ");
        const on = place === 0 || place === stops.length - 1 ? "" : `L${point(along + length, across)}`;
        if (place === 0) return `M${point(along + length, across)}`;
        const before = stops[place - 1], bend = (layout.column - length) * 0.6;
        const started = layout.isTall ? [top(before) + length, left(before) + side] : [left(before) + length, top(before) + side];
        return `C${point(started[0] + bend, started[1])} ${point(along - bend, across)} ${point(along, across)}${on}`;
      }).join("");
    }).join("");
  }

  /** Column headings: the steps in the column and the number of stages. */
  #heads() {
    if (layout.isTall) return [];
    const columns = Array.from({ length: this.view.width }, () => new Map());
    for (const box of this.view.boxes) {
      const step = box.status === "source" ? "sources" : box.step;
      columns[box.column].set(step, (columns[box.column].get(step) || 0) + (box.members ? box.members.length : 1));
    }
    return columns.map((steps, column) => {
      const told = [...steps].slice(0, 3).map(([step, count]) => `${step} ${count}`).join(", ");
      return svg("text", { class: "head", x: column * layout.column, y: -14 }, shortened(told, 34));
    });
  }

  #box(box, place) {
    const group = svg("g", {
      class: `box ${box.status}`, role: "button", tabindex: -1, "data-place": place, "aria-label": this.#said(box),
      transform: `translate(${left(box)} ${top(box)})`,
    });
    const rect = (name, offset) =>
      svg("rect", { class: name, x: offset, y: offset, width: BOX.width, height: BOX.height, rx: 6 });
    if (isShared(box) || isGroup(box)) group.append(rect("behind", 4));
    group.append(rect("front", 0), ...this.#shares(box));
    const count = isGroup(box) ? box.members.length : isShared(box) ? box.cells.length : 0;
    const mark = MARKS[box.status];
    const isNarrow = BOX.width < 176, below = this.#below(box);
    const times = isNarrow ? `${count}` : `${count} ${isGroup(box) ? "stages" : "builds"}`;
    const room = Math.floor((BOX.width - (mark ? 30 : 18) - (count ? 6.5 * times.length : 0)) / 7);
    if (mark) group.append(svg("text", { class: "mark", x: 8, y: 16 }, mark));
    group.append(svg("text", { x: mark ? 22 : 12, y: below ? 16 : 24 }, shortened(box.step, room)));
    if (count) group.append(svg("text", { class: "times", x: BOX.width - 7, y: 16 }, times));
    group.append(svg("text", { class: "label", x: mark ? 8 : 12, y: 31 }, below));
    return group;
  }

  #below(box) {
    const most = Math.floor((BOX.width - 16) / 6.4);
    if (isGroup(box) && BOX.width < 176) return counted((box.cells || []).length, "build");
    const own = box.status === "reused" && box.seconds !== undefined ? `took ${seconds(box.seconds)}` : box.reason;
    const text = (box.label ? "" : own) || "";
    if (!text) return shortened(box.label || "", most);
    return text.length > most ? `${text.slice(0, most - 1)}\u2026` : text;
  }

  /** At the bottom of a group, the share of each status. */
  #shares(box) {
    if (!isGroup(box) || box.status === "source") return [];
    const counts = new Map();
    for (const place of box.members) {
      const status = CONTENT.views.full.boxes[place].status;
      counts.set(status, (counts.get(status) || 0) + 1);
    }
    let x = 1;
    return [...counts].map(([status, count]) => {
      const width = ((BOX.width - 2) * count) / box.members.length;
      const share = svg("rect", { class: `share ${status}`, x, y: BOX.height - 4, width, height: 3 });
      x += width;
      return share;
    });
  }

  #said(box) {
    const shared = isShared(box) ? `, shared by ${box.cells.length} builds` : "";
    return `${box.step}, ${STATUS[box.status]}${shared}, ${box.label || box.reason || ""}`;
  }
}
