"""The console in a real browser: what is live, and what is shown."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal
from zoneinfo import ZoneInfo

import pytest
from a2a.types import Artifact, Part, TaskState
from playwright.sync_api import Browser, ConsoleMessage, Route, expect

from a2a_serverless.storage.deletion import count_data
from a2a_serverless.tasks.entries import ArtifactWritten
from a2a_serverless.tasks.head import AttemptEnd
from a2a_serverless.tasks.identity import Scope
from a2a_serverless_tools.console import pages
from tests.browser import seeds
from tests.browser.conftest import Site, Visit, violations, visiting
from tests.support.messages import request

pytestmark = [pytest.mark.browser, pytest.mark.long]

CHUNK = re.compile(r'"text": "(\d+) "')


def begin(visit: Visit, text: str) -> None:
    """Send a message from the page that is for it."""
    visit.go("/chat")
    visit.page.fill("#text", text)
    visit.page.press("#text", "Enter")


def numbers(visit: Visit) -> list[int]:
    """The chunks that have come over the wire."""
    return [int(found) for found in CHUNK.findall(visit.page.inner_text(".lines"))]


# -- live --------------------------------------------------------------------------------------


@pytest.mark.long(but=1)
def test_a_task_is_followed_to_its_end(visit: Visit, tmp_path: Path) -> None:
    """Its page shows each chunk without a reload, and stops asking when the task has ended.

    A confirmation stays open meanwhile; at the end there is nothing left to cancel.
    """
    begin(visit, f"count {tmp_path / 'go'}")
    visit.page.click("text=Open the task")
    visit.page.click("#view-conversation")
    expect(visit.page.locator(".now .state")).to_have_text("working")
    visit.page.evaluate("window.same = true")
    visit.page.click("text=Cancel this task")
    name = visit.page.inner_text(".crumb code")[:8]
    expect(visit.page).to_have_title(f"working · {name} · a2a")
    expect(visit.page.locator(".artifact .bubble")).to_contain_text("9 10")
    expect(visit.page.locator(".cancel button.danger")).to_be_visible()
    (tmp_path / "go").touch()
    expect(visit.page.locator(".now .state")).to_have_text("completed")
    expect(visit.page.locator(".cancel button.danger")).to_be_hidden()
    expect(visit.page).to_have_title(f"completed · {name} · a2a")
    expect(visit.page.locator(".artifact .bubble")).to_contain_text("0 1 2 3 4")
    expect(visit.page.locator(".artifact .bubble")).to_contain_text("18 19")
    expect(visit.page.locator(".talk li.agent").last).to_contain_text("All twenty.")
    assert visit.page.evaluate("window.same") is True
    assert any("/live?" in url for url in visit.asked)
    expect(visit.page.locator("[hx-trigger^=every]")).to_have_count(0)
    assert visit.said == []


def test_a_cut_connection_is_resumed(visit: Visit, tmp_path: Path) -> None:
    """What came before the cut and after it is each chunk once; the chat goes on meanwhile.

    The wire is opened before the page's script comes, and stays open.
    """

    def late(script: Route) -> None:
        visit.page.check("#use-wire")
        script.continue_()

    begin(visit, f"count {tmp_path / 'go'}")
    expect(visit.page.locator("#now")).to_be_visible()
    visit.page.route("**/console.js", late)
    visit.page.reload()
    expect(visit.page.locator("#use-wire")).to_be_checked()
    expect(visit.page.locator(".lines")).to_contain_text('"text": "3 "')
    visit.page.click("text=Cut the connection")
    expect(visit.page.locator(".lines")).to_contain_text("The connection was cut here.")
    before = numbers(visit)
    visit.page.click("text=Resume after")
    (tmp_path / "go").touch()
    expect(visit.page.locator("#now")).to_have_text("completed")
    expect(visit.page.locator(".lines")).to_contain_text("The answer is complete.")
    assert "Last-Event-ID: " in visit.page.inner_text(".lines")
    after = [number for number in numbers(visit) if number > before[-1]]
    assert before + after == list(range(20))
    expect(visit.page.locator(".artifact .bubble")).to_contain_text("0 1 2 3 4")
    assert visit.said == []


@pytest.mark.long(but=1)
def test_a_chat_keeps_its_conversation(visit: Visit) -> None:
    """The answer to a question goes to the task that asked, the next message to another task."""
    begin(visit, "ask")
    expect(visit.page.locator("#now")).to_contain_text("The agent asks: Which day?")
    visit.page.fill("#text", "Saturday")
    # The page before may show the answer before the next one takes its place.
    with visit.page.expect_navigation():
        visit.page.press("#text", "Enter")
    expect(visit.page.locator(".talk")).to_contain_text("Thank you: Saturday")
    expect(visit.page.locator("#now")).to_have_text("completed")
    assert visit.page.locator("ol.talk").count() == 1
    visit.page.reload()
    visit.page.fill("#text", "ask")
    with visit.page.expect_navigation():
        visit.page.click("#say button")
    expect(visit.page.locator("ol.talk")).to_have_count(2)
    expect(visit.page.locator("#now")).to_contain_text("The agent asks")
    expect(visit.page.locator(".talk").first).to_contain_text("Thank you: Saturday")
    visit.page.click("text=Stop")
    expect(visit.page.locator("#now")).to_have_text("canceled")
    visit.page.click("text=New chat")
    expect(visit.page.locator("ol.talk")).to_have_count(0)
    expect(visit.page.locator("#text")).to_be_focused()


def test_a_text_that_was_not_sent_stays_in_its_field(visit: Visit) -> None:
    """Such as an answer to a question that another tab has answered meanwhile."""
    begin(visit, "ask")
    expect(visit.page.locator("#now")).to_contain_text("The agent asks")
    other = visit.context.new_page()
    other.route("**/chat/live**", lambda route: route.abort())  # it shows what it has shown
    other.goto(visit.page.url)
    other.fill("#text", "Tuesday")
    visit.page.fill("#text", "Saturday")
    visit.page.press("#text", "Enter")
    expect(visit.page.locator("#now")).to_have_text("completed")
    other.press("#text", "Enter")
    expect(other.locator(".alert")).to_contain_text("The question was answered")
    expect(other.locator("#text")).to_have_value("Tuesday")
    expect(other.locator("ol.talk")).to_have_count(1)
    other.unroute("**/chat/live**")
    other.press("#text", "Enter")  # it is a message of its own: nothing is asked
    expect(other.locator("ol.talk")).to_have_count(2)
    expect(other.locator("#text")).to_have_value("")


IN_SIGHT = """() => {
  const at = (one) => one.getBoundingClientRect();
  const [newest] = [...document.querySelectorAll("ol.talk li")].slice(-1).map(at);
  const form = at(document.getElementById("say"));
  return newest.top >= 0 && newest.bottom <= form.top && form.bottom <= innerHeight;
}"""
"""True if the conversation's last line is in the window, above the form."""


