/* The page: one picture, its two views, and the highlighting. */

const CONTENT = JSON.parse(byId("content").textContent);
const CELLS = CONTENT.cells.map((name) => name.toLowerCase());
const KINDS = [
  ["ran", (box) => box.status === "ran"],
  ["reused", (box) => box.status === "reused"],
  ["failed", (box) => box.status === "failed"],
  ["shared", isShared],
];

const picture = byId("drawing");
const camera = new Camera(picture);
let drawings = {};
let drawing;
let at = 0;
/* The box whose details stay when the pointer leaves it. */
let kept = null;

/** Highlight *path* and frame *places*; null resets the highlighting. */
const highlight = (path, places = []) => {
  const marked = new Set(places);
  picture.classList.toggle("picked", path !== null);
  drawing.boxes.forEach((box, place) => {
    box.classList.toggle("on", path !== null && path.has(place));
    box.classList.toggle("found", marked.has(place));
  });
  drawing.highlightLines(path);
};

const clear = () => {
  kept = null;
  byId("search").value = "";
  byId("found").textContent = "";
  press(null);
  highlight(null);
  showHint();
};

const press = (name) => {
  for (const button of byId("legend").children) button.setAttribute("aria-pressed", button.dataset.kind === name);
};

const show = (name) => {
  if (!drawings[name]) {
    layout = layoutFor(CONTENT.views[name], camera.window);
    drawings[name] = new Drawing(CONTENT.views[name]);
    drawings[name].layout = layout;
  }
  layout = drawings[name].layout;
  drawing = drawings[name];
  at = 0;
  kept = null;
  picture.replaceChildren(drawing.moved);
  drawing.boxes[0]?.setAttribute("tabindex", 0);
  byId("fold").setAttribute("aria-pressed", name === "folded");
  camera.look(drawing);
  if (byId("search").value) search();
  else clear();
};

const search = () => {
  const result = found(drawing, byId("search").value);
  press(null);
  kept = null;
  if (!result) {
    clear();
    return;
  }
  highlight(result.path, result.places);
  const stages = result.places.filter((place) => drawing.view.boxes[place].status !== "source").length;
  const what = drawing === drawings.folded ? counted(stages, "box").replace("boxs", "boxes") : counted(stages, "stage");
  byId("found").textContent = stages ? `${what} in ${counted(result.cells.size, "build")}` : "nothing";
  const isStage = (place) => drawing.view.boxes[place].status !== "source";
  if (stages) camera.fit([...result.path].filter(isStage));
};

const byKind = (name, is) => {
  const places = [];
  drawing.view.boxes.forEach((box, place) => {
    const inside = isGroup(box) ? box.members.map((member) => CONTENT.views.full.boxes[member]) : [box];
    if (inside.some(is)) places.push(place);
  });
  clear();
  press(name);
  highlight(new Set(places), places);
};

const pick = (place) => {
  kept = place;
  byId("search").value = "";
  byId("found").textContent = "";
  press(null);
  highlight(drawing.pathOf([place]), [place]);
  showDetails(drawing, place, unfold);
};

const unfold = (members) => {
  show("full");
  highlight(drawing.pathOf(members), members);
  camera.fit(members);
  go(members[0]);
};

const go = (place) => {
  drawing.boxes[place].focus({ preventScroll: true });
  camera.show(drawing.view.boxes[place]);
};

/** The next box above or below in the same column. */
const beside = (direction) => {
  const here = drawing.view.boxes[at];
  const rows = drawing.view.boxes.map((box, place) => [box, place])
    .filter(([box]) => box.column === here.column && (box.row - here.row) * direction > 0)
    .sort(([one], [other]) => (one.row - other.row) * direction);
  return rows[0]?.[1];
};

const nearest = (places) => {
  const row = drawing.view.boxes[at].row;
  const far = (place) => Math.abs(drawing.view.boxes[place].row - row);
  return [...places].sort((one, other) => far(one) - far(other))[0];
};

const MOVES = {
  ArrowRight: () => nearest(drawing.after[at]),
  ArrowLeft: () => nearest(drawing.before[at]),
  ArrowDown: () => beside(1),
  ArrowUp: () => beside(-1),
};
const PANS = { ArrowRight: [-80, 0], ArrowLeft: [80, 0], ArrowDown: [0, -80], ArrowUp: [0, 80] };
const KEYS = {
  "+": () => camera.zoom(1.25),
  "=": () => camera.zoom(1.25),
  "-": () => camera.zoom(0.8),
  0: () => camera.fit(),
  Escape: clear,
  Enter: () => pick(at),
  " ": () => pick(at),
};

