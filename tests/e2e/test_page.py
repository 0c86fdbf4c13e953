"""The page of living sessions in a real Chromium, at a real gateway, over hosts that stand in for
real ones.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import page_scenes as scenes
import pytest
from browser import Browser
from page_driving import ENTER, SHIFT_ENTER, Page, build_text_message
from web import StandIns, Web

from shim.bridge.gateway.server import GatewayEndpoint
from shim.bridge.gateway.tokens import TokenFile
from shim.core.bridge.frames import encode_frame

pytestmark = pytest.mark.e2e
full = pytest.mark.full  # of each kind one or two are tried always


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    browser = Browser("127.0.0.1")
    yield browser
    browser.close()


@pytest.fixture
def hosts():
    """One that asks, one that works, and others."""
    return [scenes.build_asking_host(), scenes.build_working_host(), *scenes.build_other_hosts()]


@pytest.fixture
def page(browser, hosts, tmp_path) -> Iterator[Page]:
    web = Web(
        StandIns(*hosts),
        TokenFile({"SHIM_STATE": str(tmp_path / "state")}),
        GatewayEndpoint(port=0),
    )
    page = Page(browser, web)
    yield page
    assert page.list_errors() == []
    browser.set_offline(False)
    browser.run_script("sessionStorage.clear(); localStorage.clear()")
    browser.driver.get("about:blank")
    browser.driver.delete_all_cookies()
    web.close()


@pytest.fixture
def waiting_host(page, hosts):
    page.open_page()
    page.open_session(hosts[0])
    page.wait_for_questions()
    return hosts[0]


@pytest.fixture
def working_host(page, hosts):
    page.open_page()
    page.open_session(hosts[1])
    return hosts[1]


def list_received_frames(host, kind):
    return [payload for payload in host.received if payload["kind"] == kind]


# -- the way in ------------------------------------------------------------------------------------


def test_a_token_leaves_the_address_and_the_history_and_no_script_can_read_it(page, browser):
    page.open_page()
    token = page.web.tokens.load_tokens().drive
    assert browser.driver.current_url == page.base
    storage_text = browser.run_script(
        "return document.cookie + JSON.stringify(localStorage) + JSON.stringify(sessionStorage)"
    )
    assert token not in storage_text and not browser.run_script("return document.cookie")
    browser.driver.back()
    browser.driver.forward()
    assert token not in browser.driver.current_url
    assert all(token not in url for url in browser.list_requested_urls())
    assert browser.list_console_messages() == []


def test_without_a_token_the_page_asks_for_one_and_says_when_it_is_wrong(page, browser):
    browser.open_url(page.base)
    browser.wait_until(lambda: page.read_view() == "login")
    assert page.describe_focus() == "token"
    browser.press_keys("not-a-token", ENTER)
    page.wait_for_text("This token is not good", ".wrong")
    browser.wait_until(lambda: page.describe_focus() == "token")
    browser.press_keys(page.web.tokens.load_tokens().drive, ENTER)
    browser.wait_until(lambda: page.read_view() == "none")
    assert browser.find_elements("#list li")


def test_who_logged_out_while_the_server_was_away_is_out(page, browser):
    page.open_page()
    browser.set_offline(True)
    browser.click("#leave")
    browser.wait_until(lambda: page.read_view() == "login")
    browser.set_offline(False)
    browser.driver.refresh()
    browser.wait_until(lambda: page.read_view() in ("login", "none"))
    assert page.read_view() == "login"


@full
def test_an_address_of_a_session_is_kept_over_the_way_in(page, browser, hosts):
    browser.open_url(f"{page.base}#s/{hosts[1].metadata['id']}")
    browser.wait_until(lambda: page.read_view() == "login")
    browser.press_keys(page.web.tokens.load_tokens().drive, ENTER)
    page.wait_until_synced(hosts[1])


@pytest.mark.parametrize("way", ["token", "way-in"])
def test_a_token_alone_in_the_address_is_accepted_and_removed(page, browser, way):
    tokens = page.web.tokens.load_tokens()
    token = tokens.drive if way == "token" else tokens.create_login_code("drive", time.time())
    browser.open_url(f"{page.base}#{token}")
    browser.wait_until(lambda: page.read_view() == "none")
    assert token not in browser.run_script("return location.href")


@pytest.mark.parametrize(
    "address",
    [
        "#token={}%20",
        "#%23token%3D{}",
        "#/{}",
        "#{}%0A",
        "#x=1&token={}",
        "?token={}",
        "?a=b#token={}",
    ],
)
def test_a_token_in_another_form_of_address_is_accepted_and_removed(page, browser, address):
    token = page.web.tokens.load_tokens().drive
    browser.open_url(page.base + address.format(token))
    browser.wait_until(lambda: page.read_view() == "none")
    assert browser.run_script("return location.href") == page.base


def test_a_token_of_which_a_part_is_missing_does_not_stay_in_the_address(page, browser):
    token = page.web.tokens.load_tokens().drive[:-1]
    browser.open_url(f"{page.base}#{token}")
    page.wait_for_text("This token is not good", ".wrong")
    assert browser.run_script("return location.href") == page.base
    for _ in range(20):
        browser.run_script("return exchangeToken(arguments[0])", token)
    page.wait_for_text("This token is not good", ".wrong")
    browser.run_script("exchangeToken(arguments[0])", page.web.tokens.load_tokens().drive)
    browser.wait_until(lambda: page.read_view() == "none")


def test_an_address_with_an_invalid_escape_opens_no_session(page, browser):
    page.open_page()
    browser.run_script("location.hash = '#s/%'")
    page.wait_for_text("There is no such session")
    assert not [
        complaint for complaint in browser.list_console_messages() if "404" not in complaint
    ]


def test_a_page_restored_from_the_browsers_cache_reloads_the_session(page, browser, working_host):
    browser.run_script(
        "clearTimeout(list.timer); list.refreshing = true; currentSession.stream.rest()"
    )
    browser.wait_until(
        lambda: browser.run_script("return currentSession.stream.state === 'parked'")
    )
    browser.run_script(
        "list.refreshing = false; dispatchEvent(new PageTransitionEvent('pageshow', { persisted: true }))"
    )
    page.send_line(working_host, **build_text_message("said meanwhile"))
    page.wait_for_text("said meanwhile", "#steps")


def test_a_session_whose_question_timed_out_is_shown_as_needing_a_person(
    page, browser, working_host
):
    browser.run_script(
        "FRAME_HANDLERS.state({ state: 'blocked', status: 'idle', needs: 'nobody answered: Bash make deploy' })"
    )
    browser.wait_until(lambda: browser.find_element("#chip").text == "Needs you")
    assert "nobody answered" in browser.find_element("#chip").get_attribute("title")


def test_a_watcher_is_not_offered_to_stop_or_interrupt(page, browser, hosts):
    page.open_page("watch")
    page.open_session(hosts[1])
    assert not browser.find_element("#stop").is_displayed()
    assert not browser.find_element("#interrupt").is_displayed()


DIRECTION = "return getComputedStyle([...document.querySelectorAll(arguments[0])].at(-1)).direction"


def test_arabic_and_hebrew_run_from_right_to_left(page, browser, working_host):
    page.send_line(
        working_host,
        type="user",
        isReplay=True,
        message={"role": "user", "content": "اقرأ الملف README"},
    )
    page.send_line(
        working_host,
        type="assistant",
        message={"content": [{"type": "text", "text": "שלום\n\n- אחד\n- שתיים"}]},
    )
    browser.wait_until(lambda: browser.find_elements("#steps .prose ul"))
    for selector in ("#steps .prompt .said", "#steps .text p", "#steps .text ul"):
        assert browser.run_script(DIRECTION, selector) == "rtl", selector
    page.type_text("سؤال")
    assert browser.run_script(DIRECTION, "#text") == "rtl"
    assert browser.run_script(DIRECTION, "#name") == "ltr"
    table = "| שם | b |\n|---|---|\n| אחד | two |\n\n```\nשלום = 1\n```\n\n"
    table += "1. אחד\n\n   more\n\n2. two\n\n> ציטוט\n\n`./run.sh` מריץ הכול"
    page.send_line(
        working_host, type="assistant", message={"content": [{"type": "text", "text": table}]}
    )
    browser.wait_until(lambda: browser.find_elements("#steps .prose blockquote"))
    right = ("p:last-child", "tr th:first-child", "tr td:first-child", "ol", "blockquote")
    for selector in [f"#steps .prose {name}" for name in right]:
        assert browser.run_script(DIRECTION, selector) == "rtl", selector
    for selector in ("#steps .prose tr td:last-child", "#steps .prose pre code"):
        assert browser.run_script(DIRECTION, selector) == "ltr", selector


# What Safari reports for the Enter that accepts a composition: the composition has ended, and the
# key has the code 229.
SAFARI_ENTER = """
const box = document.getElementById("text");
box.dispatchEvent(new CompositionEvent("compositionend", { data: "日本" }));
const enter = new KeyboardEvent("keydown", { key: "Enter", keyCode: arguments[0], bubbles: true, cancelable: true });
return box.dispatchEvent(enter);
"""


def test_the_enter_that_ends_a_composition_sends_nothing(page, browser, working_host):
    page.type_text("日本")
    assert browser.run_script(SAFARI_ENTER, 229) is True
    assert browser.find_element("#text").get_attribute("value") == "日本"
    assert browser.run_script(SAFARI_ENTER, 13) is False
    browser.wait_until(lambda: browser.find_element("#text").get_attribute("value") == "")
    assert [
        frame["message"]["content"] for frame in working_host.received if frame["kind"] == "message"
    ] == ["日本"]


def test_a_token_that_may_watch_has_no_box_and_no_answers(page, browser, hosts):
    page.open_page("watch")
    page.open_session(hosts[0])
    page.wait_for_questions()
    assert not browser.find_element("#text").is_enabled()
    assert not browser.find_element("#new").is_displayed()
    assert browser.find_elements(".asking-card button") == []
    assert "pytest" in page.read_text(".asking-card")


# -- the list --------------------------------------------------------------------------------------


def test_what_waits_stands_first_with_what_it_waits_for(page, browser):
    page.open_page()
    groups = browser.retry_when_stale(
        lambda: [node.text.split("\n")[0] for node in browser.find_elements("#list section")]
    )
    assert groups == ["Waiting for you 1", "Working 2", "Idle 2", "Ended 3"]
    assert "approve Bash: python -m pytest" in page.read_text("#list section:first-child")
    assert browser.driver.title == "(1) Sessions"


@full
def test_the_list_follows_the_sessions_and_keeps_the_focus(page, browser, hosts):
    page.open_page()
    browser.run_script("document.querySelectorAll('#list a')[1].focus()")
    was = browser.run_script("return document.activeElement.dataset.id")
    hosts[0].metadata.update(status="idle", state="done", detail="Committed")
    page.wait_for_text("Committed", "#list")
    assert not browser.find_elements("#list section.asks")
    assert browser.run_script("return document.activeElement.dataset.id") == was


@full
def test_a_filter_finds_by_name_vendor_and_folder(page, browser):
    page.open_page()
    browser.press_keys("/")
    browser.press_keys("shop")
    assert len(browser.find_elements("#list li")) == 3
    browser.press_keys("nothing like it")
    assert "No session has" in page.read_text("#list")


# -- one session -----------------------------------------------------------------------------------


def test_text_grows_as_it_is_streamed_and_becomes_one_step(page, browser, working_host):
    before = len(page.list_steps())
    page.send_partial_event(
        working_host, type="content_block_start", content_block={"type": "text", "text": ""}
    )
    for fragment in ("One ", "**two**", " three"):
        page.send_partial_event(
            working_host, type="content_block_delta", delta={"type": "text_delta", "text": fragment}
        )
    page.wait_for_text("One **two** three", "#live")
    page.send_line(working_host, **build_text_message("One **two** three"))
    browser.wait_until(lambda: len(page.list_steps()) == before + 1)
    assert "One two three" in page.list_steps()[-1]
    browser.wait_until(lambda: page.read_text("#live") == "")


@full
def test_thinking_is_folded_while_it_goes_on_and_afterwards(page, browser, working_host):
    page.send_partial_event(
        working_host, type="content_block_start", content_block={"type": "thinking", "thinking": ""}
    )
    page.send_partial_event(
        working_host,
        type="content_block_delta",
        delta={"type": "thinking_delta", "thinking": "Let me see. " * 40},
    )
    page.wait_for_text("Thinking", "#live")
    assert browser.find_element("#live .step").size["height"] < 60
    block = {"type": "thinking", "thinking": "Let me see."}
    page.send_line(
        working_host, type="assistant", message={"id": "t", "role": "assistant", "content": [block]}
    )
    browser.wait_until(lambda: page.read_text("#live") == "")
    assert not browser.find_elements("#steps .thinking details[open]")


@full
def test_a_call_runs_until_its_result_comes_to_the_same_step(page, browser, working_host):
    block = {"type": "tool_use", "id": "toolu_x", "name": "Bash", "input": {"command": "make slow"}}
    page.send_line(
        working_host, type="assistant", message={"id": "c", "role": "assistant", "content": [block]}
    )
    browser.wait_until(lambda: browser.find_elements("#steps .call.going"))
    before = len(page.list_steps())
    result = {"type": "tool_result", "tool_use_id": "toolu_x", "content": "slow but sure"}
    page.send_line(working_host, type="user", message={"role": "user", "content": [result]})
    page.wait_for_text("slow but sure", "#steps")
    assert len(page.list_steps()) == before and not browser.find_elements("#steps .call.going")


def test_the_end_stays_in_sight_until_the_reader_goes_up(page, browser, working_host):
    at_end = "const s = find('scroll'); return s.scrollHeight - s.scrollTop - s.clientHeight < 5"
    for number in range(5):
        page.send_line(working_host, **build_text_message(f"Line {number}. " * 40))
    page.wait_for_text("Line 4", "#steps")
    browser.wait_until(lambda: browser.run_script(at_end))
    browser.run_script("find('scroll').scrollTop = 100")
    browser.wait_until(lambda: browser.run_script("return !currentSession.follow"))
    page.send_line(working_host, **build_text_message("More below."))
    page.wait_for_text("More below.", "#steps")
    assert browser.run_script("return find('scroll').scrollTop") == 100
    browser.click("#latest")
    browser.wait_until(lambda: browser.run_script(at_end))


def test_a_page_that_was_too_slow_keeps_its_steps_and_goes_on(page, browser, working_host):
    before = len(page.list_steps())
    page.send_partial_event(
        working_host, type="content_block_delta", delta={"type": "text_delta", "text": "half of it"}
    )
    page.wait_for_text("half of it", "#live")
    page.send_frame(
        working_host,
        encode_frame("gap", **{"from": len(working_host.lines) + 1, "to": 99, "reason": "slow"}),
    )
    browser.wait_until(lambda: page.read_text("#live") == "")
    page.send_line(working_host, **build_text_message("All of it."))
    browser.wait_until(lambda: len(page.list_steps()) == before + 1)


def test_a_page_that_comes_back_after_many_steps_shows_no_hole(page, browser, working_host):
    script = "if (list.refreshing) return false; clearTimeout(list.timer); return (list.refreshing = true)"
    # a look at the list would wake the stream before all is said
    browser.wait_until(lambda: browser.run_script(script))
    browser.run_script("currentSession.stream.rest()")
    browser.wait_until(
        lambda: browser.run_script("return currentSession.stream.state === 'parked'")
    )
    for number in range(700):
        page.send_line(working_host, **build_text_message(f"Line {number}"))
    browser.run_script("list.refreshing = false; resumePage()")
    page.wait_for_text("Line 699", "#steps")
    browser.wait_until(lambda: browser.run_script("return currentSession.synced"))
    numbers = browser.run_script("return currentSession.order.map(item => item.step.number)")
    assert numbers == list(range(numbers[0], numbers[-1] + 1)) and len(numbers) == 500
    assert browser.run_script("return currentSession.left") == numbers[0] - 1


def test_a_session_that_was_left_while_it_scrolled_is_no_fault(page, browser, working_host):
    browser.run_script(
        "const left = find('scroll'); showNoSession(); left.dispatchEvent(new Event('scroll'))"
    )
    assert page.list_errors() == []


def test_a_host_that_dies_when_all_it_said_was_seen_is_said_to_have_ended(
    page, browser, working_host
):
    page.send_line(working_host, **build_text_message("The last thing that it said."))
    page.wait_for_text("The last thing that it said.", "#steps")
    working_host.metadata |= {
        "alive": False,
        "state": "failed",
        "status": None,
        "detail": "its host died",
    }
    for client in list(working_host.clients):
        page.web.call_in_thread(client.close)
    page.wait_for_text("Failed", "#chip")
    assert (
        not browser.find_element("#stop").is_displayed()
        and not browser.find_element("#interrupt").is_displayed()
    )
    assert browser.find_element("#over").is_displayed()


@full
def test_a_session_that_is_not_there_is_said_to_be_gone(page, browser):
    page.open_page()
    browser.run_script("location.hash = 's/ffffffff'")
    page.wait_for_text("There is no such session", "main")


# -- questions -------------------------------------------------------------------------------------


def test_a_question_shows_its_whole_input_and_is_allowed(page, browser, waiting_host):
    assert scenes.COMMAND in page.read_text(".asking-card")
    browser.click(".asking-card .strong")
    browser.wait_until(lambda: not browser.find_elements(".asking-card"))
    (answer,) = list_received_frames(waiting_host, "answer")
    assert answer["question"] == "q1" and answer["decision"] == {"behavior": "allow"}
    page.wait_for_text("Bash: allowed by you", "#settled")


CLICK = """
const seen = new MutationObserver(() => {
  const allow = document.querySelector('.choose .strong');
  if (!allow) return;
  seen.disconnect();
  allow.click();
  window.clicked = true;
});
seen.observe(arguments[0], { childList: true, attributes: true, subtree: true });
"""  # on what allows, at the first change of an element after which it is there


def test_a_click_just_when_a_session_with_a_question_is_opened_answers_nothing(
    page, browser, hosts
):
    page.open_page()
    browser.run_script(CLICK, browser.find_element("body"))
    page.open_session(hosts[0])
    page.wait_for_questions()
    assert (
        browser.run_script("return window.clicked")
        and list_received_frames(hosts[0], "answer") == []
    )
    browser.click(".asking-card .strong")
    browser.wait_until(lambda: list_received_frames(hosts[0], "answer"))


def test_a_click_just_when_a_question_takes_the_place_of_another_answers_nothing(
    page, browser, waiting_host
):
    page.web.call_in_thread(waiting_host.add_prompt, "q2", input={"command": "make deploy"})
    page.wait_for_questions(2)
    browser.run_script(CLICK, browser.find_element("#asked"))
    page.web.call_in_thread(waiting_host.questions.pop, "q1")
    page.send_frame(waiting_host, encode_frame("settled", question="q1", by="terminal", how="deny"))
    page.wait_for_questions()
    assert (
        browser.run_script("return window.clicked")
        and list_received_frames(waiting_host, "answer") == []
    )


@full
def test_a_click_just_when_the_questions_move_down_answers_nothing(page, browser, waiting_host):
    """The line below them that says who settled another one goes after a while."""
    page.web.call_in_thread(waiting_host.add_prompt, "q2", input={"command": "make deploy"})
    page.wait_for_questions(2)
    page.web.call_in_thread(waiting_host.questions.pop, "q1")
    page.send_frame(waiting_host, encode_frame("settled", question="q1", by="terminal", how="deny"))
    page.wait_for_questions()
    browser.run_script(CLICK, browser.find_element("#settled"))
    browser.wait_until(lambda: browser.run_script("return window.clicked"))
    page.wait_for_questions()
    assert list_received_frames(waiting_host, "answer") == []


EDIT = {
    "file_path": "/r/a",
    "old_string": "x",
    "new_string": "evil",
    "edits": [{"old_string": "a", "new_string": "b"}],
}


@pytest.mark.parametrize(
    ("tool", "tool_input", "expected"),
    [
        ("Edit", EDIT, ("new_string", "evil", "+b")),
        (f"mcp__files__{'a' * 100}_evil", {"path": "/r"}, (f"{'a' * 100}_evil", "path", "/r")),
    ],
    ids=["edit", "name"],
)
def test_nothing_of_a_call_is_left_out_of_its_question(page, hosts, tool, tool_input, expected):
    page.open_page()
    page.open_session(hosts[1])
    page.web.call_in_thread(
        hosts[1].add_prompt, "q9", tool_name=tool, input=tool_input, tool_use_id="t"
    )
    page.wait_for_questions()
    assert all(fragment in page.read_text(".asking-card") for fragment in expected)


@full
def test_always_gives_exactly_the_rule_that_it_says(page, browser, waiting_host):
    assert f"Bash({scenes.COMMAND})" in page.read_text(".asking-card .hint")
    browser.click(".asking-card .always")
    browser.wait_until(lambda: list_received_frames(waiting_host, "answer"))
    (update,) = list_received_frames(waiting_host, "answer")[0]["decision"]["updatedPermissions"]
    assert update["rules"] == [{"toolName": "Bash", "ruleContent": scenes.COMMAND}]


def test_a_denial_may_have_a_message(page, browser, waiting_host):
    browser.click(".asking-card .plain")
    browser.press_keys("not on a Friday", ENTER)
    browser.wait_until(lambda: list_received_frames(waiting_host, "answer"))
    assert list_received_frames(waiting_host, "answer")[0]["decision"] == {
        "behavior": "deny",
        "message": "not on a Friday",
    }


def test_who_was_first_is_said_to_the_others(page, browser, waiting_host):
    page.web.call_in_thread(waiting_host.questions.clear)
    page.send_frame(waiting_host, encode_frame("settled", question="q1", by="terminal", how="deny"))
    browser.wait_until(lambda: not browser.find_elements(".asking-card"))
    page.wait_for_text("Bash: denied by terminal", "#settled")


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("shim bridge answer 3e907f1f", "Bash: allowed from a terminal, by shim bridge answer"),
        pytest.param("terminal 4711", "Bash: allowed from a terminal", marks=full),
    ],
)
def test_who_was_first_is_said_in_a_persons_words(page, browser, waiting_host, by, expected):
    page.send_frame(waiting_host, encode_frame("settled", question="q1", by=by, how="allow"))
    browser.wait_until(lambda: page.read_text("#settled") == expected)


@full
def test_an_answer_that_came_too_late_says_who_was_first(page, browser, waiting_host):
    page.web.call_in_thread(waiting_host.questions.clear)
    waiting_host.resolved["q1"] = "terminal", "allow"
    browser.click(".choose .bad")
    page.wait_for_text("Bash: allowed by terminal", "#settled")


HELD = """
const original = sendRequest;
sendRequest = async (method, ...more) => {
  if (method === 'POST') await new Promise(go => (window.go = go));
  return original(method, ...more);
};
"""  # what the page posts, until `go`


def test_who_was_first_of_two_pages_is_said_as_it_was(page, browser, waiting_host):
    """The other page's answer is heard of while ours is on its way."""
    browser.run_script(HELD)
    browser.click(".choose .bad")
    browser.wait_until(lambda: browser.run_script("return Boolean(window.go)"))
    page.web.call_in_thread(waiting_host.questions.clear)
    waiting_host.resolved["q1"] = "web-2", "allow"
    page.send_frame(waiting_host, encode_frame("settled", question="q1", by="web-2", how="allow"))
    page.send_frame(waiting_host, encode_frame("state", detail="told all"))
    browser.wait_until(
        lambda: browser.run_script("return currentSession.facts.detail === 'told all'")
    )
    browser.run_script("go()")
    browser.wait_until(lambda: page.read_text("#settled") == "Bash: allowed by another page")


