"""The page of background sessions in a real Chromium, at a real gateway, with stand-in hosts."""

from __future__ import annotations

import time
from collections.abc import Iterator

import page_scenes as scenes
import pytest
from browser import Browser
from gateway_harness import StandIns, Web
from session_page import ENTER, SHIFT_ENTER, Page, build_text_message

from shim.bridge.gateway.server import GatewayEndpoint
from shim.bridge.gateway.tokens import GatewayTokenFile
from shim.core.bridge.frames import encode_frame

pytestmark = pytest.mark.e2e
full = pytest.mark.full  # one or two of each kind always run


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    browser = Browser("127.0.0.1")
    yield browser
    browser.close()


@pytest.fixture
def hosts():
    """Return a session with a permission request, a working session, and others."""
    return [scenes.build_asking_host(), scenes.build_working_host(), *scenes.build_other_hosts()]


@pytest.fixture
def page(browser, hosts, tmp_path) -> Iterator[Page]:
    web = Web(
        StandIns(*hosts),
        GatewayTokenFile({"SHIM_STATE": str(tmp_path / "state")}),
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


# -- login -----------------------------------------------------------------------------------------


def test_login_token_is_removed_from_the_address_and_hidden_from_scripts(page, browser):
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


def test_login_form_rejects_a_wrong_token_and_accepts_the_right_token(page, browser):
    browser.open_url(page.base)
    browser.wait_until(lambda: page.read_view() == "login")
    assert page.describe_focus() == "token"
    browser.press_keys("not-a-token", ENTER)
    page.wait_for_text("Invalid token", ".wrong")
    browser.wait_until(lambda: page.describe_focus() == "token")
    browser.press_keys(page.web.tokens.load_tokens().drive, ENTER)
    browser.wait_until(lambda: page.read_view() == "none")
    assert browser.find_elements("#list li")


def test_offline_logout_is_effective_after_a_reload(page, browser):
    page.open_page()
    browser.set_offline(True)
    browser.click("#leave")
    browser.wait_until(lambda: page.read_view() == "login")
    browser.set_offline(False)
    browser.driver.refresh()
    browser.wait_until(lambda: page.read_view() in ("login", "none"))
    assert page.read_view() == "login"


@full
def test_session_address_is_opened_after_login(page, browser, hosts):
    browser.open_url(f"{page.base}#s/{hosts[1].metadata['id']}")
    browser.wait_until(lambda: page.read_view() == "login")
    browser.press_keys(page.web.tokens.load_tokens().drive, ENTER)
    page.wait_until_synced(hosts[1])


@pytest.mark.parametrize("way", ["token", "way-in"])
def test_bare_token_in_the_address_is_accepted_and_removed(page, browser, way):
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
def test_token_in_other_address_forms_is_accepted_and_removed(page, browser, address):
    token = page.web.tokens.load_tokens().drive
    browser.open_url(page.base + address.format(token))
    browser.wait_until(lambda: page.read_view() == "none")
    assert browser.run_script("return location.href") == page.base


def test_incomplete_token_is_rejected_and_removed_from_the_address(page, browser):
    token = page.web.tokens.load_tokens().drive[:-1]
    browser.open_url(f"{page.base}#{token}")
    page.wait_for_text("Invalid token", ".wrong")
    assert browser.run_script("return location.href") == page.base
    for _ in range(20):
        browser.run_script("return exchangeToken(arguments[0])", token)
    page.wait_for_text("Invalid token", ".wrong")
    browser.run_script("exchangeToken(arguments[0])", page.web.tokens.load_tokens().drive)
    browser.wait_until(lambda: page.read_view() == "none")


def test_address_with_an_invalid_escape_opens_no_session(page, browser):
    page.open_page()
    browser.run_script("location.hash = '#s/%'")
    page.wait_for_text("Session not found")
    assert not [
        complaint for complaint in browser.list_console_messages() if "404" not in complaint
    ]


def test_page_restored_from_the_browser_cache_resumes_its_stream(page, browser, working_host):
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


def test_session_with_a_timed_out_prompt_is_marked_as_needs_you(page, browser, working_host):
    browser.run_script(
        "FRAME_HANDLERS.state({ state: 'blocked', status: 'idle', needs: 'nobody answered: Bash make deploy' })"
    )
    browser.wait_until(lambda: browser.find_element("#chip").text == "Needs attention")
    assert "nobody answered" in browser.find_element("#chip").get_attribute("title")


def test_watcher_cannot_stop_or_interrupt_a_session(page, browser, hosts):
    page.open_page("watch")
    page.open_session(hosts[1])
    assert not browser.find_element("#stop").is_displayed()
    assert not browser.find_element("#interrupt").is_displayed()


DIRECTION = "return getComputedStyle([...document.querySelectorAll(arguments[0])].at(-1)).direction"


def test_arabic_and_hebrew_text_is_right_to_left(page, browser, working_host):
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
# key code is 229.
SAFARI_ENTER = """
const box = document.getElementById("text");
box.dispatchEvent(new CompositionEvent("compositionend", { data: "日本" }));
const enter = new KeyboardEvent("keydown", { key: "Enter", keyCode: arguments[0], bubbles: true, cancelable: true });
return box.dispatchEvent(enter);
"""


def test_enter_that_ends_a_composition_sends_no_message(page, browser, working_host):
    page.type_text("日本")
    assert browser.run_script(SAFARI_ENTER, 229) is True
    assert browser.find_element("#text").get_attribute("value") == "日本"
    assert browser.run_script(SAFARI_ENTER, 13) is False
    browser.wait_until(lambda: browser.find_element("#text").get_attribute("value") == "")
    assert [
        frame["message"]["content"] for frame in working_host.received if frame["kind"] == "message"
    ] == ["日本"]


def test_watch_token_has_no_input_box_and_no_answer_buttons(page, browser, hosts):
    page.open_page("watch")
    page.open_session(hosts[0])
    page.wait_for_questions()
    assert not browser.find_element("#text").is_enabled()
    assert not browser.find_element("#new").is_displayed()
    assert browser.find_elements(".asking-card button") == []
    assert "pytest" in page.read_text(".asking-card")


# -- the list --------------------------------------------------------------------------------------


def test_waiting_session_is_listed_first_with_its_permission_prompt(page, browser):
    page.open_page()
    groups = browser.retry_when_stale(
        lambda: [node.text.split("\n")[0] for node in browser.find_elements("#list section")]
    )
    assert groups == ["Waiting for you 1", "Working 2", "Idle 2", "Ended 3"]
    assert "approve Bash: python -m pytest" in page.read_text("#list section:first-child")
    assert browser.driver.title == "(1) Sessions"


@full
def test_list_updates_with_its_sessions_and_preserves_the_focus(page, browser, hosts):
    page.open_page()
    browser.run_script("document.querySelectorAll('#list a')[1].focus()")
    was = browser.run_script("return document.activeElement.dataset.id")
    hosts[0].metadata.update(status="idle", state="done", detail="Committed")
    page.wait_for_text("Committed", "#list")
    assert not browser.find_elements("#list section.asks")
    assert browser.run_script("return document.activeElement.dataset.id") == was


def test_sessions_of_a_group_are_listed_by_their_last_change(page, browser, hosts):
    list_ids = (
        "return [...document.querySelectorAll('#list section.ended a')].map(a => a.dataset.id)"
    )
    page.open_page()
    ids = browser.run_script(list_ids)
    (last,) = (host for host in hosts if host.metadata["id"] == ids[-1])
    last.metadata.update(updated=scenes.NOW + 1000)
    browser.wait_until(lambda: browser.run_script(list_ids)[0] == ids[-1])


@full
def test_filter_lists_only_matching_sessions(page, browser):
    page.open_page()
    browser.press_keys("/")
    browser.press_keys("shop")
    assert len(browser.find_elements("#list li")) == 3
    browser.press_keys("nothing like it")
    assert "No session matches" in page.read_text("#list")


# -- a session -------------------------------------------------------------------------------------


def test_streamed_text_grows_and_becomes_a_single_step(page, browser, working_host):
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
def test_thinking_is_folded_during_and_after_streaming(page, browser, working_host):
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
def test_running_call_and_its_result_share_a_step(page, browser, working_host):
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


def test_page_follows_the_end_until_the_reader_scrolls_up(page, browser, working_host):
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


def test_gap_frame_clears_partial_text_and_preserves_the_steps(page, browser, working_host):
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


def test_page_that_missed_700_steps_displays_the_last_200_without_a_gap(
    page, browser, working_host
):
    script = "if (list.refreshing) return false; clearTimeout(list.timer); return (list.refreshing = true)"
    # Requesting the list would resume the stream before every line was sent.
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
    assert numbers == list(range(numbers[0], numbers[-1] + 1)) and len(numbers) == 200
    assert browser.run_script("return currentSession.left") == numbers[0] - 1


def test_scroll_event_after_leaving_a_session_causes_no_error(page, browser, working_host):
    browser.run_script(
        "const left = find('scroll'); showNoSession(); left.dispatchEvent(new Event('scroll'))"
    )
    assert page.list_errors() == []


def test_session_whose_host_died_is_displayed_as_failed(page, browser, working_host):
    page.send_line(working_host, **build_text_message("The last thing that it said."))
    page.wait_for_text("The last thing that it said.", "#steps")
    working_host.metadata |= {
        "alive": False,
        "state": "failed",
        "status": None,
        "detail": "the session's host crashed",
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
def test_missing_session_is_reported(page, browser):
    page.open_page()
    browser.run_script("location.hash = 's/ffffffff'")
    page.wait_for_text("Session not found", "main")


# -- permission requests ---------------------------------------------------------------------------


def test_permission_prompt_displays_its_input_and_can_be_allowed(page, browser, waiting_host):
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
"""  # clicks the allow button at the first change of the page after which it exists


def test_click_while_a_session_with_a_prompt_opens_answers_nothing(page, browser, hosts):
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


def test_click_while_a_prompt_replaces_another_answers_nothing(page, browser, waiting_host):
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
def test_click_while_prompts_move_down_answers_nothing(page, browser, waiting_host):
    """The line below them that names the client of an earlier answer disappears after a while."""
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
def test_permission_prompt_displays_every_field_of_its_call(
    page, hosts, tool, tool_input, expected
):
    page.open_page()
    page.open_session(hosts[1])
    page.web.call_in_thread(
        hosts[1].add_prompt, "q9", tool_name=tool, input=tool_input, tool_use_id="t"
    )
    page.wait_for_questions()
    assert all(fragment in page.read_text(".asking-card") for fragment in expected)


@full
def test_always_button_adds_exactly_the_displayed_rule(page, browser, waiting_host):
    assert f"Bash({scenes.COMMAND})" in page.read_text(".asking-card .hint")
    browser.click(".asking-card .always")
    browser.wait_until(lambda: list_received_frames(waiting_host, "answer"))
    (update,) = list_received_frames(waiting_host, "answer")[0]["decision"]["updatedPermissions"]
    assert update["rules"] == [{"toolName": "Bash", "ruleContent": scenes.COMMAND}]


def test_denial_can_contain_a_message(page, browser, waiting_host):
    browser.click(".asking-card .plain")
    browser.press_keys("not on a Friday", ENTER)
    browser.wait_until(lambda: list_received_frames(waiting_host, "answer"))
    assert list_received_frames(waiting_host, "answer")[0]["decision"] == {
        "behavior": "deny",
        "message": "not on a Friday",
    }


def test_prompt_answered_by_another_client_is_reported_with_its_name(page, browser, waiting_host):
    page.web.call_in_thread(waiting_host.questions.clear)
    page.send_frame(waiting_host, encode_frame("settled", question="q1", by="terminal", how="deny"))
    browser.wait_until(lambda: not browser.find_elements(".asking-card"))
    page.wait_for_text("Bash: denied by terminal", "#settled")


@pytest.mark.parametrize(
    ("by", "expected"),
    [
        ("shim bridge answer 3e907f1f", "Bash: allowed in a terminal with shim bridge answer"),
        pytest.param("terminal 4711", "Bash: allowed in a terminal", marks=full),
    ],
)
def test_client_that_answered_a_prompt_is_described_in_plain_text(
    page, browser, waiting_host, by, expected
):
    page.send_frame(waiting_host, encode_frame("settled", question="q1", by=by, how="allow"))
    browser.wait_until(lambda: page.read_text("#settled") == expected)


@full
def test_late_answer_reports_the_earlier_answer(page, browser, waiting_host):
    page.web.call_in_thread(waiting_host.questions.clear)
    waiting_host.resolved["q1"] = "terminal", "allow"
    browser.click(".choose .bad")
    page.wait_for_text("Bash: allowed by terminal", "#settled")


HOLD_ANSWER_SCRIPT = """
const original = sendRequest;
sendRequest = async (method, ...more) => {
  if (method === 'POST') await new Promise(go => (window.go = go));
  return original(method, ...more);
};
"""  # holds the page's POST requests until `go`


def test_answer_in_flight_reports_the_earlier_answer_of_another_page(page, browser, waiting_host):
    """The other page's answer arrives while this page's answer is on its way."""
    browser.run_script(HOLD_ANSWER_SCRIPT)
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
    browser.wait_until(lambda: page.read_text("#settled") == "Bash: allowed in another browser")


def test_question_form_sends_typed_answers_to_the_session(page, browser, hosts):
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


def test_new_prompt_takes_the_focus_unless_text_is_being_typed(page, browser, hosts):
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
    page.wait_for_text("no answer in time", "#settled")
    browser.run_script("find('scroll').focus()")
    page.web.call_in_thread(host.add_prompt, "q3")
    browser.wait_until(lambda: "asking-card" in page.describe_focus())


@full
def test_several_prompts_are_counted_and_answered_separately(page, browser, waiting_host):
    page.web.call_in_thread(waiting_host.add_prompt, "q2", input={"command": "make deploy"})
    page.wait_for_questions(2)
    assert "1 of 2" in page.read_text(".asking-card")
    browser.find_elements(".asking-card .strong")[1].click()
    page.wait_for_questions()
    assert scenes.COMMAND in page.read_text(".asking-card")


# -- messages to the session -----------------------------------------------------------------------


def test_enter_sends_and_shift_enter_breaks_the_line(page, browser, working_host):
    page.type_text("first line")
    browser.press_keys(SHIFT_ENTER)
    browser.press_keys("second line", ENTER)
    browser.wait_until(lambda: list_received_frames(working_host, "message"))
    (message,) = list_received_frames(working_host, "message")
    assert message["message"] == {"role": "user", "content": "first line\nsecond line"}
    browser.wait_until(lambda: browser.find_element("#text").get_attribute("value") == "")


def test_unsent_message_is_preserved_and_sent_once(page, browser, working_host):
    page.type_text("do not lose me")
    browser.set_offline(True)
    browser.press_keys(ENTER)
    page.wait_for_text("Your message was kept", "#failed")
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
"""  # loses the response to the page's next POST


def test_resent_message_has_the_same_id_after_a_lost_response(page, browser, hosts, working_host):
    browser.run_script(LOST)
    page.type_text("say it once")
    browser.press_keys(ENTER)
    page.wait_for_text("Your message was kept", "#failed")
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
def test_draft_is_restored_after_a_reload(page, browser, working_host):
    page.type_text("half a thought")
    browser.driver.refresh()
    page.wait_until_synced(working_host)
    assert browser.find_element("#text").get_attribute("value") == "half a thought"


def test_controller_is_displayed_and_take_over_allows_sending(page, browser, working_host):
    working_host.driver = "terminal"
    page.send_frame(working_host, encode_frame("driver", client="terminal"))
    page.wait_for_text("terminal has control of this session", "#drives")
    page.type_text(
        "my turn",
    )
    browser.press_keys(ENTER)
    page.wait_for_text("Take control to send the message", "#failed")
    assert browser.find_element("#text").get_attribute("value") == "my turn"
    browser.click("#drives button")
    browser.wait_until(lambda: list_received_frames(working_host, "take"))
    page.send_frame(working_host, encode_frame("driver", client="web"))
    browser.wait_until(lambda: not browser.find_element("#drives").is_displayed())
    before = len(list_received_frames(working_host, "message"))
    browser.click("#send")
    browser.wait_until(lambda: len(list_received_frames(working_host, "message")) > before)


def test_interrupt_mode_and_stop_are_sent_to_the_session(page, browser, working_host):
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
    assert browser.find_element("#send").text == "Resume"


@full
def test_bypass_mode_is_offered_only_if_the_session_started_with_bypass(
    page, browser, working_host
):
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
def test_parked_page_disconnects_and_receives_missed_lines_once(page, browser, working_host):
    browser.run_script("currentSession.stream.rest()")
    browser.wait_until(
        lambda: browser.run_script("return currentSession.stream.state === 'parked'")
    )
    browser.wait_until(lambda: working_host.clients == [])  # the server notices it a moment later
    page.send_line(working_host, **build_text_message("said meanwhile"))
    browser.run_script("resumePage()")
    page.wait_for_text("said meanwhile", "#steps")
    assert sum("said meanwhile" in step for step in page.list_steps()) == 1


def test_bell_enables_notifications_of_waiting_sessions(page, browser, hosts):
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
    # A list request that was on its way before the question does not contain it. The page's next
    # own request is 10 s later.
    titles = (
        "refreshList(); notifications.worker.getNotifications()"
        ".then(all => arguments[0](all.map(note => [note.title, note.body])))"
    )
    browser.wait_until(lambda: browser.driver.execute_async_script(titles))
    notifications = browser.driver.execute_async_script(titles)
    assert notifications == [["Make the list of posts faster asks", "approve Bash: make deploy"]]
    hosts[1].metadata.update(
        status="idle", state="blocked", needs="no answer in time: Bash: make deploy"
    )
    browser.wait_until(
        lambda: "needs attention" in browser.driver.execute_async_script(titles)[0][0]
    )
    assert browser.list_console_messages() == []


def test_new_session_form_starts_and_opens_a_session(page, browser, hosts, tmp_path):
    page.open_page()
    browser.press_keys("n")
    browser.wait_until(lambda: page.describe_focus() == "prompt")
    browser.press_keys("make it nicer")
    browser.run_script("find('cwd').value = '/no/such/folder'; find('vendor').value = 'demo'")
    browser.click("form.begin .strong")
    page.wait_for_text("Folder not found", "form.begin .wrong")
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
