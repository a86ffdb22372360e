// Building blocks of the page: untrusted texts, sections, lists, choosers, roving tab focus.

/** Untrusted text: isolated, so that its direction does not affect its neighbours. */
function own(text) {
  return el("bdi", { text });
}

/** A name made of parts, which keep their order whatever script the first one is in. */
function path(text) {
  return el("bdi", { dir: "ltr", text });
}

/** Preformatted lines. */
function verbatim(label, text) {
  return el("pre", { tabindex: "0", dir: "ltr", "aria-label": label, text });
}

/** Text for screen readers only. */
function unseen(text) {
  return el("span", { class: "unseen", text });
}

/** Text hidden from screen readers. */
function glyph(text) {
  return el("span", { "aria-hidden": "true", text });
}

function section(id, title, ...children) {
  return el("section", { id, "aria-labelledby": `${id}-title` }, el("h2", { id: `${id}-title`, text: title }), ...children);
}

/** Content wider than the page scrolls in its own box, also by keyboard. */
function scroller(label, ...children) {
  for (const child of children) labelled(child);
  return el("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": label }, ...children);
}

/** Gives each cell the heading of its column, which narrow windows show beside it. */
function labelled(table) {
  const headings = [...table.querySelectorAll("thead tr:last-child th")].map((one) => one.textContent);
  for (const line of table.querySelectorAll("tbody tr")) {
    // A heading of several lines is only in the first of them.
    const offset = headings.length - [...line.cells].reduce((sum, cell) => sum + cell.colSpan, 0);
    [...line.cells].forEach((cell, place) => cell.dataset.label ??= headings[place + offset] || "");
  }
}

function definitions(pairs, kind = "facts") {
  const shown = pairs.filter(([, value]) => [value].flat().some(isShown));
  return el("dl", { class: kind }, ...shown.map(([name, value]) =>
    el("div", {}, el("dt", { text: name }), el("dd", {}, ...[value].flat()))));
}

function chooser(label, options, chosen, onChange) {
  const select = el("select", { on: { change: () => onChange(select.value) } },
    ...options.map(([value, text]) => el("option", { value, text, selected: value === chosen })));
  return el("label", { class: "chooser" }, el("span", { text: label }), select);
}

/** Roving tab focus: one item is in the tab order, arrow keys move between items. `next` returns the target of a key. */
function roving(container, items, next) {
  items.forEach((item, place) => item.setAttribute("tabindex", place === 0 ? "0" : "-1"));
  container.addEventListener("keydown", (event) => {
    const from = items.indexOf(event.target);
    const to = from < 0 ? null : next(from, event.key);
    if (to === null || !items[to]) return;
    event.preventDefault();
    items[from].setAttribute("tabindex", "-1");
    items[to].setAttribute("tabindex", "0");
    items[to].focus();
  });
}

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

/** Fallback where a page opened from disk may not use the clipboard. */
function copiedBySelection(text) {
  const area = el("textarea", { class: "unseen" });
  area.value = text;
  document.body.append(area);
  area.select();
  const worked = document.execCommand("copy");
  area.remove();
  return worked;
}
