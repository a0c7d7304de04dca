// The colour switch: system, light, dark. A cookie keeps it, so that the server draws the page right from the start.

const ORDER = ["", "light", "dark"];
const ICONS = { "": "auto", light: "sun", dark: "moon" };

export function startTheme() {
  const button = document.querySelector("[data-theme-switch]");
  button?.addEventListener("click", () => {
    const now = document.documentElement.dataset.theme ?? "";
    const next = ORDER[(ORDER.indexOf(now) + 1) % ORDER.length];
    if (next) document.documentElement.dataset.theme = next;
    else delete document.documentElement.dataset.theme;
    document.cookie = `theme=${next}; path=/; max-age=${next ? 31536000 : 0}; samesite=lax`;
    const use = button.querySelector("use");
    use.setAttribute("href", use.getAttribute("href").replace(/#.*/, `#${ICONS[next]}`));
    button.querySelector(".visually-hidden").textContent = `Colours: ${next || "system"}`;
    announce();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", announce);
}

function announce() {
  document.dispatchEvent(new CustomEvent("headway:theme"));
}