def test_options_and_typed_answers_are_given_to_the_model(page, browser, hosts):
    page.open_page()
    host = hosts[1]
    page.open_session(host)
    page.web.call_in_thread(
        host.add_prompt, "q2", tool_name="AskUserQuestion", input={"questions": scenes.CHOICE}
    )
    page.wait_for_questions()
    browser.click(".asking-card .strong")
    page.wait_for_text("Each question needs an answer", ".asking-card")
    browser.find_elements(".asking-card .option")[1].click()
    browser.click(".asking-card .own")
    browser.press_keys("SQLite", ENTER)
    browser.wait_until(lambda: list_received_frames(host, "answer"))
    updated_input = list_received_frames(host, "answer")[0]["decision"]["updatedInput"]
    assert updated_input["answers"] == {scenes.CHOICE[0]["question"]: "SQLite"}
    assert updated_input["questions"] == scenes.CHOICE


def test_the_focus_goes_to_a_new_question_unless_something_is_typed(page, browser, hosts):
    page.open_page()
    host = hosts[1]
    page.open_session(host)
    page.type_text("half a sent")
    page.web.call_in_thread(host.add_prompt, "q1")
    page.wait_for_questions()
    assert page.describe_focus() == "text"
    browser.press_keys("ence")
    assert browser.find_element("#text").get_attribute("value") == "half a sentence"
    page.web.call_in_thread(host.questions.clear)
    page.send_frame(host, encode_frame("settled", question="q1", by=None, how="timeout"))
    page.wait_for_text("nobody answered in time", "#settled")
    browser.run_script("find('scroll').focus()")
    page.web.call_in_thread(host.add_prompt, "q3")
    browser.wait_until(lambda: "asking-card" in page.describe_focus())


