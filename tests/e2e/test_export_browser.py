"""The exported page in a real Chromium: a click on each control, the visible result, and what must
never happen.

A stored picture is compared as the colours of a coarse grid. The important parts (the lines of a
diff, the spans of the timeline, dark and light) are compared at their own positions. Fonts differ
between machines, so the pictures use a font of the tests in which every character is a box.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from box_font import FAMILY, USE_FONT, encode_font
from browser import DESKTOP, PHONE, Browser
from sandbox import wait_until
from session_builder import SessionBuilder, build_full_session, build_long_session

from shim.commands.cast.stats import collect_run_statistics
from shim.commands.cast.stats_page import render_stats_page as stats_page
from shim.story.export.html import write_recording_export
from tests.story.export.test_export_html import HOSTILE, hostile

pytestmark = pytest.mark.e2e

PICTURES = Path(__file__).with_name("pictures")
GRID = (44, 36)  # cells of a stored picture: smaller than a paragraph, larger than a word
DRAWN_SECONDS = 10.0
SCROLL_TO_TARGET = "document.querySelector('.target')?.scrollIntoView({block: 'center'})"
# The mean distance of the colours, of 255: the same page has 0, a page without its style 30.
TOLERANCE = 3.0


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    browser = Browser()
    yield browser
    browser.close()


def write_page(folder: Path, cast: bytes, name: str = "run") -> Path:
    """Export a recording as a page. Return its path."""
    path, page = folder / f"{name}.cast", folder / f"{name}.html"
    path.write_bytes(cast)
    with page.open("wb") as file:
        write_recording_export(str(path), file.write, redact=True)
    return page


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_page(tmp_path_factory.mktemp("pages"), build_full_session().build_recording())


@pytest.fixture(autouse=True)
def silent(browser: Browser) -> Iterator[None]:
    """Check that no test leaves a console message, a blocked action, or a network request."""
    yield
    assert browser.list_console_messages() == []
    assert browser.list_requested_urls() == []


def list_visible_steps(browser: Browser) -> list[str]:
    """Return the ids of the visible steps."""
    ids = browser.run_script(
        "return [...document.querySelectorAll('.step')].filter(n => n.offsetParent !== null).map(n => n.id)"
    )
    return list(ids)


def count_open_steps(browser: Browser) -> tuple[int, int]:
    """Return how many steps are open, and how many can be opened."""
    return len(browser.find_elements(".step details[open]")), len(
        browser.find_elements(".step details")
    )


def in_view(browser: Browser, element_id: str) -> bool:
    box = "const box = document.getElementById(arguments[0]).getBoundingClientRect()"
    return bool(
        browser.run_script(f"{box}; return box.top < innerHeight && box.bottom > 0", element_id)
    )


# -- reading ---------------------------------------------------------------------------------------


def test_page_shows_the_session_title_totals_and_steps(browser, page):
    browser.open_file(page)
    assert browser.find_element("h1").text == "Make the list of posts faster."
    totals = browser.find_element(".totals").text
    for text in (
        "1 min 19 s",
        "1 failed",
        "1 failed, 1 denied",
        "44,820 in",
        "$0.0413",
        "glued line",
    ):
        assert text in totals
    assert len(list_visible_steps(browser)) == 25
    assert browser.find_element(".legend").text.startswith("Model 16.7 s 21 %")


def test_markdown_of_the_model_is_rendered(browser, page):
    browser.open_file(page)
    answer = next(
        step for step in browser.find_elements(".step.text") if "query per row" in step.text
    )
    drawn = {
        "strong": "query per row",
        "ol li em": "once",
        "ol ul li": "its size is bounded by the page",
        "tr:first-child td:nth-child(2)": "31 ms",
        "li code": "dict",
        "pre code": "authors = {author.id: author for author in load_authors(page)}",
    }
    for selector, text in drawn.items():
        assert answer.find_elements("css selector", selector)[0].text.split("\n")[0] == text
    anchor = answer.find_element("css selector", "a[target]")
    assert (
        anchor.get_attribute("href")
        == anchor.get_attribute("title")
        == "https://example.org/guide?q=1#part"
    )
    assert "noopener" in anchor.get_attribute("rel")
    assert not answer.find_elements("css selector", "img")


def test_step_expands_on_click_and_collapses_on_enter(browser, page):
    browser.open_file(page)
    summary = browser.find_element(".step.thinking summary")
    body = browser.find_element(".step.thinking .body")
    assert body.text == ""
    summary.click()
    browser.wait_until(lambda: "They load an author" in body.text)
    browser.run_script("arguments[0].focus()", summary)
    browser.press_keys("\ue007")
    browser.wait_until(lambda: not body.is_displayed())


def test_all_steps_can_be_expanded_and_collapsed(browser, page):
    browser.open_file(page)
    counts = count_open_steps(browser)
    assert 0 < counts[0] < counts[1]
    browser.click("#unfold")
    assert count_open_steps(browser) == (counts[1], counts[1])
    browser.click("#fold")
    assert count_open_steps(browser) == (0, counts[1])


def test_long_output_is_truncated_until_show_all_is_clicked(browser, page):
    browser.open_file(page)
    browser.click("#unfold")
    (more,) = browser.find_elements("button.more")
    assert more.text == "Show all 61 lines"
    output = more.find_element("xpath", "preceding-sibling::pre")
    assert "test_23" in output.text and "test_40" not in output.text
    browser.run_script("arguments[0].scrollIntoView({block: 'center'})", more)
    more.click()
    assert browser.find_elements("button.more") == []
    assert "60 passed" in browser.find_element("main").text


def test_diff_lines_are_green_if_added_and_red_if_removed(browser, page):
    browser.open_file(page)
    lines = browser.find_elements(".diff")[0].find_elements("css selector", ".added, .removed")
    assert len(lines) == 3
    browser.run_script("arguments[0].scrollIntoView({block: 'center'})", lines[0])
    picture = browser.take_picture()
    for line in lines:
        box = browser.run_script(
            "const b = arguments[0].getBoundingClientRect(); return [b.right, b.top, b.height]",
            line,
        )
        red, green, _ = picture.getpixel((int(box[0]) - 8, int(box[1] + box[2] / 2)))
        assert (green > red) is (line.get_attribute("class") == "added")


# -- search ----------------------------------------------------------------------------------------


def search(browser: Browser, text: str) -> None:
    browser.click("#search")
    browser.press_keys(text)
    browser.wait_until(lambda: browser.find_element("#count").text)


def test_search_counts_matches_navigates_and_expands_matching_steps(browser, page):
    browser.open_file(page)
    search(browser, "author")
    assert browser.find_element("#count").text == "5 steps"
    visited = []
    for count in ("1 of 5", "2 of 5", "3 of 5"):
        browser.click("#next")
        assert browser.find_element("#count").text == count
        visited.append(browser.find_element(".target").get_attribute("id"))
        browser.wait_until(lambda: in_view(browser, visited[-1]))
    assert browser.find_element(f"#{visited[0]}").get_attribute("class").split()[1] == "thinking"
    assert browser.find_element(f"#{visited[0]} details").get_attribute("open")
    assert browser.run_script("return CSS.highlights.get('found').size") > 5
    browser.click("#previous")
    assert browser.find_element(".target").get_attribute("id") == visited[1]
    browser.click("#search")
    browser.press_keys("\ue008\ue007")  # Shift and Enter
    browser.press_keys("\ue000")
    assert browser.find_element("#count").text == "1 of 5"


def test_search_filter_hides_other_steps_until_escape_is_pressed(browser, page):
    browser.open_file(page)
    search(browser, "AUTHOR")
    browser.click("#only")
    assert len(list_visible_steps(browser)) == 5
    browser.click("#only")
    assert len(list_visible_steps(browser)) == 25
    browser.click("#only")
    browser.click("#search")
    browser.press_keys("\ue00c")
    assert len(list_visible_steps(browser)) == 25
    assert browser.find_element("#count").text == ""


def test_search_without_matches_shows_0_steps_and_disables_next(browser, page):
    browser.open_file(page)
    assert browser.find_element(".keys kbd").text == "/"
    browser.press_keys("/")
    assert not browser.find_element(".keys kbd").is_displayed()
    browser.press_keys("no such words")
    browser.wait_until(lambda: browser.find_element("#count").text == "0 steps")
    assert not browser.find_element("#next").is_enabled()


# -- the timeline and links ------------------------------------------------------------------------


def click_at(browser: Browser, ms: float) -> None:
    """Click on the timeline, at `ms` of the session."""
    from selenium.webdriver.common.action_chains import ActionChains

    strip = browser.find_element("#strip")
    width = browser.run_script("return arguments[0].getBoundingClientRect().width", strip)
    share = ms / browser.run_script("return session.totals.duration")
    ActionChains(browser.driver).move_to_element_with_offset(
        strip, round(width * (share - 0.5)), 0
    ).click().perform()


def test_click_on_the_timeline_scrolls_to_the_step_at_that_time(browser, page):
    browser.open_file(page)
    lint = "items.find(({ step }) => step.main === 'make lint').step"
    click_at(browser, browser.run_script(f"return {lint}.at + 400"))
    assert (
        browser.find_element("#strip").get_attribute("title")
        == "0:26: Bash make lint, 0.8 s, failed"
    )
    browser.wait_until(lambda: browser.find_elements(".target"))
    target = browser.find_element(".target")
    assert "make lint" in target.text
    browser.wait_until(lambda: in_view(browser, target.get_attribute("id")))


def test_timeline_can_be_navigated_with_the_keyboard(browser, page):
    browser.open_file(page)
    strip = browser.find_element("#strip")
    browser.run_script("arguments[0].focus()", strip)
    for _ in range(5):
        browser.press_keys("\ue014")
    assert strip.get_attribute("aria-valuetext") == "0:03: Read /home/user/project/posts.py, 0.3 s"
    browser.press_keys("\ue007")
    browser.wait_until(lambda: browser.find_elements(".target"))
    assert "posts.py" in browser.find_element(".target").text
    browser.run_script("arguments[0].focus()", strip)
    browser.press_keys("\ue00f")  # Page Down
    assert strip.get_attribute("aria-valuetext") == "1:17: prompt"
    browser.press_keys("\ue00e")
    assert strip.get_attribute("aria-valuetext") == "0:00: prompt"


def colours_of_the_bar(browser: Browser) -> dict[str, float]:
    """Return, for each kind, the share of the timeline's pixels that have its colour."""
    spent = browser.run_script("return session.totals.spent")
    fill_script = "return getComputedStyle(document.querySelector('.strip .' + arguments[0])).fill"
    names = {name: browser.run_script(fill_script, name) for name in spent}
    inks = {
        tuple(int(part) for part in fill[4:-1].split(",")): name for name, fill in names.items()
    }
    assert len(inks) == len(spent), names
    box = "const b = document.querySelector('#strip svg').getBoundingClientRect()"
    left, top, width, height = browser.run_script(
        f"{box}; return [b.left, b.top, b.width, b.height]"
    )
    bar = (round(left) + 6, round(top), round(left + width) - 6, round(top + height * 1000 / 1125))
    points = browser.take_picture().crop(bar).getcolors(100_000)
    counts = {inks[ink]: count for count, ink in points if ink in inks}
    assert sum(counts.values()) > 0.97 * sum(count for count, _ in points), points
    return {name: count / sum(counts.values()) for name, count in counts.items()}


