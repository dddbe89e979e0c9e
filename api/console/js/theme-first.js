// Before the first paint, so that a chosen theme does not flash in; see theme.js.
(() => {
  try {
    const chosen = localStorage.getItem("hpo:theme");
    if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  } catch {
    // A browser that keeps nothing follows the system.
  }
})();