@full
def test_several_questions_are_counted_and_settled_one_by_one(page, browser, waiting_host):
    page.web.call_in_thread(waiting_host.add_prompt, "q2", input={"command": "make deploy"})
    page.wait_for_questions(2)
    assert "1 of 2" in page.read_text(".asking-card")
    browser.find_elements(".asking-card .strong")[1].click()
    page.wait_for_questions()
    assert scenes.COMMAND in page.read_text(".asking-card")


# -- what is said to the session -------------------------------------------------------------------


def test_enter_sends_and_shift_enter_breaks_the_line(page, browser, working_host):
    page.type_text("first line")
    browser.press_keys(SHIFT_ENTER)
    browser.press_keys("second line", ENTER)
    browser.wait_until(lambda: list_received_frames(working_host, "message"))
    (message,) = list_received_frames(working_host, "message")
    assert message["message"] == {"role": "user", "content": "first line\nsecond line"}
    browser.wait_until(lambda: browser.find_element("#text").get_attribute("value") == "")


def test_what_was_not_sent_stays_and_is_one_message_when_it_is_sent_again(
    page, browser, working_host
):
    page.type_text("do not lose me")
    browser.set_offline(True)
    browser.press_keys(ENTER)
    page.wait_for_text("Your message is still here", "#failed")
    assert browser.find_element("#text").get_attribute("value") == "do not lose me"
    draft_id = browser.run_script("return getDraftId(currentSession.id, 'do not lose me')")
    browser.set_offline(False)
    page.wait_for_text("", "#line")
    browser.click("#send")
    browser.wait_until(lambda: list_received_frames(working_host, "message"))
    assert [message["id"] for message in list_received_frames(working_host, "message")] == [
        draft_id
    ]


