"""A task's page in a real browser while the task goes on: what a person does with it stays."""

from __future__ import annotations

from pathlib import Path

import pytest
from a2a.types import TaskState
from playwright.sync_api import Browser, expect

from a2a_serverless.storage.deletion import delete_task
from a2a_serverless.tasks.head import Head
from tests.browser import seeds
from tests.browser.conftest import Site, Visit, violations, visiting

pytestmark = [pytest.mark.browser, pytest.mark.long]

WORKING = TaskState.TASK_STATE_WORKING

TALK = "#live > .talk"

SELECT = """text => {
  const walker = document.createTreeWalker(document.querySelector('.talk'), NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const at = walker.currentNode.data.indexOf(text);
    if (at >= 0) getSelection().setBaseAndExtent(
      walker.currentNode, at, walker.currentNode, at + text.length);
  }
}"""
SELECTED = "getSelection().toString()"


def retried(site: Site, task_id: str) -> Head:
    """A task whose first attempt was discarded, and whose second one has said a little."""
    head = site.scribe.begin(task_id, "What does it cost?")
    offer = seeds.chunk("It is 999 EUR <today>.", "offer", append=False)
    site.scribe.commit(head, seeds.said(WORKING, "I ask."), offer, token="a")
    site.scribe.claim(head, "b", seeds.NEXT_WORKER)
    site.scribe.commit(head, seeds.said(WORKING, "I ask."), token="b")
    return site.scribe.commit(head, seeds.chunk("It is 120", "offer", append=False), token="b")


def test_what_is_selected_open_and_focused_stays(visit: Visit, site: Site) -> None:
    """While new messages come, and while the very text grows in which the selection is."""
    head = retried(site, "held")
    visit.task(site, "held")
    page = visit.page
    page.click(".cancel summary")
    page.evaluate(SELECT, "It is 120")
    page.evaluate("window.scrollTo(0, 150)")
    assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
    for number in range(2):
        more = seeds.chunk(f" and {number}", "offer")
        site.scribe.commit(head, more, seeds.said(WORKING, f"status {number}"), token="b")
        expect(page.locator(f"{TALK} > li").last).to_contain_text(f"status {number}")
        expect(page.locator(f"{TALK} > .artifact .text")).to_contain_text(f"and {number}")
        assert page.evaluate(SELECTED) == "It is 120"
        assert page.evaluate("document.activeElement.tagName") == "SUMMARY"
        assert page.evaluate("window.scrollY") == 150
        expect(page.locator(".cancel button")).to_be_visible()


def test_a_restart_is_seen_as_it_happens(visit: Visit, site: Site) -> None:
    """What was said goes, a line says why; a page whose places were lost asks for all of it."""
    head = site.scribe.begin("seen-restart", "Try.")
    site.scribe.commit(head, seeds.said(WORKING, "First words."), token="a")
    visit.task(site, "seen-restart")
    expect(visit.page.locator(f"{TALK} > .agent")).to_contain_text("First words.")
    site.scribe.claim(head, "b", seeds.NEXT_WORKER)
    line = visit.page.locator(f"{TALK} > .between")
    expect(line).to_contain_text("attempt 1 is over (lost): what it said is discarded")
    expect(visit.page.locator(f"{TALK} > .agent")).to_have_count(0)
    visit.page.evaluate("document.querySelector('.talk .user').remove()")
    site.scribe.commit(head, seeds.said(WORKING, "Second words."), token="b")
    expect(visit.page.locator(f"{TALK} > .agent")).to_contain_text("Second words.")
    expect(visit.page.locator(".talk .user")).to_contain_text("Try.")