def test_the_newest_line_is_in_sight(visit: Visit) -> None:
    """It stands above the form, also where the steps stand below the conversation."""
    begin(visit, "steps /")
    expect(visit.page.locator("#now")).to_have_text("failed")
    for width, text, now in ((360, "ask", "The agent asks"), (1440, "Saturday", "completed")):
        visit.page.set_viewport_size({"width": width, "height": 640})
        visit.page.fill("#text", text)
        with visit.page.expect_navigation():
            visit.page.press("#text", "Enter")
        expect(visit.page.locator("#now")).to_contain_text(now)
        visit.page.wait_for_function(IN_SIGHT)
        assert visit.page.evaluate("document.documentElement.scrollWidth") == width


def test_files_are_sent_and_shown(visit: Visit) -> None:
    """Each byte of those chosen comes to the agent, also of one that a message has no room for.

    An image is shown, and any other file is a link with name, type and size.
    """
    visit.go("/chat")
    given = (
        ("ümläut.pdf", "application/pdf", b"%PDF\r\n\r\n--\x00\xff\n"),
        ("map.png", "image/png", seeds.png()),
        ("large.bin", "application/x-large", bytes(range(256)) * 10_000),
    )
    files = [{"name": name, "mimeType": kind, "buffer": content} for name, kind, content in given]
    visit.page.set_input_files("input[type=file]", files)  # type: ignore[arg-type]
    visit.page.fill("#text", "return")
    visit.page.click("#say button")
    expect(visit.page.locator("#now")).to_have_text("completed")
    back = visit.page.locator(".artifact")
    expect(back).to_have_count(3)
    expect(back.nth(0)).to_contain_text("ümläut.pdf application/pdf, 13 bytes")
    expect(back.nth(2)).to_contain_text("large.bin application/x-large, 2,560,000 bytes")
    image = back.nth(1).locator("img")
    image.scroll_into_view_if_needed()
    visit.page.wait_for_function("one => one.naturalWidth > 0", arg=image.element_handle())
    for number in (0, 2):
        with visit.page.expect_download() as download:
            back.nth(number).locator("a").click()
        assert Path(download.value.path()).read_bytes() == given[number][2]