@pytest.mark.parametrize(
    "calls",
    [
        0,
        500,
        pytest.param(100, marks=pytest.mark.full),
        pytest.param(5_000, marks=pytest.mark.full),
    ],
)
def test_timeline_colour_shares_match_the_time_spent(browser, page, tmp_path, calls):
    """A bar of 500 calls was once a blend of two colours; a bar of 5,000 showed a third of the
    session in one colour.
    """
    browser.open_file(
        write_page(tmp_path, build_long_session(calls).build_recording()) if calls else page
    )
    shares = colours_of_the_bar(browser)
    duration, spent = browser.run_script("return [session.totals.duration, session.totals.spent]")
    for name, ms in spent.items():
        assert shares.get(name, 0.0) == pytest.approx(ms / duration, abs=0.03), (name, shares)


def test_outline_links_lead_to_turns_and_failed_steps(browser, page):
    browser.open_file(page)
    turns, stopped = browser.find_elements(".outline details")
    assert [each.text.split("\n")[0] for each in (turns, stopped)] == [
        "2 turns",
        "3 failed or denied",
    ]
    assert "Thanks! Now write a changelog entry." in turns.text and "31.5 s" in turns.text
    assert "git push" in stopped.text and "make lint" in stopped.text and "429" in stopped.text
    for anchor in browser.find_elements(".outline a"):
        browser.run_script("scrollTo(0, 0)")
        anchor.click()
        step_id = anchor.get_attribute("href").partition("#")[2]
        assert browser.find_element(".target").get_attribute("id") == step_id
        browser.wait_until(lambda step_id=step_id: in_view(browser, step_id))