def test_what_is_selected_in_a_list_stays(visit: Visit, site: Site) -> None:
    """A new task comes above it, the state beside it changes; a caller's are counted by state."""
    head = site.scribe.open("selected-in-a-list", "hello")
    visit.go("/tasks?since=week")
    row = visit.page.locator("tr", has_text="selected-in-a-list")
    row.locator("a").evaluate("one => getSelection().selectAllChildren(one)")
    row.locator("a").focus()
    site.scribe.open("above-in-a-list", "hello")
    site.scribe.commit(head, seeds.said(TaskState.TASK_STATE_FAILED, "x"))
    expect(row).to_contain_text("failed")
    expect(visit.page.locator("tr", has_text="above-in-a-list")).to_have_count(1)
    assert visit.page.evaluate(SELECTED) == "selected-in-a-list"
    expect(row.locator("a")).to_be_focused()
    visit.go(f"/tasks?scope={site.storage.scope.digest}&counts=1")
    expect(visit.page.locator(".counts")).to_contain_text("failed")


def test_a_task_that_is_deleted_is_gone(visit: Visit, site: Site) -> None:
    """Its page says so, and not that the console does not answer."""
    site.scribe.begin("deleted-meanwhile", "Go.")
    visit.task(site, "deleted-meanwhile")
    expect(visit.page.locator(".now .follows")).to_have_text("live")
    assert seeds.done(delete_task(site.storage, "deleted-meanwhile"))
    expect(visit.page.locator("main")).to_contain_text("has no task")
    expect(visit.page.locator("#lost")).to_be_hidden()
    visit.said.clear()  # of its HTTP 404


def test_a_filter_is_typed_while_events_come(visit: Visit, site: Site) -> None:
    """What stands in the field stays, and the page goes on with its own filter."""
    head = site.scribe.begin("typed", "Count.")
    site.scribe.commit(head, seeds.said(WORKING, "one"), seeds.chunk("x", append=False), token="a")
    visit.task(site, "typed", "events")
    visit.page.select_option("select[name=kind]", "message")
    visit.page.click("text=Show")
    expect(visit.page.locator(".events li")).to_have_count(1)
    visit.page.fill("input[name=text]", "tw")
    visit.page.locator("h1").click()
    site.scribe.commit(head, seeds.chunk("y"), seeds.said(WORKING, "two"), token="a")
    expect(visit.page.locator(".events li").first).to_contain_text("two")
    expect(visit.page.locator(".events li")).to_have_count(2)
    assert visit.page.input_value("input[name=text]") == "tw"
    visit.page.click("text=Show")
    expect(visit.page.locator(".events li")).to_have_count(1)


@pytest.mark.parametrize("view", ["conversation", "events"])
def test_a_task_of_large_artifacts_is_cheap_to_follow(visit: Visit, site: Site, view: str) -> None:
    """600 kB of artifacts, and one status after the other: 200 kB are enough for ten seconds."""
    head = site.scribe.begin(f"heavy-{view}", "Go.")
    for number in range(6):
        written = seeds.chunk("x y z " * 16_000, f"part-{number}", append=False)
        site.scribe.commit(head, written, token="a")
    visit.task(site, f"heavy-{view}", view)
    browser = visit.context.new_cdp_session(visit.page)
    browser.send("Network.enable")
    lengths: list[float] = []
    browser.on("Network.loadingFinished", lambda one: lengths.append(one["encodedDataLength"]))
    for number in range(4):
        site.scribe.commit(head, seeds.said(WORKING, f"status {number}"), token="a")
        newest = visit.page.locator("#live > ol > li").filter(has_text=f"status {number}")
        expect(newest).to_have_count(1)
    updates_of_10_s = 15
    assert len(lengths) >= 3  # the end of the last one need not be told yet
    assert max(lengths) * updates_of_10_s < 200_000, lengths


def test_a_log_with_a_restart_is_readable(browser: Browser, site: Site, axe: Path) -> None:
    """The checker axe finds nothing on it or on the events, jumps among them."""
    head = retried(site, "readable")
    more = (seeds.said(WORKING, f"status {number}") for number in range(120))
    site.scribe.commit(head, *more, token="b")
    options = {"viewport": {"width": 390, "height": 900}, "color_scheme": "dark"}
    with visiting(browser, site, bypass_csp=True, **options) as visit:
        for asked in ("conversation&after=0.0", "events"):
            visit.task(site, "readable", asked)
            assert violations(visit.page, axe) == {}, asked
            assert visit.page.evaluate("document.documentElement.scrollWidth") <= 390, asked
