"use strict";
// Of every page: light or dark as the system, and the list of sections, which is closed where there is no room for it.
(() => {
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 900px)");
  const show = (theme) => {
    document.documentElement.dataset.shown = theme;
    document.dispatchEvent(new Event("themechange"));
  };
  const asSystem = () => show(dark.matches ? "dark" : "light");
  asSystem();
  dark.addEventListener("change", asSystem);
  window.addEventListener("beforeprint", () => show("light"));
  window.addEventListener("afterprint", asSystem);
  document.addEventListener("DOMContentLoaded", () => {
    const sections = document.querySelector("nav.sections details");
    const fold = () => (sections.open = !narrow.matches);
    fold();
    narrow.addEventListener("change", fold);
    sections.addEventListener("click", (event) => {
      if (narrow.matches && event.target.closest("a")) sections.open = false;
    });
  });
})();
