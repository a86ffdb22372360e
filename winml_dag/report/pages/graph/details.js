/* Details of one box, next to the picture. */

const MOST_NAMES = 24;

const showHint = () => {
  byId("details").replaceChildren(
    el("p", { class: "hint" }, "Point at a stage, or go from one to the next with the arrow keys, to read why it " +
      "runs or not. A click or Enter highlights what it depends on and what depends on it."),
  );
};

const showDetails = (drawing, place, unfold) => {
  const box = drawing.view.boxes[place];
  const terms = el("dl");
  const term = (name, value, kind = "") => {
    if (value) terms.append(el("dt", {}, name), el("dd", kind ? { class: kind } : { dir: "auto" }, value));
  };
  const isStage = box.status !== "source" && !isGroup(box);
  term("Now", isStage && `${box.planned === "ran" ? "would run" : box.planned}: ${moment(box.reason)}`);
  term("Error of the last run", box.error);
  term("In the last run", moment([box.last, box.last_reason].filter(Boolean).join(": ")));
  term(box.planned === "ran" ? "Duration of the last run" : "Duration", told(box));
  term("Reads", names(drawing, place, drawing.before));
  term("Is read by", names(drawing, place, drawing.after));
  term(counted((box.cells || []).length, "build"), list((box.cells || []).map((cell) => CONTENT.cells[cell])));
  term("Key", box.key, "code");
  const children = [el("h2", { dir: "auto" }, box.step), el("p", {}, status(box)), terms];
  if (isGroup(box)) {
    const button = el("button", { type: "button" }, `Show its ${box.members.length} stages`);
    button.addEventListener("click", () => unfold(box.members));
    children.splice(2, 0, button);
  }
  byId("details").replaceChildren(...children);
};

const told = (box) => (box.seconds === undefined ? (box.planned === "ran" ? "never timed" : "") : seconds(box.seconds));

const status = (box) => {
  const mark = MARKS[box.status];
  const shared = isShared(box) ? `, shared by ${box.cells.length} builds` : "";
  return `${mark ? `${mark} ` : ""}${isGroup(box) ? box.label : STATUS[box.status]}${shared}`;
};

/** The steps of the neighbours, with the artifacts between them. */
const names = (drawing, place, neighbours) => {
  const counts = new Map();
  for (const other of neighbours[place]) {
    const step = drawing.view.boxes[other].step;
    counts.set(step, (counts.get(step) || 0) + 1);
  }
  return [...counts].map(([step, count]) => (count > 1 ? `${step} (${count})` : step)).join(", ");
};

const list = (texts) => {
  if (!texts.length) return "";
  const shown = texts.slice(0, MOST_NAMES).map((text) => el("li", { dir: "auto" }, text));
  if (texts.length > MOST_NAMES) shown.push(el("li", {}, `and ${texts.length - MOST_NAMES} more`));
  return el("ul", {}, ...shown);
};
