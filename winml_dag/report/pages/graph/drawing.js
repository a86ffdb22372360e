/* The drawing of one view: boxes as elements, edges as two paths, one for all and one for the highlighted ones. */

const BOX = { width: 176, height: 38, column: 236, row: 48 };
const MARKS = { reused: "\u2713", ran: "\u25b6", failed: "\u2717", source: "", unknown: "" };
/* Labels of the statuses in a plan or in the last run. */
const STATUS = { reused: "reused", ran: "would run", failed: "failed", source: "source", unknown: "not come to" };

const left = (box) => box.column * BOX.column;
const top = (box) => box.row * BOX.row;
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
    return { width: (this.view.width - 1) * BOX.column + BOX.width, height: (this.view.height - 1) * BOX.row + BOX.height };
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

  #path(lines) {
    return lines.map(([maker, reader]) => {
      const [from, to] = [this.view.boxes[maker], this.view.boxes[reader]];
      const [x, y] = [left(from) + BOX.width, top(from) + BOX.height / 2];
      const [u, v] = [left(to), top(to) + BOX.height / 2];
      const bend = (BOX.column - BOX.width) * 0.75;
      return `M${x} ${y.toFixed(1)}C${x + bend} ${y.toFixed(1)} ${u - bend} ${v.toFixed(1)} ${u} ${v.toFixed(1)}`;
    }).join("");
  }

  /** Column headings: the steps in the column and the number of stages. */
  #heads() {
    const columns = Array.from({ length: this.view.width }, () => new Map());
    for (const box of this.view.boxes) {
      const step = box.status === "source" ? "sources" : box.step;
      columns[box.column].set(step, (columns[box.column].get(step) || 0) + (box.members ? box.members.length : 1));
    }
    return columns.map((steps, column) => {
      const told = [...steps].slice(0, 3).map(([step, count]) => `${step} ${count}`).join(", ");
      return svg("text", { class: "head", x: column * BOX.column, y: -14 }, shortened(told, 34));
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
    if (mark) group.append(svg("text", { class: "mark", x: 9, y: 16 }, mark));
    group.append(svg("text", { x: mark ? 24 : 12, y: 16 }, shortened(box.step, count ? 16 : 20)));
    if (count) group.append(svg("text", { class: "times", x: BOX.width - 9, y: 16 }, `\u00d7${count}`));
    group.append(svg("text", { class: "label", x: mark ? 9 : 12, y: 31 }, this.#below(box)));
    return group;
  }

  #below(box) {
    const text = box.apart || (box.label ? "" : box.reason) || "";
    if (!text) return shortened(box.label || "", 25);
    return text.length > 25 ? `${text.slice(0, 24)}\u2026` : text;
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
    return `${box.step}, ${STATUS[box.status]}${shared}, ${box.apart || box.label || box.reason || ""}`;
  }
}
