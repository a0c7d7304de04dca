// Keyboard shortcuts; off while typing, and never the only way.

import { moveRow, openRow } from "./rows.js";

const PLACES = { h: "/", e: "/experiments/", r: "/runs/", w: "/workloads/", t: "/traces/", p: "/policies/", f: "/fleet/" };
let waitsForPlace = false;

const ACTIONS = {
  "?": () => document.getElementById("keys")?.showModal(),
  "/": () => document.querySelector("[data-search]")?.focus(),
  j: () => moveRow(1),
  k: () => moveRow(-1),
  Enter: openRow,
  n: () => location.assign("/experiments/new/"),
  p: () => document.querySelector("[data-live-pause]")?.click(),
};

export function startKeys() {
  document.querySelector("[data-open-keys]")?.addEventListener("click", ACTIONS["?"]);
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || isTyping(event.target)) return;
    if (document.querySelector("dialog[open]")) return;
    if (waitsForPlace && PLACES[event.key]) {
      location.assign(PLACES[event.key]);
    } else if (event.key === "g") {
      waitsForPlace = true;
      setTimeout(() => { waitsForPlace = false; }, 1200);
      return;
    } else if (ACTIONS[event.key]) {
      if (event.key === "Enter" && event.target.closest("a, button, summary")) return;
      if (ACTIONS[event.key]() !== false) event.preventDefault();
    }
    waitsForPlace = false;
  });
}

function isTyping(element) {
  return element instanceof HTMLElement && element.matches("input, select, textarea, [contenteditable]");
}
