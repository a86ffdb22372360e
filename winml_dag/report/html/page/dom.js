// Making elements. Text goes in as text and nothing is ever parsed as HTML: names and logs are anybody's.

/**
 * @typedef {Node | string | number | null | undefined | false} Child
 * @param {string} tag
 * @param {Object<string, any>} properties attributes; `on` maps events to listeners, `text` is the text
 * @param {...Child} children
 * @returns {any}
 */
function el(tag, properties = {}, ...children) {
  return furnish(document.createElement(tag), properties, children);
}

/**
 * @param {string} tag
 * @param {Object<string, any>} properties
 * @param {...Child} children
 * @returns {any}
 */
function svg(tag, properties = {}, ...children) {
  return furnish(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);
}

/**
 * @param {Element} element
 * @param {Object<string, any>} properties
 * @param {Child[]} children
 */
function furnish(element, properties, children) {
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") {
      for (const [event, listener] of Object.entries(value)) element.addEventListener(event, listener);
    } else if (name === "text") {
      element.textContent = visible(String(value));
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  element.append(.../** @type {(Node | string)[]} */ (children.flat(2).filter(isShown).map(asNode)));
  return element;
}

/** @param {Child} child */
function isShown(child) {
  return child !== null && child !== undefined && child !== false && child !== "";
}

/** @param {any} child */
function asNode(child) {
  return child instanceof Node ? child : visible(String(child));
}

/** What would be obeyed or not be seen: controls, and marks that turn a line around. Lines and tabs may stay. */
const UNSEEN = /[\u0000-\u0008\u000b-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]/g;

/** @param {string} text */
function visible(text) {
  return text.replace(UNSEEN, (letter) => `\\u${letter.charCodeAt(0).toString(16).padStart(4, "0")}`);
}

/** Somebody's own text: its direction is its own, and it cannot turn its neighbours around.
 * @param {string} text
 */
function own(text) {
  return el("bdi", { text });
}

/** A name made of parts, which stay in their order whatever letters the first one has. @param {string} text */
function path(text) {
  return el("bdi", { dir: "ltr", text });
}

/** Lines as they are. @param {string} label @param {string} text */
function verbatim(label, text) {
  return el("pre", { tabindex: "0", dir: "ltr", "aria-label": label, text });
}

/** For those who listen. @param {string} text */
function unseen(text) {
  return el("span", { class: "unseen", text });
}

/** For those who look. @param {string} text */
function glyph(text) {
  return el("span", { "aria-hidden": "true", text });
}

/** @param {string} id @returns {any} */
function byId(id) {
  return document.getElementById(id);
}

/**
 * @param {string} id
 * @param {string} title
 * @param {...Child} children
 */
function section(id, title, ...children) {
  return el("section", { id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title`, text: title }), ...children);
}

/** What is wider than the page scrolls by itself, also with the keyboard.
 * @param {string} label
 * @param {...Child} children
 */
function scroller(label, ...children) {
  return el("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": label }, ...children);
}

/**
 * @param {[string, Child | Child[]][]} pairs
 * @param {string} [kind]
 */
function definitions(pairs, kind = "facts") {
  const shown = pairs.filter(([, value]) => [value].flat().some(isShown));
  return el("dl", { class: kind }, ...shown.map(([name, value]) =>
    el("div", {}, el("dt", { text: name }), el("dd", {}, ...[value].flat()))));
}

/**
 * @param {string} label
 * @param {[string, string][]} options value and text
 * @param {string} chosen
 * @param {(value: string) => void} onChange
 */
function chooser(label, options, chosen, onChange) {
  const select = el("select", { on: { change: () => onChange(select.value) } },
    ...options.map(([value, text]) => el("option", { value, text, selected: value === chosen })));
  return el("label", { class: "chooser" }, el("span", { text: label }), select);
}

/** One of many is in the order of tabs; arrows go from one to the next. `next` says where an arrow leads.
 * @param {Element} container
 * @param {any[]} items
 * @param {(from: number, key: string) => number | null} next
 */
function roving(container, items, next) {
  items.forEach((item, place) => item.setAttribute("tabindex", place === 0 ? "0" : "-1"));
  container.addEventListener("keydown", (event) => {
    const from = items.indexOf(event.target);
    const to = from < 0 ? null : next(from, /** @type {KeyboardEvent} */ (event).key);
    if (to === null || !items[to]) return;
    event.preventDefault();
    items[from].setAttribute("tabindex", "-1");
    items[to].setAttribute("tabindex", "0");
    items[to].focus();
  });
}

/** @param {string} text @param {any} button tells whether it worked */
async function copy(text, button) {
  const label = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = copiedBySelection(text) ? "Copied" : "Not copied: select it instead";
  }
  setTimeout(() => { button.textContent = label; }, 2000);
}

/** Where a page from a disk may not use the clipboard. @param {string} text */
function copiedBySelection(text) {
  const area = el("textarea", { class: "unseen" });
  area.value = text;
  document.body.append(area);
  area.select();
  const worked = document.execCommand("copy");
  area.remove();
  return worked;
}
