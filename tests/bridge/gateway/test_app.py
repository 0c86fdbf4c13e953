"""The routes of the gateway over real sockets, with stand-in hosts."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from fixture_cases import ROOT
from gateway_harness import OTHER, QUESTION, SESSION, StandIns, Web

from shim.bridge.gateway import app as module
from shim.bridge.gateway.server import GatewayEndpoint

PAGES = 5  # that open at once


def test_sessions_are_listed_with_their_metadata(web, host):
    answered = web.send_get("/sessions")
    assert answered.status == 200
    (session,) = answered.json["sessions"]
    assert (
        session["id"] == SESSION[:8]
        and session["vendor"] == "demo"
        and session["alive"] is True
        and session["needs"] is None
    )
    assert set(session) == set(module.SESSION_KEYS)
    assert (
        web.send_get(f"/sessions/{SESSION}").json
        == web.send_get(f"/sessions/{SESSION[:8]}").json
        == session
    )


@pytest.mark.parametrize(
    "session_id", ["00000000", "1f0c", "..", "%2e%2e%2fetc", "a" * 36, "1F0C2AB4%00", "*"]
)
def test_unknown_session_id_returns_404(web, session_id):
    for path in (
        f"/sessions/{session_id}",
        f"/sessions/{session_id}/events",
        f"/sessions/{session_id}/steps",
    ):
        assert web.send_get(path).status == 404
    assert web.send_post(f"/sessions/{session_id}/messages", {"text": "hi"}).status == 404


def test_post_message_sends_a_message_frame_to_the_host(web, host):
    answered = web.send_post(f"/sessions/{SESSION[:8]}/messages", {"text": "go on", "id": OTHER})
    assert answered.status == 200 and answered.json == {"id": OTHER}
    assert host.received == [
        {"kind": "message", "id": OTHER, "message": {"role": "user", "content": "go on"}}
    ]
    assert host.clients == []


def test_message_conflict_names_the_controller_unless_take_is_set(web, host):
    host.driver = "terminal"
    refused = web.send_post(f"/sessions/{SESSION}/messages", {"text": "go on"})
    assert refused.status == 409 and refused.json["driver"] == "terminal"
    assert (
        web.send_post(f"/sessions/{SESSION}/messages", {"text": "go on", "take": True}).status
        == 200
    )
    assert [frame["kind"] for frame in host.received] == ["message", "take", "message"]


@pytest.mark.parametrize(
    "body",
    [
        {"id": "1"},
        {"id": SESSION[:-1]},
        {"id": 1},
        {"take": "yes"},
        {"take": 1},
        {"wake": "true"},
        {"take": None},
    ],
)
def test_invalid_message_id_or_flag_returns_400(web, host, body):
    answered = web.send_post(f"/sessions/{SESSION}/messages", {"text": "go on", **body})
    (key,) = body
    assert answered.status == 400 and f"`{key}`" in answered.json["error"]
    assert host.received == []


def test_message_id_is_converted_to_lower_case(web, host):
    assert web.send_post(
        f"/sessions/{SESSION}/messages", {"text": "go on", "id": OTHER.upper()}
    ).json == {"id": OTHER}


@pytest.mark.parametrize(
    ("act", "body", "expected"),
    [
        ("interrupt", {}, {"kind": "interrupt"}),
        ("model", {"model": "m2"}, {"kind": "model", "model": "m2"}),
        ("mode", {"mode": "plan"}, {"kind": "mode", "mode": "plan"}),
        ("take", {}, {"kind": "take"}),
        ("release", {}, {"kind": "release"}),
        ("stop", {}, {"kind": "end"}),
    ],
)
def test_each_session_action_sends_a_single_frame(web, host, act, body, expected):
    assert web.send_post(f"/sessions/{SESSION}/{act}", body).status == 200
    (frame,) = host.received
    assert {key: value for key, value in frame.items() if key != "id"} == expected


def test_second_answer_to_a_permission_prompt_returns_409(web, host):
    web.call_in_thread(host.add_prompt)
    assert (
        web.send_post(
            f"/sessions/{SESSION}/answers", {"question": "q1", "behavior": "allow"}
        ).status
        == 200
    )
    assert host.received[0]["decision"] == {"behavior": "allow"}
    late = web.send_post(f"/sessions/{SESSION}/answers", {"question": "q1", "behavior": "deny"})
    assert late.status == 409 and (late.json["by"], late.json["how"]) == ("web", "allow")


EXACTLY = {
    "type": "addRules", "rules": [{"toolName": "Bash", "ruleContent": "rm -r build"}], "behavior": "allow",
    "destination": "session",
}  # fmt: skip


@pytest.mark.parametrize(
    ("body", "decision"),
    [
        ({"behavior": "deny"}, {"behavior": "deny"}),
        ({"behavior": "deny", "message": "no"}, {"behavior": "deny", "message": "no"}),
        ({"behavior": "allow", "input": {"a": 1}}, {"behavior": "allow", "updatedInput": {"a": 1}}),
        (
            {"behavior": "allow", "always": True},
            {"behavior": "allow", "updatedPermissions": [EXACTLY]},
        ),
    ],
)
def test_answer_body_is_converted_to_a_permission_decision(web, host, body, decision):
    web.call_in_thread(host.add_prompt)
    assert web.send_post(f"/sessions/{SESSION}/answers", {"question": "q1", **body}).status == 200
    assert host.received[0]["decision"] == decision


def test_elicitation_answer_is_sent_as_accept_or_decline(web, host):
    for name, body, decision in (
        (
            "e1",
            {"behavior": "allow", "input": {"city": "Oslo"}},
            {"action": "accept", "content": {"city": "Oslo"}},
        ),
        ("e2", {"behavior": "deny", "message": "no"}, {"action": "decline"}),
    ):
        web.call_in_thread(host.add_prompt, name, subtype="elicitation", message="Which city?")
        assert (
            web.send_post(f"/sessions/{SESSION}/answers", {"question": name, **body}).status == 200
        )
        assert host.received[-1]["decision"] == decision


def test_answer_to_an_unknown_permission_prompt_returns_404(web, host):
    assert (
        web.send_post(
            f"/sessions/{SESSION}/answers", {"question": "q9", "behavior": "allow"}
        ).status
        == 404
    )


@pytest.mark.parametrize("fields", [{"always": True}, {"message": "but quickly"}])
def test_unsupported_answer_fields_return_400_and_leave_the_prompt_open(web, host, fields):
    """No rule matches only a command with a star. The suggested mode and folder are less
    restrictive.
    """
    widest = QUESTION["permission_suggestions"][1:]
    web.call_in_thread(host.add_prompt, input={"command": "rm *"}, permission_suggestions=widest)
    refused = web.send_post(
        f"/sessions/{SESSION}/answers", {"question": "q1", "behavior": "allow", **fields}
    )
    assert refused.status == 400 and refused.json["error"]
    assert host.received == [] and "q1" in host.questions


def test_post_sessions_starts_a_session(web, tmp_path):
    body = {"vendor": "demo", "prompt": "hi", "cwd": str(tmp_path), "model": "m1", "mode": "plan"}
    answered = web.send_post("/sessions", body)
    assert answered.status == 201 and answered.json == {"id": OTHER[:8], "session": OTHER}
    assert web.hosts.started_sessions == [("demo", "hi", str(tmp_path), "m1", "plan")]


@pytest.mark.parametrize(
    ("wrong", "status"),
    [
        ({"vendor": "nobody"}, 400), ({"vendor": "../x"}, 400), ({"vendor": None}, 400), ({"prompt": " "}, 400),
        ({"prompt": "a\0b"}, 400), ({"cwd": "repo"}, 400), ({"cwd": "/no/such/folder"}, 400),
        ({"cwd": "/etc/passwd"}, 400),
        ({"model": "--shim-config=/tmp/x"}, 400), ({"mode": "-x"}, 400), ({"mode": "bypassPermissions"}, 403),
    ],
)  # fmt: skip
def test_invalid_session_parameters_are_rejected_before_start(web, tmp_path, wrong, status):
    body = {"vendor": "demo", "prompt": "hi", "cwd": str(tmp_path)}
    answered = web.send_post(
        "/sessions", {key: value for key, value in {**body, **wrong}.items() if value is not None}
    )
    assert answered.status == status and answered.json["error"]
    assert web.hosts.started_sessions == []


def test_message_to_an_ended_session_returns_409_unless_wake_is_set(web, host):
    host.metadata |= {"alive": False, "state": "done"}
    refused = web.send_post(f"/sessions/{SESSION}/messages", {"text": "hi"})
    assert refused.status == 409 and refused.json == {
        "error": "the session has ended",
        "state": "done",
    }

    assert web.send_post(f"/sessions/{SESSION}/messages", {"text": "hi", "wake": True}).json == {
        "woken": True
    }
    assert web.hosts.woken == [(SESSION, "hi", "")]


@pytest.mark.parametrize(
    "body", [b"", b"{}", b"[]", b"nonsense", b'{"text": 1}', b'{"text": ""}', b"\xff\xfe"]
)
def test_malformed_body_returns_400(web, host, body):
    answered = web.send_post(f"/sessions/{SESSION}/messages", body)
    assert answered.status == 400 and answered.json["error"]
    assert host.received == []


def test_openapi_document_lists_exactly_the_routes(web):
    paths = {
        (path, method) for path, methods in web.send_get("/openapi.json", role=None).json["paths"].items()
        for method in methods if method in ("get", "post")
    }  # fmt: skip
    documented = {("/" + path.removeprefix("/"), method) for path, method in paths}
    routes = set()
    for route in module.create_app.__globals__["Route"] and _routes(web):
        routes |= {(route.path, method.lower()) for method in route.methods if method != "HEAD"}
    assert documented == {
        operation
        for operation in routes
        if operation[0] not in ("/", "/openapi.json", "/assets/{name}")
    }


def test_manual_has_each_route_of_a_session():
    manual = (ROOT / "shim" / "manual" / "bridge.md").read_text(encoding="utf-8")
    for operation in module.OPERATIONS:
        if operation.path.startswith("/sessions"):
            assert f"/{operation.path.rpartition('/')[2]}".replace("{id}", "ID") in manual


def _routes(web):
    return web.server.config.app._app.routes


def test_me_returns_the_role_and_the_vendors(web):
    answer = web.send_get("/me", role="watch").json
    assert answer["role"] == "watch" and "demo" in answer["vendors"]
    assert answer["installed"] == ["qwen", "demo"]


def test_page_and_assets_are_served_without_a_token(web):
    page = web.send_get("/", role=None)
    assert page.status == 200 and page.headers["content-type"].startswith("text/html")
    for name in ("look.css", "steps.js", "page.js"):
        assert web.send_get(f"/assets/{name}", role=None).status == 200
    for name in ("..%2fapp.py", "app.py", "index.html%00", "nothing.js"):
        assert web.send_get(f"/assets/{name}", role=None).status == 404


def test_login_sets_a_cookie_that_logout_expires(web):
    answered = web.send_post("/login", {"token": web.tokens.load_tokens().watch}, role=None)
    assert answered.json["role"] == "watch"
    cookie = answered.headers["set-cookie"]
    assert (
        "HttpOnly" in cookie
        and "SameSite=Strict" in cookie
        and "Path=/" in cookie
        and "Domain" not in cookie
    )
    headers = {"Cookie": cookie.partition(";")[0], "X-Shim-Page": answered.json["proof"]}
    assert web.send_get("/me", role=None, headers=headers).json["role"] == "watch"
    ended = web.send_post("/logout", role=None, headers={**headers, "Origin": f"http://{web.host}"})
    assert ended.status == 200 and "Max-Age=0" in ended.headers["set-cookie"]


def test_error_responses_are_json(web):
    for answered in (
        web.send_get("/nothing"),
        web.send_get("/sessions", role=None),
        web.send_request("PUT", "/sessions", {}),
    ):
        assert answered.status in (401, 404, 405) and json.loads(answered.body)["error"]


def test_session_folders_are_read_in_a_single_thread(host, tokens):
    """Several threads would delay the streams of other pages."""
    hosts = StandIns(host)
    find_sessions = hosts.find_sessions
    reading = threading.Lock()
    overlaps = []

    def find_slowly(id_prefix):
        overlaps.append(not reading.acquire(blocking=False))
        time.sleep(0.02)  # long enough for another request to arrive
        if not overlaps[-1]:
            reading.release()
        return find_sessions(id_prefix)

    hosts.find_sessions = find_slowly
    web = Web(hosts, tokens, GatewayEndpoint(port=0))
    try:
        with ThreadPoolExecutor(PAGES) as pool:
            answers = list(pool.map(web.send_get, [f"/sessions/{SESSION}"] * PAGES))
    finally:
        web.close()
    assert [answer.status for answer in answers] == [200] * PAGES
    assert overlaps == [False] * PAGES
