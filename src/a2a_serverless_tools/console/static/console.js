// Says that a page is out of date while the console does not answer its questions.
"use strict";
const lost = document.getElementById("lost");
const since = document.getElementById("lost-since");
let answered = new Date();

function ok() {
  answered = new Date();
  lost.hidden = true;
  document.body.classList.remove("lost");
}

function failed() {
  since.textContent = answered.toLocaleTimeString();
  lost.hidden = false;
  document.body.classList.add("lost");
}

for (const name of ["htmx:sendError", "htmx:responseError", "htmx:timeout"]) {
  document.addEventListener(name, failed);
}
document.addEventListener("htmx:afterRequest", (event) => {
  if (event.detail.successful) ok();
});
