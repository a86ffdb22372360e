// The Pareto front of a plot: the points that no other point dominates.


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