LOST = """
const original = sendRequest;
sendRequest = async (...args) => {
  const response = await original(...args);
  if (args[0] !== 'POST') return response;
  sendRequest = original;
  throw new RequestError(0);
};
"""  # the answer to the next thing that the page posts


def test_a_message_whose_answer_was_lost_is_one_message_whatever_is_done_before_it_is_sent_again(
    page, browser, hosts, working_host
):
    browser.run_script(LOST)
    page.type_text("say it once")
    browser.press_keys(ENTER)
    page.wait_for_text("Your message is still here", "#failed")
    page.open_session(hosts[0])
    page.type_text("something else")
    browser.press_keys(ENTER)
    browser.wait_until(lambda: list_received_frames(hosts[0], "message"))
    browser.driver.refresh()
    page.wait_until_synced(hosts[0])
    page.open_session(working_host)
    assert browser.find_element("#text").get_attribute("value") == "say it once"
    browser.click("#send")
    browser.wait_until(lambda: len(list_received_frames(working_host, "message")) == 2)
    assert len({message["id"] for message in list_received_frames(working_host, "message")}) == 1


@full
def test_what_was_typed_is_there_after_the_page_was_loaded_again(page, browser, working_host):
    page.type_text("half a thought")
    browser.driver.refresh()
    page.wait_until_synced(working_host)
    assert browser.find_element("#text").get_attribute("value") == "half a thought"


