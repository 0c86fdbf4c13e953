"""`shim bridge serve` and `shim bridge token`, as processes."""

import importlib.util
import json
import re
import signal
import ssl
import subprocess
import sys
import urllib.error
import urllib.request

import pytest
from box import SHIM, TIMEOUT_S, start_shim
from certificates import create_certificate
from terminal import on_terminal

from shim.process.installation import build_install_hint

ADDRESS = re.compile(r"http://127\.0\.0\.1:\d+/")
# Run several commands, and fail if one of them imports a module of the web server.
COMMANDS = """
import sys
from shim.__main__ import main

for words in (["bridge", "token"], ["bridge", "--help"], ["vendors"]):
    sys.argv = ["shim", *words]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, words
    assert "shim.commands.cli" in sys.modules
    found = {"starlette", "uvicorn", "segno"} & set(sys.modules)
    assert not found, (words, found)
"""


def start_server(environment, cwd, *args):
    return start_shim(
        ("bridge", "serve", "--http", "127.0.0.1:0", *args),
        env=environment,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def get(address, token, **options):
    request = urllib.request.Request(address, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=TIMEOUT_S, **options) as answer:
        return json.load(answer)


def test_address_is_printed_without_a_token_if_stdout_is_not_a_terminal(box):
    token = box.run_shim("bridge", "token").stdout.decode().strip()
    with start_server(box.build_environment(), box.cwd) as process:
        try:
            address = process.stdout.readline().decode().strip()
            assert ADDRESS.fullmatch(address)
            assert get(f"{address}sessions", token) == {"sessions": []}
            process.send_signal(signal.SIGINT)
            stdout, complaint = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
    assert token.encode() not in stdout and complaint == b""


def test_tls_server_answers_only_clients_that_trust_its_certificate(box, tmp_path):
    cert, key = create_certificate("localhost", tmp_path)
    token = box.run_shim("bridge", "token").stdout.decode().strip()
    with start_server(
        box.build_environment(),
        box.cwd,
        "--name",
        "localhost",
        "--tls-cert",
        cert,
        "--tls-key",
        key,
    ) as process:
        try:
            address = process.stdout.readline().decode().strip()
            assert re.fullmatch(r"https://localhost:\d+/", address)
            trusting = ssl.create_default_context(cafile=cert)
            assert get(f"{address}sessions", token, context=trusting) == {"sessions": []}
            with pytest.raises(urllib.error.URLError, match="CERTIFICATE_VERIFY_FAILED"):
                get(f"{address}sessions", token)
            process.send_signal(signal.SIGINT)
            _, complaint = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
    assert complaint == b""


def test_sigterm_ends_an_open_event_stream_without_output_on_stderr(desk):
    start_result = desk.run_claude("--bg", "hi")
    assert start_result.status == 0
    token = desk.run_shim("bridge", "token").stdout.decode().strip()
    with start_server(desk.environment, desk.cwd) as process:
        try:
            address = process.stdout.readline().decode().strip()
            (session,) = get(f"{address}sessions", token)["sessions"]
            request = urllib.request.Request(f"{address}sessions/{session['id']}/events")
            request.add_header("Authorization", f"Bearer {token}")
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as stream:
                assert stream.readline() == b"retry: 1000\n"
                process.send_signal(signal.SIGTERM)
                assert b"" in iter(stream.readline, None), "it ends"
            _, complaint = process.communicate(timeout=TIMEOUT_S)
        finally:
            process.kill()
    assert complaint == b""


def test_terminal_receives_a_login_address_that_does_not_contain_the_token(box):
    token = box.run_shim("bridge", "token").stdout.decode().strip()
    argv = [*SHIM, "bridge", "serve", "--http", "127.0.0.1:0"]
    with on_terminal(
        argv, env=box.build_environment(), cwd=str(box.cwd), timeout_s=TIMEOUT_S
    ) as terminal:
        drawn = terminal.wait_for_text("Ctrl-C stops the server")
        (address, way_in) = re.findall(f"({ADDRESS.pattern})#token=([0-9a-f.]+)", drawn)[0]
        assert token not in drawn and "Only this machine" in drawn
        for file_name in ("cmdline", "environ"):
            with open(f"/proc/{terminal.process.pid}/{file_name}", "rb") as file:
                content = file.read()
            assert token.encode() not in content and way_in.encode() not in content
        body = json.dumps({"token": way_in}).encode()
        request = urllib.request.Request(
            f"{address}login", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
            assert json.load(answer)["role"] == "drive"


def test_token_stays_the_same_until_replaced_with_new(box):
    outputs = [
        box.run_shim("bridge", "token", *args).stdout
        for args in ((), (), ("--watch",), ("--new",), ())
    ]
    assert outputs[0] == outputs[1] != outputs[2] and outputs[3] == outputs[4] != outputs[0]
    assert box.run_shim("bridge", "token", "--watch").stdout == outputs[2]


@pytest.mark.parametrize(
    ("args", "status", "expected"),
    [
        (("--http", "0.0.0.0:0"), 2, "reachable from the network"),
        (("--http", "nonsense:1"), 2, "not an address to listen on"),
        (("--behind-proxy",), 2, "the host name that browsers use"),
        (
            ("--tls-cert", "/no/such.pem", "--tls-key", "/no/such.key"),
            1,
            "/no/such.pem: No such file",
        ),
    ],
)
def test_unusable_serve_options_are_refused_with_a_hint(box, args, status, expected):
    done = box.run_shim("bridge", "serve", *args)
    assert (
        done.status == status
        and expected in done.stderr
        and "hint: " in done.stderr
        and "Traceback" not in done.stderr
    )


def test_serve_names_missing_packages_and_the_command_that_installs_them(shim, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    status, _, complaint = shim("bridge", "serve")
    assert status == 1 and "starlette, uvicorn, segno" in complaint
    assert f"hint: {build_install_hint()}\n" in complaint and "Traceback" not in complaint


def test_other_commands_do_not_import_web_modules(box):
    done = subprocess.run(
        [sys.executable, "-P", "-c", COMMANDS], env=box.build_environment(), cwd=box.cwd,
        capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