def test_page_shows_no_json_no_unknown_and_no_null(browser, tmp_path):
    todos = [
        {"content": "Measure", "status": "completed"},
        {"content": "Mend", "status": "pending"},
    ]
    script = SessionBuilder().add_prompt("x").add_init(model="unknown")
    script.add_tool_result(script.add_call("TodoWrite", {"todos": todos}), "ok")
    script.add_tool_result(
        script.add_call("mcp__db__find", {"where": {"age": {"over": 3}}, "sort": ["name", "age"]}),
        "none",
    )
    script.add_line("rate_limit_event", rate_limit_info={"status": "rejected", "resetsAt": 5})
    script.add_note("repair", repair="not_json", line=4).add_line(
        "system", subtype="odd_news", facts={"a": [1, {"b": None}]}
    )
    browser.open_file(
        write_page(tmp_path, script.add_result("done").build_recording(vendor_version=None))
    )
    browser.click("#unfold")
    body_text = browser.find_element("body").text
    assert not set('{}"') & set(body_text), body_text
    assert "unknown" not in body_text.lower() and "null" not in body_text
    for text in (
        "☑ Measure\n☐ Mend",
        "age:\n  over: 3",
        "rate limit: rejected",
        "repaired: not json",
    ):
        assert text in body_text, text


