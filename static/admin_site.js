// The admin has the theme of the site: its own choice and that of the other pages are one.
"use strict";
(() => {
  const chosen = /(?:^|; )theme=(light|dark)/.exec(document.cookie);
  const theme = chosen ? chosen[1] : "auto";
  document.documentElement.dataset.theme = theme;
  // Django's script reads it when the page has loaded, and writes the next choice.
  window.localStorage.setItem("theme", theme);
  document.addEventListener("click", (event) => {
    if (!event.target.closest(".theme-toggle")) return;
    window.setTimeout(() => {
      document.cookie = `theme=${window.localStorage.getItem("theme")}; path=/; max-age=31536000; samesite=lax`;
    }, 0);
  });
})();