def test_steps_are_shown_as_they_are_recorded(visit: Visit, tmp_path: Path) -> None:
    """While the turn runs, each with name, key and result; why a turn has failed is beside them."""
    gate = tmp_path / "go"
    begin(visit, f"steps {gate}")
    row = visit.page.locator(".steps tbody tr")
    expect(row.first).to_contain_text("look")
    assert "The agent works." in visit.page.inner_text("#now")
    gate.touch()
    expect(visit.page.locator("#now")).to_have_text("failed")
    assert row.first.locator("th, td").all_inner_texts()[:3] == ["look", "tables", '{"found":3}']
    expect(visit.page.locator(".side .bad")).to_contain_text("ValueError at")


def test_a_paused_task_is_answered(visit: Visit) -> None:
    """Under the question on its page: the answer completes it."""
    begin(visit, "ask")
    expect(visit.page.locator("#now")).to_contain_text("The agent asks")
    visit.page.click("text=Open the task")
    expect(visit.page.locator(".answer")).to_be_visible()
    visit.page.fill(".answer textarea", "Saturday")
    visit.page.click("text=Answer it")
    expect(visit.page.locator("#now")).to_have_text("completed")
    expect(visit.page.locator(".talk")).to_contain_text("Thank you: Saturday")


def test_a_task_is_canceled_and_deleted_after_a_confirmation(visit: Visit) -> None:
    """The first click only shows what will happen; the second one does it."""
    begin(visit, "wait")
    expect(visit.page.locator(".talk")).to_contain_text("Waiting until")
    visit.page.click("text=Open the task")
    visit.page.click("#view-conversation")
    expect(visit.page.locator(".answer")).to_be_hidden()
    expect(visit.page.locator(".cancel button.danger")).to_be_hidden()
    visit.page.click("text=Cancel this task")
    visit.page.click("text=Yes, cancel it")
    expect(visit.page.locator("[role=status]")).to_have_text("The task is canceled.")
    expect(visit.page.locator(".now .state")).to_have_text("canceled")
    visit.page.click("text=Delete this task")
    visit.page.click("text=Yes, delete it")
    expect(visit.page.locator("main")).to_contain_text("has no task")
    visit.said.clear()  # of its HTTP 404


def test_a_wait_for_a_callback_is_ended_on_its_row(visit: Visit) -> None:
    """With a JSON value, which has to be one; what is typed stays while the page is live."""
    begin(visit, "approve")
    visit.page.click("text=Open the task")
    row = visit.page.locator(".fact-waits")
    expect(row).to_contain_text("for the callback approved until")
    row.locator("summary").click()
    row.locator("textarea").fill("yes")
    row.locator("button").click()
    assert row.locator("textarea:invalid").count() == 1
    row.locator("textarea").fill('{"by": "pat"}')
    visit.page.locator("h1").click()
    with visit.page.expect_response(lambda one: "/live?" in one.url and one.status == 200):
        pass  # an open turn's ages are sent anew within ten seconds
    expect(row.locator("textarea")).to_have_value('{"by": "pat"}')
    row.locator("button").click()
    over = "Its wait for the callback approved is over."
    expect(visit.page.locator("[role=status]")).to_have_text(over)
    expect(visit.page.locator(".journal")).to_contain_text(over)
    expect(visit.page.locator(".now .state")).to_have_text("completed")
    expect(visit.page.locator(".talk")).to_contain_text("Approved: {'by': 'pat'}")


