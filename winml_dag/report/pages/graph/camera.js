/* The camera: which part of the picture is shown, and at which scale. */

const CLOSEST = 3;
const FARTHEST = 0.02;
const MARGIN = 36;
/* At smaller scales, text is not legible. */
const LEGIBLE = 0.6;

class Camera {
  constructor(picture) {
    this.picture = picture;
    this.fingers = new Map();
    this.wasMoved = false;
    picture.addEventListener("wheel", (event) => this.#wheel(event), { passive: false });
    picture.addEventListener("pointerdown", (event) => this.#down(event));
    picture.addEventListener("pointermove", (event) => this.#move(event));
    for (const name of ["pointerup", "pointercancel"]) {
      picture.addEventListener(name, (event) => this.#up(event));
    }
  }

  look(drawing) {
    this.drawing = drawing;
    this.begin();
  }

  get window() {
    const { width, height } = this.picture.getBoundingClientRect();
    return { width: Math.max(width, 1), height: Math.max(height, 1) };
  }

  /** Show everything if it is legible, otherwise the start. */
  begin() {
    const { width, height } = this.drawing.size;
    const there = this.window;
    const across = (there.width - 2 * MARGIN) / width;
    const all = Math.min(across, (there.height - 2 * MARGIN - 20) / height, 1.25);
    if (all >= LEGIBLE) this.fit();
    else this.#set(MARGIN, MARGIN + 10, Math.max(all, Math.min(across, 0.8), LEGIBLE));
  }

  fit(places) {
    const boxes = places ? [...places].map((place) => this.drawing.view.boxes[place]) : this.drawing.view.boxes;
    if (!boxes.length) return;
    const x = Math.min(...boxes.map(left));
    const y = Math.min(...boxes.map(top)) - 20;
    const width = Math.max(...boxes.map(left)) + BOX.width - x;
    const height = Math.max(...boxes.map(top)) + BOX.height - y;
    const there = this.window;
    const scale = Math.min((there.width - 2 * MARGIN) / width, (there.height - 2 * MARGIN) / height, 1.25);
    const k = Math.max(scale, FARTHEST);
    this.#set((there.width - width * k) / 2 - x * k, (there.height - height * k) / 2 - y * k, k);
  }

  zoom(factor, x = this.window.width / 2, y = this.window.height / 2) {
    const k = Math.min(CLOSEST, Math.max(FARTHEST, this.k * factor));
    this.#set(x - ((x - this.x) * k) / this.k, y - ((y - this.y) * k) / this.k, k);
  }

  pan(dx, dy) {
    this.#set(this.x + dx, this.y + dy, this.k);
  }

  /** Move the least distance that brings *box* into view, at a legible scale. */
  show(box) {
    if (this.k < LEGIBLE) this.zoom(LEGIBLE / this.k);
    const there = this.window;
    const [x, y] = [this.x + left(box) * this.k, this.y + top(box) * this.k];
    const within = (at, size, end) => (at < 12 ? 12 - at : at + size > end - 12 ? end - 12 - at - size : 0);
    this.pan(within(x, BOX.width * this.k, there.width), within(y, BOX.height * this.k, there.height));
  }

  #set(x, y, k) {
    [this.x, this.y, this.k] = [x, y, k];
    this.drawing.moved.setAttribute("transform", `translate(${x.toFixed(2)} ${y.toFixed(2)}) scale(${k.toFixed(5)})`);
    this.picture.classList.toggle("far", k < 0.32);
  }

  #at(event) {
    const corner = this.picture.getBoundingClientRect();
    return { x: event.clientX - corner.left, y: event.clientY - corner.top };
  }

  #wheel(event) {
    event.preventDefault();
    const { x, y } = this.#at(event);
    const lines = event.deltaMode === 1 ? 20 : 1;
    this.zoom(Math.exp(-Math.max(-200, Math.min(200, event.deltaY * lines)) * 0.0022), x, y);
  }

  #down(event) {
    this.fingers.set(event.pointerId, this.#at(event));
    this.wasMoved = false;
    this.began = this.#at(event);
  }

  #move(event) {
    const before = this.fingers.get(event.pointerId);
    if (!before) return;
    const now = this.#at(event);
    const other = [...this.fingers].find(([id]) => id !== event.pointerId);
    if (!this.wasMoved && !other && Math.hypot(now.x - this.began.x, now.y - this.began.y) < 4) return;
    if (!this.wasMoved) this.picture.setPointerCapture(event.pointerId);
    this.wasMoved = true;
    this.picture.classList.add("moving");
    this.fingers.set(event.pointerId, now);
    if (other) {
      const far = (point) => Math.max(1, Math.hypot(point.x - other[1].x, point.y - other[1].y));
      this.zoom(far(now) / far(before), (now.x + other[1].x) / 2, (now.y + other[1].y) / 2);
    } else this.pan(now.x - before.x, now.y - before.y);
  }

  #up(event) {
    this.fingers.delete(event.pointerId);
    if (!this.fingers.size) this.picture.classList.remove("moving");
  }
}
