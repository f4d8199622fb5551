// Small script of every page.
