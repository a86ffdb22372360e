/* Search: finds boxes by words of a step, or of a build that contains it. */

/** The boxes and builds that match *text* in a drawing, and the path to highlight; null for an empty text. */
const found = (drawing, text) => {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  if (!words.length) return null;
  const boxes = drawing.view.boxes;
  const isOfSteps = words.some((word) => boxes.some((box) => box.step.toLowerCase().includes(word)));
  const cells = new Set();
  const places = [];
  boxes.forEach((box, place) => {
    const step = box.step.toLowerCase();
    const among = (box.cells || []).filter((cell) => {
      const whole = `${step} ${CELLS[cell]}`;
      return words.every((word) => whole.includes(word));
    });
    if (among.length) places.push(place);
    for (const cell of among) cells.add(cell);
  });
  return { places, cells, path: isOfSteps ? drawing.pathOf(places) : new Set(places) };
};