/* Where columns go down, right and down change places. */
const TURNED = { ArrowRight: "ArrowDown", ArrowDown: "ArrowRight", ArrowLeft: "ArrowUp", ArrowUp: "ArrowLeft" };

picture.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const move = MOVES[(layout.isTall && TURNED[event.key]) || event.key];
  if (move && event.shiftKey) camera.pan(...PANS[event.key]);
  else if (move) {
    const next = move();
    if (next !== undefined) go(next);
  } else if (KEYS[event.key]) KEYS[event.key]();
  else return;
  event.preventDefault();
});

const placeOf = (event) => {
  const box = event.target.closest?.(".box");
  return box ? Number(box.dataset.place) : null;
};

picture.addEventListener("pointerover", (event) => {
  const place = placeOf(event);
  if (place === null || kept !== null || event.buttons) return;
  showDetails(drawing, place, unfold);
  if (!picture.classList.contains("picked")) drawing.highlightLines(drawing.pathOf([place]));
});
picture.addEventListener("pointerout", (event) => {
  if (placeOf(event) !== null && kept === null && !picture.classList.contains("picked")) drawing.highlightLines(null);
});
picture.addEventListener("focusin", (event) => {
  const place = placeOf(event);
  if (place === null) return;
  drawing.boxes[at].setAttribute("tabindex", -1);
  at = place;
  drawing.boxes[at].setAttribute("tabindex", 0);
  kept = null;
  showDetails(drawing, place, unfold);
});
picture.addEventListener("click", (event) => {
  if (camera.wasMoved) return;
  const place = placeOf(event);
  if (place === null) clear();
  else {
    go(place);
    pick(place);
  }
});

addEventListener("resize", () => {
  if (picture.classList.contains("picked")) return;
  drawings = {};
  show(viewName());
});
byId("search").addEventListener("input", search);
byId("search").addEventListener("keydown", (event) => {
  if (event.key === "Escape") clear();
});
byId("in").addEventListener("click", () => camera.zoom(1.25));
byId("out").addEventListener("click", () => camera.zoom(0.8));
byId("fit").addEventListener("click", () => camera.fit());
byId("fold").hidden = !CONTENT.folds;
byId("fold").addEventListener("click", () => show(viewName() === "folded" ? "full" : "folded"));

const drawLegend = () => {
  const buttons = KINDS.map(([name, is]) => {
    const count = CONTENT.views.full.boxes.filter(is).length;
    const mark = el("span", { class: `mark ${name}`, "aria-hidden": "true" }, MARKS[name] || "\u25a3");
    const text = name === "shared" ? `${count} shared by several builds` : `${count} ${STATUS[name]}`;
    const button = el("button", { type: "button", "aria-pressed": "false", "data-kind": name }, mark, text);
    button.addEventListener("click", () => (button.getAttribute("aria-pressed") === "true" ? clear() : byKind(name, is)));
    return count ? button : null;
  });
  byId("legend").replaceChildren(...buttons.filter(Boolean));
};

/** Colour boxes by their planned status, or by their status in the last run. */
const colour = (byLast) => {
  for (const box of [...CONTENT.views.full.boxes, ...CONTENT.views.folded.boxes]) {
    box.planned ??= box.status;
    box.status = byLast && box.planned !== "source" ? box.last || "unknown" : box.planned;
  }
  STATUS.ran = byLast ? "ran" : "would run";
  byId("last").setAttribute("aria-pressed", byLast);
  drawings = {};
  drawLegend();
};

const viewName = () => (byId("fold").getAttribute("aria-pressed") === "true" ? "folded" : "full");
byId("last").hidden = !CONTENT.has_last;
byId("last").addEventListener("click", () => {
  colour(byId("last").getAttribute("aria-pressed") === "false");
  show(viewName());
});

themeSwitch();
colour(false);
showHint();
const isLegible = layoutFor(CONTENT.views.full, camera.window).scale >= LEGIBLE;
show(CONTENT.folded_first || (CONTENT.folds && !isLegible) ? "folded" : "full");