def test_who_drives_is_shown_and_a_takeover_lets_the_message_through(page, browser, working_host):
    working_host.driver = "terminal"
    page.send_frame(working_host, encode_frame("driver", client="terminal"))
    page.wait_for_text("terminal drives this session", "#drives")
    page.type_text(
        "my turn",
    )
    browser.press_keys(ENTER)
    page.wait_for_text("Take over to send it", "#failed")
    assert browser.find_element("#text").get_attribute("value") == "my turn"
    browser.click("#drives button")
    browser.wait_until(lambda: list_received_frames(working_host, "take"))
    page.send_frame(working_host, encode_frame("driver", client="web"))
    browser.wait_until(lambda: not browser.find_element("#drives").is_displayed())
    before = len(list_received_frames(working_host, "message"))
    browser.click("#send")
    browser.wait_until(lambda: len(list_received_frames(working_host, "message")) > before)


def test_interrupt_mode_and_stop_are_said_to_the_session(page, browser, working_host):
    browser.click("#interrupt")
    browser.wait_until(lambda: list_received_frames(working_host, "interrupt"))
    browser.run_script(
        "find('mode').value = 'plan'; find('mode').dispatchEvent(new Event('change'))"
    )
    browser.wait_until(lambda: list_received_frames(working_host, "mode"))
    assert list_received_frames(working_host, "mode")[0]["mode"] == "plan"
    browser.click("#stop")
    browser.driver.switch_to.alert.accept()
    browser.wait_until(lambda: list_received_frames(working_host, "end"))
    browser.wait_until(lambda: browser.find_element("#over").is_displayed())
    assert browser.find_element("#send").text == "Go on"