def test_link_to_a_step_opens_that_step_expanded(browser, page):
    browser.open_file(page, "#step-4")
    assert browser.find_element(".target").get_attribute("id") == "step-4"
    assert browser.find_element("#step-3 details").get_attribute("open") is None
    browser.run_script("location.hash = '#step-3'")
    browser.wait_until(lambda: browser.find_element(".target").get_attribute("id") == "step-3")
    assert browser.find_element("#step-3 details").get_attribute("open")
    browser.wait_until(lambda: in_view(browser, "step-3"))


@pytest.mark.parametrize("address", ["#step-999", "#step-x", "#%3Cscript%3E", "#top'\"><b>"])
def test_link_to_a_missing_step_is_ignored(browser, page, address):
    browser.open_file(page, address)
    assert browser.find_elements(".target") == []
    assert len(list_visible_steps(browser)) == 25


def test_click_on_the_time_of_a_step_copies_its_link(browser, page):
    browser.open_file(page)
    for permission in ("clipboardReadWrite", "clipboardSanitizedWrite"):
        browser.call_devtools("Browser.grantPermissions", permissions=[permission])
    browser.run_script("navigator.clipboard.writeText = async (text) => { window.copied = text; }")
    browser.run_script("document.getElementById('step-5').scrollIntoView({block: 'center'})")
    browser.click("#step-5 .when")
    assert browser.run_script("return window.copied") == f"{page.as_uri()}#step-5"
    assert browser.run_script("return location.hash") == "#step-5"
    browser.wait_until(
        lambda: (
            browser.run_script("return document.getElementById('said').textContent")
            == "Link copied"
        )
    )


