// Light, dark or as the system has it, and the colours of it for what is drawn on canvas.

const KEY = "hpo:theme";
export const THEMES = ["system", "light", "dark"];
const listeners = new Set();
const system = matchMedia("(prefers-color-scheme: dark)");
system.addEventListener("change", () => tell());

/** @returns {"system"|"light"|"dark"} */
export function chosenTheme() {
  return document.documentElement.dataset.theme ?? "system";
}

export function chooseTheme(theme) {
  if (theme === "system") delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = theme;
  try {
    localStorage.setItem(KEY, theme);
  } catch {
    // It holds for this page then.
  }
  tell();
}

export function onTheme(listener) {
  listeners.add(listener);
  return () => listeners.delete(listener);
}

function tell() {
  known = null;
  for (const listener of listeners) listener();
}

const NAMES = ["text", "muted", "faint", "line", "accent", "good", "bad", "warn", "surface", "ghost"];
let known = null;

/** The theme's colours as a canvas takes them. */
export function colours() {
  if (known) return known;
  const probe = document.body.appendChild(document.createElement("span"));
  known = Object.fromEntries(
    NAMES.map((name) => {
      probe.style.color = `var(--${name})`;
      return [name, getComputedStyle(probe).color];
    }),
  );
  probe.remove();
  return known;
}
