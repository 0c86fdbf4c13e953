"""The appearance of the page of background sessions: contrast, sizes, keyboard use, hostile text,
long sessions.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import page_scenes as scenes
import pytest
from browser import DESKTOP, Browser
from gateway_harness import StandIn, StandIns, Web
from session_page import ENTER, ESCAPE, SMALL, TAB, Page, build_text_message

from shim.bridge.gateway.server import GatewayEndpoint
from shim.bridge.gateway.tokens import GatewayTokenFile
from tests.story.export.test_export_html import HOSTILE

pytestmark = pytest.mark.e2e
full = pytest.mark.full  # one or two of each kind always run
LEAST_CONTRAST = 4.5
LEAST_TARGET = 44  # CSS pixels of a touch target
MILLION = 1_000_000


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    browser = Browser("127.0.0.1")
    yield browser
    browser.close()


@pytest.fixture
def page_factory(browser, tmp_path):
    """Return a function that opens a page at a gateway with these hosts."""
    webs: list[Web] = []

    def make(*hosts: StandIn) -> Page:
        folder = tmp_path / str(len(webs))
        webs.append(
            Web(
                StandIns(*hosts),
                GatewayTokenFile({"SHIM_STATE": str(folder)}),
                GatewayEndpoint(port=0),
            )
        )
        return Page(browser, webs[-1])

    yield make
    assert all(Page(browser, web).list_errors() == [] for web in webs)
    browser.driver.get("about:blank")
    browser.driver.delete_all_cookies()
    for web in webs:
        web.close()


def visit_views(page: Page) -> Iterator[str]:
    """Open each view of the page in turn. Yield its name."""
    hosts = [
        scenes.build_asking_host(),
        scenes.build_choosing_host(),
        scenes.build_editing_host(),
        scenes.build_working_host(),
    ]
    for host in hosts:
        page.web.hosts.hosts[host.metadata["session"]] = host
    yield "list"
    for name, host in zip(("question", "choice", "edit", "live"), hosts, strict=True):
        page.open_session(host)
        if name != "live":
            page.wait_for_questions()
        page.browser.run_script(
            "for (const d of document.querySelectorAll('#steps details')) d.open = true"
        )
        yield name
    page.browser.run_script(
        "find('drives').hidden = false; showSendError('It did not go out.'); setConnected(false)"
    )
    yield "troubled"
    page.browser.run_script("setConnected(true); showKeys()")
    yield "keys"
    page.browser.run_script("find('keys').close(); location.hash = 'new'")
    page.browser.wait_until(lambda: page.read_view() == "begin")
    yield "begin"
    page.browser.run_script("location.hash = 's/ffffffff'")
    page.browser.wait_until(lambda: page.read_view() == "wrong")
    yield "error"
    page.browser.run_script("askForToken('This token is not good.')")
    yield "login"


@pytest.mark.parametrize(
    ("size", "dark"),
    [
        pytest.param(DESKTOP, False, id="desktop-light"),
        pytest.param(SMALL, True, id="phone-dark"),
        pytest.param(DESKTOP, True, id="desktop-dark", marks=full),
        pytest.param(SMALL, False, id="phone-light", marks=full),
    ],
)
def test_text_has_sufficient_contrast_and_no_view_overflows_the_window(
    page_factory, browser, size, dark
):
    page = page_factory(*scenes.build_other_hosts())
    page.open_page(size=size, dark=dark)
    text_count = 0
    for view in visit_views(page):
        contrasts = page.measure_contrasts()
        text_count += len(contrasts)
        assert [contrast for contrast in contrasts if contrast[0] < LEAST_CONTRAST] == [], view
        wide = browser.run_script("return [document.documentElement.scrollWidth, innerWidth]")
        assert wide[0] <= wide[1], view
    assert text_count > 300


def test_touch_targets_are_large_enough_on_a_phone(page_factory, browser):
    page = page_factory(*scenes.build_other_hosts())
    page.open_page(size=SMALL)
    for view in visit_views(page):
        small = [target for target in page.measure_targets() if min(target[:2]) < LEAST_TARGET]
        assert small == [], view


@pytest.mark.parametrize(
    "size",
    [
        pytest.param((360, 780), id="small-phone"),
        SMALL,
        pytest.param((430, 932), marks=full),
        DESKTOP,
    ],
    ids=str,
)
def test_names_and_controls_do_not_overlap(page_factory, browser, size):
    page = page_factory(*scenes.build_other_hosts())
    page.open_page(size=size)
    assert {
        view: overlaps for view in visit_views(page) if (overlaps := page.find_overlaps())
    } == {}


def test_phone_layout_shows_either_the_list_or_a_session(page_factory, browser):
    host = scenes.build_working_host()
    page = page_factory(host)
    page.open_page(size=SMALL)
    browser.wait_until(lambda: browser.find_elements("#list a"))
    assert not browser.find_element("#main").is_displayed()
    browser.retry_when_stale(lambda: browser.find_elements("#list a")[0].click())
    page.wait_until_synced(host)
    assert (
        not browser.find_element("#side").is_displayed()
        and browser.find_element("#text").is_displayed()
    )
    browser.click(".back")
    browser.wait_until(lambda: browser.find_element("#side").is_displayed())


# -- keyboard only ---------------------------------------------------------------------------------


def stops(page: Page, most: int = 60) -> list[str]:
    """Return the elements at which Tab stops, until it returns to the first."""
    element_ids: list[str] = []
    page.browser.run_script("document.activeElement.blur(); window.focus()")
    for _ in range(most):
        page.browser.press_keys(TAB)
        at = page.describe_focus()
        if at == "BODY" or (element_ids and at == element_ids[0] and len(element_ids) > 3):
            break
        element_ids.append(at)
    return element_ids


def test_tab_key_moves_focus_in_page_order_with_a_visible_outline(page_factory, browser):
    host = scenes.build_asking_host()
    page = page_factory(host)
    page.open_page()
    page.open_session(host)
    page.wait_for_questions()
    browser.run_script("find('skip').focus()")
    order = []
    for _ in range(80):
        order.append(page.describe_focus())
        outlined = browser.run_script(
            "const s = getComputedStyle(document.activeElement);"
            "return s.outlineStyle !== 'none' && parseFloat(s.outlineWidth) >= 1"
        )
        assert outlined, page.describe_focus()
        if order[-1] == "send":
            break
        browser.press_keys(TAB)
    places = [
        order.index(name)
        for name in ("skip", "new", "filter", "stop", "scroll", "text", "mode", "interrupt", "send")
    ]
    assert places == sorted(places)
    assert order.index("scroll") < order.index("strong") < order.index("text")


def test_session_can_be_opened_and_answered_with_the_keyboard(page_factory, browser):
    host = scenes.build_asking_host()
    page = page_factory(host, *scenes.build_other_hosts())
    page.open_page()
    browser.wait_until(lambda: browser.find_elements("#list a"))
    browser.press_keys("s")
    browser.press_keys(ENTER)
    page.wait_until_synced(host)
    browser.wait_until(lambda: "asking-card" in page.describe_focus())
    page.wait_for_questions()
    browser.press_keys(TAB, TAB)
    browser.wait_until(lambda: "Allow" in browser.driver.switch_to.active_element.text)
    browser.press_keys(ENTER)
    browser.wait_until(lambda: not browser.find_elements(".asking-card"))
    browser.wait_until(lambda: page.describe_focus() == "text")
    browser.press_keys("and now the docs", ENTER)
    browser.wait_until(
        lambda: [message for message in host.received if message["kind"] == "message"]
    )
    browser.press_keys(ESCAPE)
    browser.run_script("find('scroll').focus()")
    browser.press_keys("?")
    browser.wait_until(lambda: browser.find_elements("dialog[open]"))
    browser.press_keys(ESCAPE)
    browser.wait_until(lambda: not browser.find_elements("dialog[open]"))


@full
def test_skip_link_moves_focus_to_the_session(page_factory, browser):
    host = scenes.build_working_host()
    page = page_factory(host)
    page.open_page()
    page.open_session(host)
    browser.run_script("find('skip').focus()")
    assert browser.find_element("#skip").size["width"] > 50
    browser.press_keys(ENTER)
    assert page.describe_focus() == "scroll"


@full
def test_single_key_shortcuts_can_be_disabled(page_factory, browser):
    page = page_factory(*scenes.build_other_hosts())
    page.open_page()
    browser.press_keys("?")
    browser.wait_until(lambda: browser.find_elements("dialog[open]"))
    browser.click("#single")
    browser.press_keys(ESCAPE)
    browser.run_script("document.activeElement.blur()")
    browser.press_keys("n")
    assert page.read_view() == "none"
    browser.run_script("localStorage.clear()")


# -- hostile text ----------------------------------------------------------------------------------


def hostile(hostile_text: str) -> StandIn:
    """Return a session with this text in every field."""
    fields = dict.fromkeys(("name", "detail", "needs", "waitingFor", "vendor", "cwd"), hostile_text)
    host = StandIn(scenes.build_session_id(40), **fields, status="waiting", driver=hostile_text)
    host.driver = hostile_text
    options = [{"label": hostile_text, "description": hostile_text}]
    host.add_line(type="user", isReplay=True, message={"role": "user", "content": hostile_text})
    host.add_line(
        type="system",
        subtype="init",
        model=hostile_text,
        cwd=hostile_text,
        session_id="x",
        tools=[hostile_text],
    )
    host.add_line(**build_text_message(hostile_text))
    use = {
        "type": "tool_use",
        "id": "t",
        "name": hostile_text,
        "input": {hostile_text: hostile_text, "command": hostile_text},
    }
    host.add_line(type="assistant", message={"id": "a", "role": "assistant", "content": [use]})
    host.add_line(
        type="user",
        message={
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t",
                    "content": hostile_text,
                    "is_error": True,
                }
            ]
        },
    )
    host.add_line(type="system", subtype=hostile_text, facts=hostile_text)
    host.add_line(
        type="result", subtype="error", is_error=True, result=hostile_text, errors=[hostile_text]
    )
    host.add_prompt(
        "q1",
        tool_name=hostile_text,
        input={hostile_text: hostile_text},
        decision_reason=hostile_text,
        blocked_path=hostile_text,
    )
    host.add_prompt(
        "q2",
        tool_name="AskUserQuestion",
        input={"questions": [{"question": hostile_text, "options": options}]},
    )
    return host


PARTS = "script, iframe, img, object, embed, form, style, link, base, meta, svg"
SHAPE = f"return [...document.querySelectorAll('{PARTS}')].map(n => n.tagName).sort().join()"


@pytest.mark.parametrize(
    "hostile_text",
    [*HOSTILE[:2], *(pytest.param(hostile_text, marks=full) for hostile_text in HOSTILE[2:])],
)
def test_hostile_text_is_not_interpreted_as_markup(page_factory, browser, hostile_text):
    shapes = []
    for field_text in ("calm", hostile_text):
        host = hostile(field_text)
        page = page_factory(host)
        page.open_page()
        page.open_session(host)
        page.wait_for_questions(2)
        browser.run_script("for (const d of document.querySelectorAll('details')) d.open = true")
        shapes.append(browser.run_script(SHAPE))
        browser.driver.delete_all_cookies()
    assert shapes[0] == shapes[1]
    assert not browser.run_script("return window.hacked || document.title.includes('hacked')")
    drawn = browser.run_script("return document.body.innerText + document.title")
    assert not any(
        0x202A <= ord(letter) <= 0x202E or 0x2066 <= ord(letter) <= 0x2069 for letter in drawn
    )
    assert browser.list_console_messages() == []


def test_million_character_line_and_tool_input_are_rendered(page_factory, browser):
    host = scenes.build_working_host()
    host.add_line(**build_text_message("x" * MILLION))
    host.add_prompt("q1", input={"command": "y" * MILLION})
    page = page_factory(host)
    page.open_page()
    page.open_session(host)
    page.wait_for_questions()
    script = "return document.querySelector('.asking-card .input').textContent.length"
    assert browser.run_script(script) >= MILLION  # nothing in a permission request is truncated
    browser.click(".choose .strong")
    browser.wait_until(lambda: not browser.find_elements(".asking-card"))


# -- long sessions ---------------------------------------------------------------------------------


def test_long_session_renders_its_end_and_loads_earlier_steps(page_factory, browser):
    host = scenes.build_long_host(2500)  # 10,000 lines
    page = page_factory(host)
    page.open_page()
    page.open_session(host)
    drawn = len(page.list_steps())
    assert 100 <= drawn <= 250
    assert "Read." in page.list_steps()[-1]
    before = browser.run_script("return currentSession.order[currentSession.from].step.number")
    browser.run_script("find('scroll').scrollTop = 0")
    browser.click("#earlier")
    browser.wait_until(lambda: len(page.list_steps()) > drawn)
    assert (
        browser.run_script("return currentSession.order[currentSession.from].step.number") < before
    )
    for _ in range(8):
        if browser.run_script("return currentSession.from") == 0:
            break
        browser.run_script("showEarlier()")
    remaining = browser.run_script("return currentSession.left")
    assert remaining > 0
    page.send_partial_event(
        host, type="content_block_delta", delta={"type": "text_delta", "text": "said meanwhile"}
    )
    page.wait_for_text("said meanwhile", "#live")
    browser.run_script("showEarlier()")
    browser.wait_until(
        lambda: browser.run_script("return currentSession.synced && currentSession.left === 0")
    )
    assert page.read_text("#live") == ""  # the host replays the open block
    numbers = browser.run_script("return currentSession.order.map(item => item.step.number)")
    assert numbers == sorted(set(numbers)) and numbers[0] <= 2 and len(numbers) > 7000


@full
def test_rendered_steps_of_a_long_running_session_are_limited(page_factory, browser):
    host = scenes.build_working_host()
    page = page_factory(host)
    page.open_page()
    page.open_session(host)
    for number in range(1500):
        host.lines.append(
            (scenes.NOW + number, json.dumps(build_text_message(f"Line {number}")).encode())
        )
    page.web.call_in_thread(
        lambda: [host.broadcast_frame(frame) for frame in build_line_frames(host, 1500)]
    )
    page.wait_for_text("Line 1499", "#steps")
    assert len(page.list_steps()) <= 600


def build_line_frames(host: StandIn, last: int) -> Iterator[bytes]:
    """Yield the frames of the last lines of a host."""
    from shim.core.bridge.frames import encode_line_frame

    for number in range(len(host.lines) - last, len(host.lines)):
        yield encode_line_frame(number + 1, 1, *host.lines[number])