# -- the replay ------------------------------------------------------------------------------------


def test_replay_shows_steps_gradually_and_ends_with_all_steps(browser, page):
    browser.open_file(page)
    browser.set_slider("#speed", 6)
    assert browser.find_element("#rate").text == "16×"
    browser.click("#play")
    assert len(list_visible_steps(browser)) < 25
    assert browser.find_element("#play").get_attribute("aria-label") == "Pause the replay"
    assert "Waits over 2 s are shortened" in browser.find_element("#gaps").text
    browser.wait_until(lambda: len(list_visible_steps(browser)) == 25)
    browser.wait_until(
        lambda: browser.find_element("#play").get_attribute("aria-label") == "Play the session"
    )
    assert not browser.find_element("#gaps").is_displayed()
    assert browser.find_elements(".going, .growing") == []


def test_pause_stops_the_replay_clock_and_escape_shows_all_steps(browser, page):
    browser.open_file(page)
    browser.set_slider("#speed", 0)
    browser.click("#play")
    browser.click("#play")
    assert browser.find_element("#play").get_attribute("aria-label") == "Play the session"
    before = (browser.find_element("#clock").text, list_visible_steps(browser))
    assert len(before[1]) < 25
    browser.run_script(
        "return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"
    )
    assert (browser.find_element("#clock").text, list_visible_steps(browser)) == before
    browser.press_keys("\ue00c")
    assert len(list_visible_steps(browser)) == 25


def test_replay_position_shows_partial_text_and_running_calls(browser, page):
    browser.open_file(page)
    text_step = next(
        step for step in browser.find_elements(".step.text") if "query per row" in step.text
    )
    step_id, text = text_step.get_attribute("id"), text_step.text
    started_at = browser.run_script(
        "return numbered.get(Number(arguments[0])).step.at", step_id.removeprefix("step-")
    )
    browser.set_slider(
        "#position", browser.run_script("return playedAt(arguments[0] + 1500)", started_at)
    )
    part = browser.find_element(f"#{step_id} .body").get_attribute("textContent")
    assert 10 < len(part) < len(text) / 2
    assert browser.find_element("#clock").text[:4] in ("0:28", "0:29")
    browser.set_slider("#position", browser.run_script("return playedAt(3100)"))
    running_steps = browser.find_elements(".step.going")
    assert [step.find_element("css selector", ".name").text for step in running_steps] == [
        "Read",
        "Grep",
    ]
    assert not running_steps[0].find_element("css selector", ".took").is_displayed()
    assert step_id not in list_visible_steps(browser)
    browser.set_slider("#position", float(browser.find_element("#position").get_attribute("max")))
    assert browser.find_element(f"#{step_id}").text == text
    assert browser.find_elements(".going, .growing") == []


def test_replay_clock_advances_in_proportion_to_the_speed(browser, page):
    """The test feeds frames to the clock of the replay, so no real time is measured."""
    browser.open_file(page)
    ran = []
    for speed in (2, 4):
        browser.set_slider("#position", 0)
        browser.set_slider("#speed", speed)
        ran.append(
            browser.run_script(
                "replay.playing = true; replay.last = 0; frame(200); const at = replay.at; pause(); return at"
            )
        )
    assert ran[1] == pytest.approx(4 * ran[0])
    browser.press_keys("\ue00c")


# -- phone, dark -----------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_session_page_fits_the_screen_width(browser, page, size):
    browser.open_file(page, size=size)
    browser.click("#unfold")
    search(browser, "author")
    width = browser.run_script(
        "return [document.documentElement.scrollWidth, document.body.scrollWidth]"
    )
    assert max(width) <= size[0]
    wide = browser.run_script(
        "return [...document.querySelectorAll('.bar *, .player *, summary, header *')].filter(n => n.offsetParent && "
        "n.getBoundingClientRect().right > innerWidth + 1).map(n => n.outerHTML.slice(0, 80))"
    )
    assert wide == []


