// What the page is made of, from elements: texts of others, parts with a heading, lists, choosers, one stop for the tab key.

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