@full
def test_bypass_is_offered_only_where_the_session_began_with_it(page, browser, working_host):
    modes = "return [...find('mode').options].map(o => o.value)"
    assert "bypassPermissions" not in browser.run_script(modes)
    working_host.metadata["mode"] = "bypassPermissions"
    page.send_frame(
        working_host,
        encode_frame(
            "welcome",
            session="x",
            questions=[],
            mode="bypassPermissions",
            generation=1,
            number=0,
            bypass=True,
        ),
    )
    browser.wait_until(lambda: "bypassPermissions" in browser.run_script(modes))


@full
def test_a_page_that_nobody_looks_at_lets_go_and_misses_nothing(page, browser, working_host):
    browser.run_script("currentSession.stream.rest()")
    browser.wait_until(
        lambda: browser.run_script("return currentSession.stream.state === 'parked'")
    )
    browser.wait_until(lambda: working_host.clients == [])  # the server hears of it a moment later
    page.send_line(working_host, **build_text_message("said meanwhile"))
    browser.run_script("resumePage()")
    page.wait_for_text("said meanwhile", "#steps")
    assert sum("said meanwhile" in step for step in page.list_steps()) == 1


def test_a_click_on_the_bell_allows_notifications_of_what_waits(page, browser, hosts):
    browser.call_devtools(
        "Browser.grantPermissions", origin=page.base[:-1], permissions=["notifications"]
    )
    page.open_page()
    assert browser.run_script("return Notification.permission") == "granted"
    browser.click("#bell")
    browser.wait_until(
        lambda: browser.find_element("#bell").get_attribute("aria-pressed") == "true"
    )
    browser.wait_until(
        lambda: browser.run_script(
            "return Boolean(notifications.worker && notifications.worker.active)"
        )
    )
    browser.run_script(
        "Object.defineProperty(document, 'hidden', { value: true, configurable: true })"
    )
    hosts[1].metadata.update(status="waiting", state="blocked", needs="approve Bash: make deploy")
    # A look that was on its way before the question came has not seen it; the next one of its own
    # is 10 s away.
    titles = (
        "refreshList(); notifications.worker.getNotifications()"
        ".then(all => arguments[0](all.map(note => [note.title, note.body])))"
    )
    browser.wait_until(lambda: browser.driver.execute_async_script(titles))
    notifications = browser.driver.execute_async_script(titles)
    assert notifications == [["Make the list of posts faster asks", "approve Bash: make deploy"]]
    hosts[1].metadata.update(
        status="idle", state="blocked", needs="nobody answered in time: Bash: make deploy"
    )
    browser.wait_until(lambda: "needs you" in browser.driver.execute_async_script(titles)[0][0])
    assert browser.list_console_messages() == []


def test_a_session_is_started_and_shown(page, browser, hosts, tmp_path):
    page.open_page()
    browser.press_keys("n")
    browser.wait_until(lambda: page.describe_focus() == "prompt")
    browser.press_keys("make it nicer")
    browser.run_script("find('cwd').value = '/no/such/folder'; find('vendor').value = 'demo'")
    browser.click("form.begin .strong")
    page.wait_for_text("Folder: there is no such folder", "form.begin .wrong")
    assert "cwd" not in page.read_text("form.begin .wrong") and page.describe_focus() == "cwd"
    offered = browser.run_script("return [...find('vendor').options].map(one => one.text)")
    assert offered[:2] == ["demo", "qwen"] and "acai (not installed)" in offered[2:]
    browser.run_script("find('cwd').value = arguments[0]", str(tmp_path))
    browser.click("form.begin .strong")
    browser.wait_until(lambda: page.web.hosts.started_sessions)
    (spec,) = page.web.hosts.started_sessions
    assert (spec.vendor, spec.prompt, spec.cwd, spec.mode) == (
        "demo",
        "make it nicer",
        str(tmp_path),
        "default",
    )
    browser.wait_until(lambda: "#s/" in browser.driver.current_url)
