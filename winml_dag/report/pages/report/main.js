// Routing: the fragment after # selects the page, so that links and the back button work.

/** The cell that was shown last, and the scroll position of the overview before. */
const lastCell = { scrolled: 0, from: "", link: null };

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

/** Runs before the address changes: afterwards the browser may have scrolled already. */
function rememberPlace(event) {
  const link = event.target instanceof Element && event.target.closest("a[href^='#cell/']");
  if (!link || byId("overview").hidden) return;
  lastCell.scrolled = window.scrollY;
  lastCell.link = link;
}

function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}

/** Restore the scroll position, and focus the link that was followed. */
function returnTo(hash) {
  window.scrollTo(0, lastCell.scrolled);
  if (lastCell.link?.getAttribute("href") === hash) lastCell.link.focus({ preventScroll: true });
}

function origin() {
  const host = Object.entries(report.host || {}).map(([name, value]) => `${name} ${value}`).join(", ");
  const texts = [report.began_at ? `Built ${moment(report.began_at)}` : "", `reported ${moment(report.made_at)}`, (report.subjects || []).join(", "), host].filter(Boolean);
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
