"use strict";
// Of every page: light or dark, and the list of sections, which is closed at first where there is no room for it.
(() => {
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 900px)");
  const other = () => (root.dataset.shown === "dark" ? "light" : "dark");
  let chosen = null;
  try {
    chosen = localStorage.getItem("lmdyn-theme");
  } catch {} // where a browser keeps nothing of files
  const show = () => {
    root.dataset.shown = chosen ?? (system.matches ? "dark" : "light");
    const title = `Show in ${other()} colours`;
    Object.assign(document.querySelector("button.theme") ?? {}, { title, ariaLabel: title, hidden: false });
    document.dispatchEvent(new Event("themechange"));
  };
  show();
  system.addEventListener("change", show);
  document.addEventListener("DOMContentLoaded", () => {
    const sections = document.querySelector("nav.sections details");
    const fold = () => (sections.open = !narrow.matches);
    fold();
    narrow.addEventListener("change", fold);
    sections.addEventListener("click", (event) => {
      if (narrow.matches && event.target.closest("a")) sections.open = false;
    });
    show();
    document.querySelector("button.theme").addEventListener("click", () => {
      chosen = other();
      try {
        localStorage.setItem("lmdyn-theme", chosen);
      } catch {} // it is kept as long as the page is open
      show();
    });
  });
  // what is folded is printed too
  window.addEventListener("beforeprint", () => {
    const before = chosen;
    chosen = "light";
    show();
    window.addEventListener("afterprint", () => { chosen = before; show(); }, { once: true });
  });
})();
