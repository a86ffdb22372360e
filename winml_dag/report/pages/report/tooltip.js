// One shared tooltip: shown for the element under the pointer or with the focus, closed with Escape.

const told = new WeakMap();

function withTooltip(element, lines) {
  told.set(element, lines);
  element.setAttribute("data-tip", "");
  return element;
}

function showTooltip(from) {
  const element = from instanceof Element ? from.closest("[data-tip]") : null;
  const lines = element && told.get(element);
  if (!element || !lines) return hideTooltip();
  const tooltip = byId("tooltip");
  tooltip.replaceChildren(...lines().map((line) => el("div", {}, ...line)));
  tooltip.hidden = false;
  hideTooltip.described?.removeAttribute("aria-describedby");
  element.setAttribute("aria-describedby", "tooltip");
  hideTooltip.described = element;
  place(tooltip, element.getBoundingClientRect());
}

function hideTooltip() {
  byId("tooltip").hidden = true;
  hideTooltip.described?.removeAttribute("aria-describedby");
  hideTooltip.described = undefined;
}
hideTooltip.described = undefined;

/** Below its element, or above it if there is no room, never outside the window. */
function place(tooltip, about) {
  const { width, height } = tooltip.getBoundingClientRect();
  const edge = 8;
  const left = Math.min(Math.max(edge, about.left + about.width / 2 - width / 2), window.innerWidth - width - edge);
  const below = about.bottom + edge;
  const top = below + height > window.innerHeight ? Math.max(edge, about.top - height - edge) : below;
  tooltip.style.left = `${Math.max(edge, left)}px`;
  tooltip.style.top = `${top}px`;
}

/** The focused element may be scrolled into view after it received the focus. */
function followTooltip() {
  if (hideTooltip.described) place(byId("tooltip"), hideTooltip.described.getBoundingClientRect());
}

function listenForTooltips() {
  document.addEventListener("pointerover", (event) => showTooltip(event.target));
  document.addEventListener("focusin", (event) => showTooltip(event.target));
  document.addEventListener("focusout", hideTooltip);
  document.addEventListener("scroll", followTooltip, { capture: true, passive: true });
  document.addEventListener("keydown", (event) => { if (event.key === "Escape") hideTooltip(); });
}

/** The tooltip of a build everywhere on the page: its name, status and metrics. */
function aboutRow(row) {
  const figures = ["p50", "size", "cosine", "drop"].map((id) => columnsById.get(id))
    .filter((one) => one.value(row) !== null).map((one) => `${fullLabel(one)} ${textOf(one, row)}`);
  return [
    [el("strong", {}, path(row.name))],
    [statusMark(row.status), ...(isThere(row) && !row.why ? [] : [" ", own(row.why || (row.failure && row.failure.error) || "")])],
    ...(figures.length ? [[figures.join(", ")]] : []),
    ...(isEmulated(row) ? [["The latency is that of an emulator and says nothing about the device."]] : []),
    ...(row.winner_of && row.winner_of.length ? [["Winner: ", own(row.winner_of.join(", "))]] : []),
    ...(row.dominated_by ? [["Pareto-dominated by ", path(row.dominated_by), row.dominated_why ? `: ${row.dominated_why}` : ""]] : []),
    ...(row.trial_of ? [["A trial of ", path(row.trial_of)]] : []),
  ];
}
