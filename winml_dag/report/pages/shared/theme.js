// Light or dark: as the system, until the button `theme` is used; that choice is remembered for all pages.

function themeSwitch() {
  const root = document.documentElement;
  const button = byId("theme");
  const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
  const isDark = () => (root.dataset.theme ? root.dataset.theme === "dark" : prefersDark.matches);
  const show = () => { button.textContent = isDark() ? "Light" : "Dark"; button.setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`); };
  const kept = remembered();
  if (kept) root.dataset.theme = kept;
  button.addEventListener("click", () => { root.dataset.theme = isDark() ? "light" : "dark"; remember(root.dataset.theme); show(); });
  prefersDark.addEventListener("change", show);
  show();
}

/** A page opened from disk may have no storage. */
function remembered() {
  try {
    const kept = localStorage.getItem("winml_dag theme");
    return kept === "dark" || kept === "light" ? kept : null;
  } catch {
    return null;
  }
}

function remember(theme) {
  try {
    localStorage.setItem("winml_dag theme", theme);
  } catch {
    // The choice lasts until the page is closed.
  }
}