@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_statistics_page_fits_the_screen_and_matches_the_session_style(
    browser, page, tmp_path, size
):
    (tmp_path / "run.cast").write_bytes(build_full_session().build_recording())
    statistics = tmp_path / "stats.html"
    statistics.write_text(stats_page(*collect_run_statistics([str(tmp_path)])), encoding="utf-8")
    browser.open_file(statistics, size=size, dark=True)
    cells = browser.find_elements("td[data-head], td:first-child, h2, .totals dd")
    assert len(cells) > 50
    for cell in cells:
        assert (
            cell.is_displayed()
            and cell.rect["x"] + cell.rect["width"] <= size[0]
            and cell.rect["height"] < 80
        )
    assert (
        max(
            browser.run_script(
                "return [document.documentElement.scrollWidth, document.body.scrollWidth]"
            )
        )
        <= size[0]
    )
    if size == PHONE:
        contents = browser.run_script(
            "return [...document.querySelectorAll('td')].map(n => getComputedStyle(n, '::before').content)"
        )
        assert {'"input"', '"cache read"', '"p95"'} <= set(contents)
    look = "const s = getComputedStyle(document.documentElement); return [s.backgroundColor, s.color, s.fontFamily]"
    of_the_statistics = browser.run_script(look)
    browser.open_file(page, size=size, dark=True)
    assert browser.run_script(look) == of_the_statistics


def test_controls_have_an_accessible_name_and_are_reachable_with_tab(browser, page):
    browser.open_file(page)
    for control in browser.find_elements("button, input, summary, [role=slider]"):
        # An element far from the screen gets its accessible name when it comes near. Until then the
        # test reads its text.
        name = control.accessible_name or control.get_attribute("textContent").strip()
        assert name or not control.is_displayed(), control.get_attribute("outerHTML")
    reached = set()
    for _ in range(12):
        browser.press_keys("\ue004")
        reached.add(
            browser.run_script(
                "return document.activeElement.id || document.activeElement.className"
            )
        )
    assert {"skip", "search", "unfold", "fold", "theme", "strip"} <= reached


def brightness(picture: Any) -> float:
    return sum(picture.resize((1, 1)).getpixel((0, 0))) / 3


def test_theme_follows_the_system_until_toggled(browser, page):
    browser.open_file(page, dark=True)
    assert brightness(browser.take_picture()) < 90
    browser.click("#theme")
    assert brightness(browser.take_picture()) > 200
    browser.click("#theme")
    assert brightness(browser.take_picture()) < 90
    browser.open_file(page)
    assert brightness(browser.take_picture()) > 200


LOOKS = {
    "desktop": (DESKTOP, False, ""),
    "desktop-dark": (DESKTOP, True, ""),
    "phone": (PHONE, False, ""),
    "phone-dark": (PHONE, True, ""),
    "change": (DESKTOP, False, "#step-11"),
}


@pytest.mark.parametrize("name", LOOKS)
def test_page_matches_the_stored_screenshot(browser, page, name):
    size, dark, address = LOOKS[name]
    browser.open_file(page, address, size=size, dark=dark)
    characters = browser.run_script(
        "return [...new Set(document.body.innerText + document.body.textContent)].join('')"
    )
    assert browser.driver.execute_async_script(USE_FONT, encode_font(characters), FAMILY)
    stored = PICTURES / f"{name}.png"
    if not stored.exists():  # deleted by a person who will look at the new picture
        stored.parent.mkdir(exist_ok=True)
        browser.take_picture().resize(GRID).save(stored)
        pytest.fail(f"{stored.name} was not there: look at the new one, and keep it")
    from PIL import Image

    with Image.open(stored) as image:
        expected = image.convert("RGB").tobytes()

    def distance() -> float:
        browser.run_script(SCROLL_TO_TARGET)
        pairs = zip(browser.take_picture().resize(GRID).tobytes(), expected, strict=True)
        return sum(abs(actual - other) for actual, other in pairs) / (3 * GRID[0] * GRID[1])

    # Steps outside the screen have an estimated height, so on a busy machine the page may scroll to
    # another position.
    wait_until(lambda: distance() < TOLERANCE, DRAWN_SECONDS)
    assert distance() < TOLERANCE


