// What the generator's own scripts add: the frame of a copy button is no landmark, and a table that
// scrolls can be reached by the keyboard; a column without a title has none to be read.
new MutationObserver(() => {
  for (const frame of document.querySelectorAll("nav.md-code__nav")) frame.role = "none";
  for (const table of document.querySelectorAll(".md-typeset__scrollwrap")) table.tabIndex = 0;
  for (const cell of document.querySelectorAll("th:empty")) cell.role = "none";
}).observe(document.body, { childList: true, subtree: true });
