// Which page is shown: the address after # says it, so that going back and links work as everywhere.

/** The cell that was shown last, and how far the first page had been scrolled before. */
const lastCell = { scrolled: 0, from: "" };

function route() {
  hideTooltip();
  const hash = location.hash;
  if (hash.startsWith("#cell/")) return showCell(hash);
  const cameFrom = byId("overview").hidden ? lastCell.from : "";
  byId("cell").hidden = true;
  byId("overview").hidden = false;
  byId("answer").hidden = false;
  if (cameFrom === "") return undefined;
  const section = hash.length > 1 ? byId(hash.slice(1)) : null;
  if (section) section.scrollIntoView();
  else returnTo(cameFrom);
  return undefined;
}

/** @param {string} hash */
function showCell(hash) {
  lastCell.from = hash;
  const row = rowsByName.get(decoded(hash.slice("#cell/".length)));
  byId("cell").replaceChildren(...(row ? cellPage(row) : [
    el("p", { class: "back" }, el("a", { href: "#", text: "\u2190 All builds" })),
    el("h2", { id: "cell-title", tabindex: "-1", text: "There is no such build in this report" })]));
  byId("overview").hidden = true;
  byId("answer").hidden = true;
  byId("cell").hidden = false;
  window.scrollTo(0, 0);
  byId("cell-title").focus({ preventScroll: true });
}

/** When the address has changed it is too late: the browser may have scrolled already. @param {MouseEvent} event */
function rememberPlace(event) {
  const link = event.target instanceof Element && event.target.closest("a[href^='#cell/']");
  if (link && !byId("overview").hidden) lastCell.scrolled = window.scrollY;
}

/** @param {string} text */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Where one was before, with the focus on what one had chosen. @param {string} hash */
function returnTo(hash) {
  window.scrollTo(0, lastCell.scrolled);
  const links = [...byId("overview").querySelectorAll("a")].filter((link) => link.getAttribute("href") === hash);
  (links.find((link) => link.getAttribute("tabindex") === "0") || links[0])?.focus({ preventScroll: true });
}

function origin() {
  const host = Object.entries(report.host || {}).map(([name, value]) => `${name} ${value}`).join(", ");
  const texts = [report.began_at ? `Built ${moment(report.began_at)}` : "", `told ${moment(report.made_at)}`, (report.subjects || []).join(", "), host].filter(Boolean);
  byId("origin").replaceChildren(...texts.map((text) => el("span", {}, own(text))));
  byId("footer").replaceChildren(el("p", { text: ["winml_dag", report.made_by || ""].filter((text, place) => place === 1 || !(report.made_by || "").startsWith("winml_dag")).join(" ").trim() }));
}

themeSwitch();
origin();
byId("overview").replaceChildren(...overview());
listenForTooltips();
window.addEventListener("hashchange", route);
document.addEventListener("click", rememberPlace, { capture: true });
route();
if (!location.hash.startsWith("#cell/") && location.hash.length > 1) byId(location.hash.slice(1))?.scrollIntoView();
document.documentElement.dataset.ready = "";