def test_a_crowd_is_canceled_step_by_step(visit: Visit, site: Site) -> None:
    """From a filtered list, by one confirmation; the page goes on, and the journal tells of it."""
    context = f"crowd-{uuid.uuid4()}"
    for number in range(12):
        seeds.done(site.storage.open_task(context, request(), task_id=f"{context}-{number}"))
    visit.go(f"/tasks?context={context}")
    visit.page.click("text=Act on these…")
    visit.page.click(".on-these a:text-is('Cancel')")
    expect(visit.page.locator("#run")).to_contain_text("looked at 12. Tasks to cancel: 12.")
    visit.page.click("text=Yes, cancel all")
    expect(visit.page.locator("#run .calm")).to_have_text("Done: 12 of 12.")
    visit.page.click("text=See it in the journal")
    expect(visit.page.locator(".journal li", has_text=context)).to_have_count(12)


def test_a_caller_is_deleted(visit: Visit, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its name was typed the page asks for each next step itself, until nothing is left."""
    monkeypatch.setattr(pages, "_COUNTS", 1)
    monkeypatch.setattr(pages, "_WAIT_S", 0)
    storage = site.storage.for_scope(Scope.of("", "leaver"))

    async def fill() -> None:
        for number in range(110):
            await storage.open_task("c", request(), task_id=f"of-leaver-{number}")

    seeds.done(fill())
    visit.go("/tasks?user=leaver")
    visit.page.click("text=Delete all that this caller has…")
    expect(visit.page.locator("main")).to_contain_text("More than 100 tasks")
    visit.page.fill("main input[name=name]", "someone")
    visit.page.click("text=Delete it for good")
    expect(visit.page.locator(".alert")).to_contain_text("leaver was not typed")
    visit.page.fill("main input[name=name]", "leaver")
    visit.page.click("text=Delete it for good")
    said = re.compile("Deleted 110 tasks, .* and no uploads: nothing is left[.]")
    expect(visit.page.locator(".calm")).to_have_text(said)
    assert sum(url.endswith("/purge") for url in visit.asked) > 2
    assert seeds.done(count_data(storage)).is_nothing


def test_a_list_out_of_sight_asks_for_nothing(visit: Visit) -> None:
    """While its tab is hidden, each request of htmx for the rows is refused in the browser."""
    visit.go("/tasks")
    visit.page.evaluate(
        """document.addEventListener("htmx:beforeRequest", (event) =>
            console.log(`hidden ${document.hidden}, refused ${event.defaultPrevented}`))"""
    )
    for hidden in ("false", "true"):

        def is_said(message: ConsoleMessage, hidden: str = hidden) -> bool:
            return message.text == f"hidden {hidden}, refused {hidden}"

        told = f"{{value: {hidden}, configurable: true}}"
        with visit.page.expect_console_message(is_said):
            visit.page.evaluate(f'Object.defineProperty(document, "hidden", {told})')
    visit.said.clear()


def test_a_failed_task_has_no_green_mark_and_nothing_pulses(visit: Visit, site: Site) -> None:
    """The dot of its end has the colour of a failure; a page that follows a task stands still."""
    colour = "getComputedStyle(document.querySelector('{}'), '::before').backgroundColor"
    head = site.scribe.begin("red", "Crash.")
    visit.task(site, "red", "timeline")
    expect(visit.page.locator(".now .follows")).to_have_text("live")
    assert visit.page.evaluate("document.getAnimations().length") == 0
    site.scribe.commit(head, seeds.said(TaskState.TASK_STATE_FAILED, "x"), token="a")
    expect(visit.page.locator(".story .story .story .failed")).to_have_count(1)
    expect(visit.page.locator(".now .follows")).to_have_count(0)
    width = "document.querySelector('{}').clientWidth"
    widths = [visit.page.evaluate(width.format(one)) for one in (".fact-why", ".facts")]
    assert widths[0] == widths[1]
    red = visit.page.evaluate(colour.format(".story .story .story .failed"))
    seeds.conversation(site.scribe, "green")
    visit.task(site, "green", "timeline")
    assert visit.page.evaluate(colour.format(".story .story .completed")) != red
    assert red == visit.page.evaluate(
        "(() => { const e = document.createElement('p'); e.className = 'alert bad';"
        " document.body.append(e); return getComputedStyle(e).color; })()"
    )


def test_artifacts_are_rendered(visit: Visit, site: Site) -> None:
    """Markdown as such, JSON indented, an image as an image, any other file as a download."""
    seeds.conversation(site.scribe, "rendered")
    visit.task(site, "rendered")
    expect(visit.page.locator(".markdown h2")).to_have_text("Route for Saturday")
    expect(visit.page.locator(".markdown td").first).to_have_text("home to harbour")
    expect(visit.page.locator(".json")).to_contain_text('"dep": "09:40"')
    visit.page.locator(".bubble img").scroll_into_view_if_needed()
    visit.page.wait_for_function("() => document.querySelector('.bubble img').naturalWidth === 192")
    with visit.page.expect_download() as download:
        visit.page.click(".file a")
    assert download.value.suggested_filename == "route.gpx"
    link = visit.page.locator(".markdown a")
    assert link.get_attribute("rel") == "noopener noreferrer nofollow"


def test_an_image_is_loaded_once(visit: Visit, site: Site) -> None:
    """While its task goes on: each load reads the task's whole log."""
    head = site.scribe.begin("with-image", "Draw it.")
    image = Part(raw=seeds.png(), media_type="image/png", filename="map.png")
    drawn = ArtifactWritten(Artifact(artifact_id="map", parts=[image]))
    site.scribe.commit(head, drawn, token="a")
    visit.task(site, "with-image")
    loaded = "() => document.querySelector('.bubble img').naturalWidth === 192"
    visit.page.wait_for_function(loaded)
    for number in range(3):
        site.scribe.commit(head, seeds.chunk(f"line {number} ", append=number > 0), token="a")
        expect(visit.page.locator(".talk")).to_contain_text(f"line {number}")
        visit.page.wait_for_function(loaded)
    assert sum("/part/" in url for url in visit.asked) == 1


def test_a_large_task_opens_at_once(
    visit: Visit, site: Site, record_property: Callable[[str, object], None]
) -> None:
    """3,200 chunks and 200 attempts: each view is a page of a bounded size, and scrolls."""
    seeds.large(site.scribe, "large")
    sizes: dict[str, tuple[int, int]] = {}
    for view in ("conversation", "timeline", "steps", "events", "cost"):
        visit.task(site, "large", view)
        elements = visit.page.evaluate("document.querySelectorAll('*').length")
        sizes[view] = (elements, len(visit.page.content()))
        expect(visit.page.locator(".now .state")).to_have_text("working")
        visit.page.mouse.wheel(0, 5_000)
        scrolled = "window.scrollY > 0 || document.body.scrollHeight <= 720"
        visit.page.wait_for_function(f"() => {scrolled}")
    record_property("elements and characters", sizes)
    assert max(elements for elements, _ in sizes.values()) < 5_000, sizes
    assert max(characters for _, characters in sizes.values()) < 250_000, sizes
    visit.task(site, "large")
    assert "word 0 word 1 word 2" in visit.page.inner_text(".artifact .bubble")


def test_the_keyboard_reaches_everything(visit: Visit, site: Site) -> None:
    """Tab comes to the skip link first, then to each page; focus can be seen."""
    visit.go("/tasks")
    visit.page.keyboard.press("Tab")
    assert visit.page.evaluate("document.activeElement.className") == "skip"
    names = []
    for _ in range(8):
        visit.page.keyboard.press("Tab")
        names.append(visit.page.evaluate("document.activeElement.textContent.trim()"))
        outline = "getComputedStyle(document.activeElement).outlineStyle"
        assert visit.page.evaluate(outline) != "none"
    ways = "Chat Status Tasks Queues Journal Card"
    assert names[:7] == ["a2a-serverless", *ways.split()]


def test_single_keys_lead_through_the_pages(visit: Visit, site: Site) -> None:
    """To the search, the rows and the pages; never while a field is written in, or switched off."""
    page, press = visit.page, visit.page.keyboard.press
    site.scribe.open("keys-1", "One.")
    site.scribe.wait(1)
    site.scribe.open("keys-2", "Two.")
    visit.go("/card")
    press("/")
    field = page.locator("#id")
    expect(field).to_be_focused()
    assert page.url.endswith("/tasks#search")
    page.keyboard.type("g?/ju")
    expect(field).to_have_value("g?/ju")
    press("Escape")
    expect(field).not_to_be_focused()
    field.fill("keys-")
    press("Enter")
    page.wait_for_url("**/tasks?text=keys-")
    for key, number in zip("jjjkk", (2, 1, 1, 2, 2), strict=True):
        press(key)
        expect(page.locator(f".list a:text-is('keys-{number}')")).to_be_focused()
    press("Enter")
    expect(page.locator(".crumb code")).to_have_text("keys-2")
    page.locator(".resend summary").click()
    expect(page.locator(".resend form")).to_be_visible()
    press("Tab")
    expect(page.locator(".resend form :focus")).to_be_visible()
    press("Escape")
    expect(page.locator(".resend summary")).to_be_focused()
    expect(page.locator(".resend form")).to_be_hidden()
    for path in ("queues", "status", "journal", "tasks"):
        press("g")
        press(path[0])
        page.wait_for_url(f"**/{path}")
    press("?")
    expect(page.locator("#keys")).to_be_visible()
    assert page.evaluate("document.activeElement.id") == "use-keys"
    press("Space")
    press("Escape")
    expect(page.locator("#keys")).to_be_hidden()
    page.reload()
    press("?")
    press("j")
    assert page.evaluate("document.activeElement.tagName") == "BODY"
    page.click("text=Keyboard")
    expect(page.locator("#use-keys")).not_to_be_checked()


def test_times_are_those_of_the_reader(browser: Browser, site: Site, axe: Path) -> None:
    """In the zone of the browser, named once, UTC beside it; a switch is kept; live parts, too."""
    head = site.scribe.begin("local-times", "When?")
    created_at = site.scribe.clock.now_ms() / 1000
    there = datetime.fromtimestamp(created_at, ZoneInfo("Australia/Adelaide"))
    utc = datetime.fromtimestamp(created_at, UTC)
    options = {"timezone_id": "Australia/Adelaide", "bypass_csp": True}
    with visiting(browser, site, **options) as visit:
        visit.task(site, "local-times", "timeline")
        first = visit.page.locator(".story time").first
        expect(first).to_contain_text(f"{there:%Y-%m-%d %H:%M:%S}.")
        title = first.get_attribute("title") or ""
        assert f"{there:%Y-%m-%d %H:%M:%S}" in title
        assert f"{utc:%Y-%m-%d %H:%M:%S}" in title
        assert "Australia/Adelaide" in title
        assert visit.page.inner_text("body").count("Australia/Adelaide") == 1
        site.scribe.commit(head, seeds.said(TaskState.TASK_STATE_FAILED, "No."), token="a")
        end = visit.page.locator(".story .story .story .failed time")
        expect(end).to_contain_text(f"{there:%Y-%m-%d %H:}")
        visit.page.keyboard.press("?")
        assert violations(visit.page, axe) == {}
        visit.page.keyboard.press("Escape")
        visit.page.click("text=Show UTC")
        expect(end).to_contain_text(f"{utc:%Y-%m-%d %H:}")
        visit.page.reload()
        expect(first).to_contain_text(f"{utc:%Y-%m-%d %H:%M:%S}.")
        assert visit.said == []
        refuses = "{get() { throw new Error('no'); }}"
        visit.page.add_init_script(f"Object.defineProperty(window, 'localStorage', {refuses})")
        visit.page.reload()
        expect(first).to_contain_text(f"{there:%Y-%m-%d %H:%M:%S}.")
        visit.page.keyboard.press("u")
        expect(first).to_contain_text(f"{utc:%Y-%m-%d %H:%M:%S}.")
        assert visit.said == []
    with visiting(browser, site, java_script_enabled=False, timezone_id="Asia/Tokyo") as visit:
        visit.task(site, "local-times", "timeline")
        assert f"{utc:%Y-%m-%d %H:%M:%S}." in visit.page.inner_text(".story time >> nth=0")
        assert "Times are in UTC." in visit.page.inner_text("footer")


FILLED = """() => [...document.querySelectorAll('.facts')].every(facts => {
  const box = facts.getBoundingClientRect(), last = {};
  for (const cell of facts.children) {
    const at = cell.getBoundingClientRect();
    last[Math.round(at.top)] = Math.max(last[Math.round(at.top)] ?? 0, at.right);
  }
  return Object.values(last).every(right => right > box.right - 4);
})"""
"""True if each row of facts ends at the end of its frame: there is no empty cell."""

SEEN = """() => [...document.querySelectorAll('nav a')].every(link => {
  const box = link.getBoundingClientRect();
  return box.left >= 0 && box.right <= innerWidth;
})"""
"""True if each way to a page, and to a view of a task, is in the window."""

UNSCROLLED = """() => {
  const list = document.querySelector('.scroll');
  return list.scrollWidth <= list.clientWidth;
}"""
"""True if the list of tasks shows all its columns without being scrolled."""


@pytest.fixture(scope="module")
def crowded(site: Site) -> Site:
    """One with long names, texts and waits."""
    scribe, long_name = site.scribe, f"{'withoutaspace' * 4}@example.org"
    other = seeds.Scribe(site.storage.for_scope(Scope.of("", long_name)), scribe.clock)
    place = f"{'a_long_folder/' * 4}agent.py, line 28, in handle"
    failed = seeds.said(TaskState.TASK_STATE_FAILED, "No.")
    whose = ((scribe, "one", "ann"), (scribe, "two", "ann"), (other, "three", long_name))
    for author, name, user in whose:
        head = author.open(name, f"{'A long first line of a request. ' * 9}\nMore.", user=user)
        author.claim(head, name)
        end = AttemptEnd(token=name, reason="ValueError", correlation_id="0" * 16, place=place)
        author.commit(head, failed, token=name, failed=end)
    other.claim(other.open("00000000-0000-4000-8000-held", "Hello.", user=long_name), "b")
    waits = scribe.open("00000000-0000-4000-8000-waits", "Hello.")
    due_at = site.storage.clock.now_ms() + 7_000_000
    assert seeds.done(site.storage.postpone(waits, due_at=due_at, sends=12))
    seeds.asleep(scribe, "asleep")
    seeds.failing_webhook(scribe, "hook")
    seeds.killed(scribe, "killed")
    return site


CHECKED = (
    *("/status", "/tasks", "/tasks?attention=failed", "/tasks?text=long", "/queues", "/journal"),
    *("/card", "/chat", f"/purge?user={'x' * 200}"),
    *("/act?act=cancel&since=day", f"/act?act=retry&user={'x' * 200}"),
)


@pytest.mark.parametrize(("width", "scheme"), [(320, "light"), (800, None), (1280, "dark")])
def test_pages_are_readable(
    browser: Browser, crowded: Site, axe: Path, width: int, scheme: Literal["light", "dark"] | None
) -> None:
    """The checker axe finds nothing, in both schemes, and nothing is wider than the window.

    What does not fit scrolls in its own place, but the ways to pages and views.
    """
    viewport = {"width": width, "height": 900}
    options = {"viewport": viewport, "color_scheme": scheme, "bypass_csp": True}
    with visiting(browser, crowded, **options) as visit:

        def check(where: str) -> None:
            assert scheme is None or violations(visit.page, axe) == {}, where
            assert visit.page.evaluate("document.documentElement.scrollWidth") <= width, where
            assert visit.page.evaluate(FILLED), where

        for path in CHECKED:
            visit.go(path)
            check(path)
            if path == "/tasks" and width >= 1280:
                assert visit.page.evaluate(UNSCROLLED)
        for view in ("conversation", "timeline", "steps", "events", "cost"):
            visit.task(crowded, "killed", view)
            check(view)
            assert visit.page.evaluate(SEEN), view
        for view in ("conversation", "timeline"):
            visit.task(crowded, "asleep", view)
            check(f"asleep, {view}")
        visit.task(crowded, "one", "timeline")
        visit.page.locator(".story .story summary").first.click()
        expect(visit.page.locator(".story .story > .failed").first).to_contain_text("line 28")
        check("an unfolded attempt")
