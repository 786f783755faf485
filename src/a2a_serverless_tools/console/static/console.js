// What a page does in a browser besides htmx: it says when it is out of date, shows times of the
// reader's zone and the state in the tab's title, and takes keys.
"use strict";
const byId = (id) => document.getElementById(id);

// A browser may refuse to keep anything: then a choice lasts as long as its page.
const kept = {
  get(name) {
    try {
      return localStorage.getItem(name);
    } catch {
      return null;
    }
  },
  set(name, value) {
    try {
      localStorage.setItem(name, value);
    } catch {}
  },
};

// -- out of date -----------------------------------------------------------------------------

const lost = byId("lost");
let answered = new Date();

function ok() {
  answered = new Date();
  lost.hidden = true;
  document.body.classList.remove("lost");
}

function failed() {
  byId("lost-since").textContent = written(answered, isUtc)[1];
  lost.hidden = false;
  document.body.classList.add("lost");
}

for (const name of ["htmx:sendError", "htmx:responseError", "htmx:timeout"]) {
  document.addEventListener(name, (event) => {
    if (event.detail.xhr?.status === 404) location.reload(); // what it follows is gone
    else failed();
  });
}
document.addEventListener("htmx:afterRequest", (event) => {
  if (event.detail.successful) ok();
});

// What is no JSON is said beside its field, and not sent: so it can be put right.
document.addEventListener("input", ({ target }) => {
  if (!target.matches("[data-json]")) return;
  let wrong = "";
  try {
    JSON.parse(target.value);
  } catch (error) {
    wrong = `${error.message}: write a text with its quotes, such as "yes".`;
  }
  target.setCustomValidity(wrong);
});

// A list that is out of sight, and has no title to keep, asks for nothing; nor does a closed wire.
document.addEventListener("htmx:beforeRequest", (event) => {
  const isIdle = { rows: document.hidden, wire: !byId("use-wire")?.checked }[event.target.id];
  if (isIdle) event.preventDefault();
});

// -- times and title -------------------------------------------------------------------------

const zone = Intl.DateTimeFormat().resolvedOptions().timeZone || "your time zone";
let isUtc = kept.get("times") === "UTC";

/** Return day, time of day and milliseconds of a time, as texts. */
function written(at, inUtc) {
  const of = (name, width = 2) => String(at[`get${inUtc ? "UTC" : ""}${name}`]()).padStart(width, "0");
  const month = String(Number(of("Month")) + 1).padStart(2, "0");
  return [
    `${of("FullYear", 4)}-${month}-${of("Date")}`,
    `${of("Hours")}:${of("Minutes")}:${of("Seconds")}`,
    `.${of("Milliseconds", 3)}`,
  ];
}

function say(node, text) {
  if (node && node.textContent !== text) node.textContent = text;
}

function show(time) {
  const at = new Date(time.dateTime);
  if (Number.isNaN(at.getTime())) return;
  const inBoth = ([day, clock, part]) => `${day} ${clock}${part}`;
  const title = `${inBoth(written(at, false))} ${zone}, ${inBoth(written(at, true))} UTC`;
  if (time.title !== title) time.title = title;
  if (time.classList.contains("ago")) return;
  const [day, clock, part] = written(at, isUtc);
  say(time.firstChild, `${day} `);
  say(time.querySelector("b"), clock);
  say(time.querySelector(".ms"), part);
}

/** Show the times in an element, or in a fragment before it becomes a part of the page. */
function local(root) {
  root.querySelectorAll("time[datetime]").forEach(show);
}

function refresh() {
  local(document);
  const titled = document.querySelector("[data-title]");
  if (titled && document.title !== titled.dataset.title) document.title = titled.dataset.title;
}

function showZone() {
  say(byId("zone"), isUtc ? "UTC" : zone);
  say(byId("other-zone"), isUtc ? "Show local times" : "Show UTC");
  refresh();
}

function switchZone() {
  isUtc = !isUtc;
  kept.set("times", isUtc ? "UTC" : "local");
  showZone();
}

byId("other-zone").hidden = /^(Etc\/)?UTC$/.test(zone);
byId("other-zone").addEventListener("click", switchZone);
showZone();
// Before the next frame, so that no time of a new part is seen in UTC first.
const observer = new MutationObserver(() => {
  refresh();
  observer.takeRecords();
});
observer.observe(byId("main"), { subtree: true, childList: true, characterData: true, attributes: true, attributeFilter: ["datetime", "data-title"] });

// -- keys ------------------------------------------------------------------------------------

const ROWS = "main .main-cell > a, main .choice a, main .journal a, main tbody th > a, main .boards td > a";
const AFTER_G_MS = 1500;
const keys = byId("keys");
const useKeys = byId("use-keys");
let gAt = -Infinity;