# -- forbidden behavior of a page ------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", [*HOSTILE, "<svg onload=alert(1)>", "[x](data:text/html,<script>alert(1)</script>)"]
)
def test_html_in_session_text_is_rendered_as_text(browser, tmp_path, text):
    page = write_page(tmp_path, hostile(text))
    browser.open_file(page)
    browser.run_script("window.alert = () => { throw new Error('alert'); }")
    browser.click("#unfold")
    browser.set_slider("#position", 0)
    browser.set_slider("#position", float(browser.find_element("#position").get_attribute("max")))
    assert (
        browser.find_elements(
            "main img, main script, main svg, main iframe, main style, main link, main [onerror]"
        )
        == []
    )
    assert len(browser.find_elements("script")) == 2
    for anchor in browser.find_elements("main a:not(.when)"):
        assert anchor.get_attribute("href").startswith(("https://", "http://"))
    first = text.split("\x1b")[0].split("\u2028")[0]
    assert first in browser.run_script(
        "return document.querySelector('.step.prompt .said').textContent"
    )


MARKDOWN = [
    "[" * 20_000,
    "*" * 20_000 + "x",
    "`" * 9_999 + "x" + "`" * 9_998,
    "> " * 10_000 + "deep",
    "- " * 10_000 + "deep",
    "|" * 10_000 + "\n" + "|-" * 5_000,
    "![" * 10_000 + "](https://e.example)" * 100,
    " " * 20_000 + "x",
    "**a _b_ " * 2_500,
    "https://" * 2_500,
    "1. a\n" * 4_000,
    "<" * 20_000,
    "```\n" * 4_001,
]


@pytest.mark.parametrize("text", MARKDOWN, ids=lambda text: text[:4])
def test_unterminated_markdown_is_rendered_within_the_load_timeout(browser, tmp_path, text):
    """With quadratic time, a text of 20,000 characters would not load within the timeout."""
    page = write_page(
        tmp_path,
        SessionBuilder()
        .add_prompt("x")
        .add_init()
        .add_text(text)
        .add_result("x")
        .build_recording(),
    )
    browser.open_file(page)
    assert browser.find_element(".step.text .body").get_attribute("textContent").strip() or set(
        text
    ) <= set("`\n> -|")


def test_content_security_policy_blocks_injected_scripts_and_styles(browser, page):
    """The second line of defence: the page's security policy, in case a text becomes an element."""
    browser.open_file(page)
    ran = browser.run_script("""
        for (const [tag, words] of [["script", "window.ran = true"], ["style", "h1 { color: rgb(1, 2, 3) }"]]) {
          const node = document.createElement(tag);
          node.textContent = words;
          document.body.append(node);
        }
        const image = new Image();
        image.setAttribute("onerror", "window.ran = true");
        image.src = "https://example.org/pixel.png";
        document.body.append(image);
        return [window.ran, getComputedStyle(document.querySelector("h1")).color];
    """)
    assert ran[0] is None
    assert ran[1] != "rgb(1, 2, 3)"
    fetched = browser.driver.execute_async_script(
        "fetch('https://example.org/').then(() => arguments[0]('yes'), () => arguments[0]('no'))"
    )
    assert fetched == "no"
    forbidden = browser.list_console_messages()
    assert len([line for line in forbidden if "Content Security Policy" in line]) >= 4, forbidden
    browser.clear_logs()  # the blocked attempts
