"use strict";
// Of every page: light or dark, and the list of sections, which is closed at first where there is no room for it.
(() => {
  const root = document.documentElement;
  const system = window.matchMedia("(prefers-color-scheme: dark)");
  const stored = () => {
    try {
      return localStorage.getItem("lmdyn-theme");
    } catch {
      return null; // where a browser keeps nothing of files
    }
  };
  let chosen = stored();
  const show = () => {
    root.dataset.shown = chosen ?? (system.matches ? "dark" : "light");
    document.dispatchEvent(new Event("themechange"));
  };
  show();
  system.addEventListener("change", show);
  const narrow = window.matchMedia("(max-width: 900px)");
  document.addEventListener("DOMContentLoaded", () => {
    const sections = document.querySelector("nav.sections details");
    if (sections) {
      const fold = () => (sections.open = !narrow.matches);
      fold();
      narrow.addEventListener("change", fold);
      sections.addEventListener("click", (event) => {
        if (narrow.matches && event.target.closest("a")) sections.open = false;
      });
    }
    const button = document.querySelector("button.theme");
    if (!button) return;
    const name = () => {
      button.title = `Show in ${root.dataset.shown === "dark" ? "light" : "dark"} colours`;
      button.setAttribute("aria-label", button.title);
    };
    name();
    button.hidden = false;
    button.addEventListener("click", () => {
      chosen = root.dataset.shown === "dark" ? "light" : "dark";
      try {
        localStorage.setItem("lmdyn-theme", chosen);
      } catch {
        // it is kept as long as the page is open
      }
      show();
      name();
    });
  });
  // what is folded is printed too
  window.addEventListener("beforeprint", () => {
    const light = chosen;
    chosen = "light";
    show();
    window.addEventListener("afterprint", () => { chosen = light; show(); }, { once: true });
  });
})();