function step(by) {
  const rows = [...document.querySelectorAll(ROWS)].filter((row) => row.getClientRects().length);
  const at = rows.indexOf(document.activeElement);
  const next = at < 0 ? (by > 0 ? 0 : rows.length - 1) : at + by;
  rows[Math.min(Math.max(next, 0), rows.length - 1)]?.focus();
}

function search() {
  const field = document.querySelector(".find input");
  if (field) field.select();
  else location.assign(`${document.querySelector("nav [data-key=t]").href}#search`);
}

function escaped(on) {
  const details = on.closest("details[open]");
  if (on.matches("input, textarea, select")) on.blur();
  else if (details) {
    details.open = false;
    details.querySelector("summary").focus();
  }
}

const DOES = {
  "/": search,
  "?": () => keys.showModal(),
  j: () => step(1),
  k: () => step(-1),
  u: switchZone,
};

document.addEventListener("keydown", (event) => {
  const on = event.target;
  if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
  if (keys.open || !on.matches) return;
  if (event.key === "Escape") return escaped(on);
  if (!useKeys.checked || on.matches("input, textarea, select") || on.isContentEditable) return;
  const leads = event.timeStamp - gAt < AFTER_G_MS && document.querySelector(`nav [data-key="${CSS.escape(event.key)}"]`);
  gAt = event.key === "g" ? event.timeStamp : -Infinity;
  const does = leads ? () => leads.click() : DOES[event.key];
  if (!does) return;
  event.preventDefault();
  does();
});

useKeys.checked = kept.get("keys") !== "off";
useKeys.addEventListener("change", () => kept.set("keys", useKeys.checked ? "on" : "off"));
byId("show-keys").hidden = false;
byId("show-keys").addEventListener("click", () => keys.showModal());
byId("hide-keys").addEventListener("click", () => keys.close());
if (location.hash === "#search") search();

// -- chat ------------------------------------------------------------------------------------

/** Send by Enter, once, and keep the newest line in sight until its reader scrolls away from it. */
function talk(form) {
  const useWire = byId("use-wire");
  const text = byId("text");
  // How far the end of the conversation is below the form, which covers the foot of the window.
  const hidden = () => document.querySelector(".talks").getBoundingClientRect().bottom + form.offsetHeight - innerHeight;
  let follows = true;
  let isBack = false;
  // A text that was not taken comes back into its field, once.
  const update = () => {
    const unsent = document.querySelector("[data-unsent]")?.dataset.unsent;
    if (unsent && !isBack && !text.value) text.value = unsent;
    isBack ||= Boolean(unsent);
    if (follows) scrollBy(0, hidden());
  };
  // A reader may have opened the wire before this script came.
  useWire.checked ||= kept.get("wire") === "on";
  useWire.addEventListener("change", () => kept.set("wire", useWire.checked ? "on" : "off"));
  text.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    form.requestSubmit();
  });
  form.addEventListener("submit", (event) => {
    if (form.dataset.sent || !(text.value.trim() || form.files.value)) event.preventDefault();
    else form.dataset.sent = "yes";
  });
  addEventListener("scroll", () => (follows = Math.abs(hidden()) < 160));
  new MutationObserver(update).observe(byId("talk"), { subtree: true, childList: true, characterData: true });
  update();
}

if (byId("say")) talk(byId("say"));

// -- live parts ------------------------------------------------------------------------------

// What is live is changed in place: what is selected, open, focused or scrolled stays so.
const inPlace = {
  ignoreActiveValue: true,
  callbacks: {
    beforeNodeMorphed(old, now) {
      if (now.nodeType === Node.ELEMENT_NODE) return !now.hasAttribute("data-same");
      const grows = now.nodeType === Node.TEXT_NODE && now.data.startsWith(old.data);
      if (grows && now.data !== old.data) old.appendData(now.data.slice(old.length));
      return !grows;
    },
    beforeAttributeUpdated: (name, node) => !(name === "open" && node.tagName === "DETAILS"),
  },
};

htmx.defineExtension("morph", {
  isInlineSwap: (style) => style === "morph",
  handleSwap(style, target, fragment) {
    if (style !== "morph") return false;
    local(fragment); // so that no time is another one than on the page
    const same = [...fragment.querySelectorAll("[data-same]")];
    if (same.every((one) => document.getElementById(one.id) !== null)) {
      return Idiomorph.morph(target, fragment.children, inPlace);
    }
    target.setAttribute("hx-get", target.dataset.whole); // the page lacks what it was to keep
    return [target];
  },
});
