// Which points of a plot no other point beats: at most as much of what should be little, at least as much of the rest.

/** @typedef {{row: Row, x: number, y: number}} Point */

/** Those that are on the front, from left to right. `signX` and `signY` are 1 where less is better, -1 where more is.
 * @param {Point[]} points @param {number} signX @param {number} signY @returns {Point[]}
 */
function frontOf(points, signX, signY) {
  const inOrder = [...points].sort((one, other) => signX * (one.x - other.x) || signY * (one.y - other.y));
  /** @type {Point[]} */
  const front = [];
  for (const point of inOrder) {
    const last = front[front.length - 1];
    if (!last || signY * point.y < signY * last.y || (point.x === last.x && point.y === last.y)) front.push(point);
  }
  return front;
}
