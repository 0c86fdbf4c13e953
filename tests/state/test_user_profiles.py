"""Vendors without Python code: a TOML file next to config.toml, and a turn of the drop-in with the
program of such a vendor.
"""

import json
import os
from pathlib import Path

import pytest
from box import ASK, format_ndjson
from stream_invariants import check_turns
from stream_lines import summarize_lines
from sweeps import loop_over_rows

from shim import adapters
from shim.adapters import VENDORS, get_adapter
from shim.core.errors import FrontendError
from shim.state import profile_files
from shim.state.own_profiles import register_user_profiles

PARROT = """
schema = 1
id = "parrot"
unattended = true

[launch]
command = ["parrot", "talk"]
argv = [
  { when = "permission_args" },
  { when = "model", args = ["--voice", "{model}"] },
  { when = "resume", args = ["--perch", "{resume}"] },
  { when = "prompt_argument", args = ["{prompt}"] },
]
prompt = { via = "arg" }
resume_id_pattern = 'perch-\\d{1,9}'
env = { PARROT_COLOUR = "green" }

[launch.permission_args]
default = ["--calm"]
bypassPermissions = ["--wild"]

[stream]
text = "delta"
usage = "request"

[[event]]
match = { type = "wake" }
emit = "session"
session_id = "perch"
model = "voice"
continue = true

[[event]]
match = { type = "wake" }
emit = "ignore"

[[event]]
match = { type = "squawk" }
emit = "text"
text = "sound"

[[event]]
match = { type = "peck" }
emit = "tool_use"
id = "n"
name = "beak"
input = "at"

[[event]]
match = { type = "pecked" }
emit = "tool_result"
id = "n"
content = "felt"
is_error = { path = "hurt", not_in = [0] }

[[event]]
match = { type = "breath" }
emit = "usage"
usage = { input_tokens = { minus = ["heard", "known"] }, cache_read_input_tokens = "known", output_tokens = "said" }

[[event]]
match = { type = "sleep" }
emit = "result"
is_error = "nightmare"
error = "about"

[tools.shell]
name = "Bash"
args = { command = { join = "words", sep = " " } }
"""
NIGHT = format_ndjson(
    {"type": "wake", "perch": "perch-7", "voice": "grey-1"},
    {"type": "squawk", "sound": "Let me "},
    {"type": "squawk", "sound": "look."},
    {"type": "peck", "n": 1, "beak": "shell", "at": {"words": ["ls", "-l"]}},
    {"type": "breath", "heard": 100, "known": 20, "said": 7},
    {"type": "pecked", "n": 1, "felt": "seeds\n", "hurt": 2},
    {"type": "squawk", "sound": "Only seeds."},
    {"type": "breath", "heard": 130, "known": 120, "said": 3},
    {"type": "sleep"},
)


def write(box, text=PARROT, name="parrot.toml"):
    """Write a user profile into the box and return its path."""
    path = box.config.parent / "vendors" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def forgotten():
    """Restore the registered vendors and profile loaders after the test."""
    original_vendors, readers = dict(VENDORS), list(adapters.profile_loaders)
    yield
    VENDORS.clear()
    VENDORS.update(original_vendors)
    adapters.profile_loaders[:] = readers


def test_profile_file_adds_a_vendor_without_python_code(box):
    write(box)
    box.create_fake(["read"], ["record", str(box.recording)], ["out", NIGHT], name="parrot")
    done = box.run_claude(*ASK, "--model", "parrot:grey-1", SHIM_VENDOR=None)
    check_turns(done.stdout, False)
    assert summarize_lines(done.lines) == [
        "init",
        "text:Let me look.",
        "call:1 Bash",
        "failed:1 seeds",
        "text:Only seeds.",
        "end:success Only seeds.",
        ".",
    ]
    blocks = [
        block
        for line in done.lines
        if line["type"] == "assistant"
        for block in line["message"]["content"]
    ]
    assert [block["input"] for block in blocks if block["type"] == "tool_use"] == [
        {"command": "ls -l"}
    ]
    assert done.init["model"] == "grey-1" and done.init["shim"]["unattended"]
    usage = done.result["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (
        90,
        140,
        10,
    )
    record = box.read_record()
    assert (
        record["arguments"] == ["talk", "--calm", "--voice", "grey-1"] and record["stdin"] == "hi"
    )
    assert record["environment"]["PARROT_COLOUR"] == "green"


@pytest.mark.parametrize(
    ("flag", "effort", "expected_args", "complaint"),
    [
        ("--try", "high", ["--try", "high"], ""),
        ("--try", "MAX", ["--try", "high"], ""),
        (
            "--try",
            "nonsense",
            [],
            "--effort 'nonsense' has no effect; the levels are low, medium, high, xhigh, max",
        ),
        (
            "",
            "high",
            [],
            "--effort has no effect: parrot has no effort setting",
        ),
    ],
)
def test_effort_is_mapped_to_profile_levels_or_reported_as_ignored(
    box, flag, effort, expected_args, complaint
):
    model = '  { when = "model", args = ["--voice", "{model}"] },\n'
    added = f'  {{ when = "effort", args = ["{flag}", "{{effort}}"] }},\n' if flag else ""
    levels = '\nefforts = ["low", "high"]\n' if flag else "\n"
    write(box, PARROT.replace(model, model + added).replace("[launch]\n", f"[launch]{levels}"))
    box.create_fake(["read"], ["record", str(box.recording)], ["out", NIGHT], name="parrot")
    done = box.run_claude(*ASK, "--effort", effort, SHIM_VENDOR="parrot")
    assert box.read_record()["arguments"] == ["talk", "--calm", *expected_args]
    assert (complaint in done.stderr) and (complaint or "no effect" not in done.stderr)


def test_model_without_a_profile_flag_is_reported_as_ignored(box):
    write(
        box,
        PARROT.replace('  { when = "model", args = ["--voice", "{model}"] },\n', "").replace(
            'model = "voice"\n', ""
        ),
    )
    box.create_fake(["out", NIGHT], name="parrot")
    done = box.run_claude(*ASK, "--model", "parrot:grey-1", SHIM_VENDOR=None)
    assert done.init["model"] == "unknown"
    assert "--model has no effect: parrot has no flag for it" in done.stderr


def test_resume_passes_the_vendor_session_id_of_the_profile(box):
    write(box)
    box.create_fake(["read"], ["record", str(box.recording)], ["out", NIGHT], name="parrot")
    session = box.run_claude(*ASK, SHIM_VENDOR="parrot").init["session_id"]
    done = box.run_claude("-p", "and now?", *ASK[2:], "--resume", session)
    assert done.init["session_id"] == session
    assert box.read_record()["arguments"] == ["talk", "--calm", "--perch", "perch-7", "and now?"]


def test_prompt_file_is_private_and_removed_after_the_child_exits(box):
    file = PARROT.replace('via = "arg"', 'via = "file"').replace("prompt_argument", "prompt_file")
    write(
        box,
        file.replace('"{prompt}"', '"--tune", "{prompt_file}"').replace(
            "env = {", 'env_unset = ["CAGE"]\nenv = {'
        ),
    )
    recorded = box.path / "heard"
    script = f'path=$4; ls -l "$path" > {recorded}; cat "$path" >> {recorded}; echo "$path $CAGE" >> {recorded}\n'
    box.write_program("parrot", script + f"cat <<'END'\n{NIGHT}END\n")
    done = box.run_claude(*ASK, SHIM_VENDOR="parrot", CAGE="open")
    assert done.result["result"] == "Only seeds."
    mode, prompt_line = recorded.read_text().splitlines()
    assert (
        mode.startswith("-rw-------")
        and prompt_line.startswith("hi")
        and prompt_line.endswith(".txt ")
    )
    assert not os.path.exists(prompt_line[2:-1]) and prompt_line[2:].startswith(str(box.state))


def test_prompt_file_is_removed_if_the_program_cannot_start(box):
    file = PARROT.replace('via = "arg"', 'via = "file"').replace("prompt_argument", "prompt_file")
    write(box, file.replace('"{prompt}"', '"--tune", "{prompt_file}"'))
    path = box.write_program("parrot", "")
    Path(path).write_text("#!/nowhere/at/all\n")
    done = box.run_claude(*ASK, SHIM_VENDOR="parrot")
    assert done.result["is_error"] and list(box.state.rglob("*.txt")) == []


@pytest.mark.parametrize(("stdin", "is_pipe"), [("devnull", False), ("pipe", True)])
def test_profile_stdin_option_selects_a_pipe_or_devnull(box, stdin, is_pipe):
    write(box, PARROT.replace("env = {", f'stdin = "{stdin}"\nenv = {{'))
    end = NIGHT.splitlines()[-1]
    script = f"""word=no; [ -p /dev/stdin ] && word=yes; cat
printf '{{"type":"squawk","sound":"%s"}}\\n' $word
echo '{end}'
"""
    box.write_program("parrot", script)
    done = box.run_claude("-p", "say something", *ASK[2:], SHIM_VENDOR="parrot")
    assert done.result["result"] == ("yes" if is_pipe else "no")


def test_session_id_that_does_not_match_the_profile_is_not_passed(box):
    """Threat: a session id from the vendor's output becomes an argument."""
    write(box)
    box.create_fake(
        ["record", str(box.recording)], ["out", NIGHT.replace("perch-7", "evil:7")], name="parrot"
    )
    session = box.run_claude(*ASK, SHIM_VENDOR="parrot").init["session_id"]
    os.unlink(box.recording)
    done = box.run_claude("-p", "and now?", *ASK[2:], "--resume", session)
    assert "is not a session id of parrot" in done.result["errors"][0]
    assert not box.recording.exists(), "nothing was started"


def test_permission_mode_missing_from_the_profile_is_refused(box):
    write(box)
    done = box.run_claude(*ASK, "--permission-mode", "plan", SHIM_VENDOR="parrot")
    assert done.status == 1 and "plan" in done.result["errors"][0] and done.cause == "refused"


def test_vendors_command_lists_the_profile_vendor(box):
    write(box)
    rows = json.loads(box.run_shim("vendors", "--json").stdout)
    (row,) = (row for row in rows if row["name"] == "parrot")
    assert (
        row["modes"] == ["default", "bypassPermissions"]
        and row["unattended"]
        and "resume" in row["can"]
    )


def test_translate_command_translates_a_saved_stream(box):
    write(box)
    done = box.run_shim("translate", "parrot", "--stable-ids", stdin=NIGHT.encode())
    assert summarize_lines(done.lines)[-2:] == ["end:success Only seeds.", "."]


def test_invalid_profile_is_refused_with_file_line_and_key(box):
    path = write(box, PARROT.replace('emit = "usage"', 'emit = "usages"'))
    done = box.run_claude(*ASK, SHIM_VENDOR="parrot")
    line = PARROT.splitlines().index('emit = "usage"') + 1
    assert done.status == 1
    assert (
        f'{path}:{line}: event[5].emit is "usages"; it must be one of session, text'
        in done.result["errors"][0]
    )


def test_invalid_profile_is_reported_and_other_vendors_are_listed(box):
    path = write(box, PARROT.replace("schema = 1", "schema = 9"))
    done = box.run_shim("vendors", "--json")
    names = [row["name"] for row in json.loads(done.stdout)]
    assert done.status == 0 and "parrot" not in names and "qwen" in names
    assert f"{path}:2: schema is 9; it must be 1" in done.stderr
    done = box.run_claude(*ASK, SHIM_VENDOR=None)
    assert "no vendor is set" in done.result["errors"][0]


def test_profile_with_invalid_toml_is_refused_with_its_line(box):
    path = write(box, "schema = 1\nid = \n")
    done = box.run_claude(*ASK, SHIM_VENDOR="parrot")
    assert (
        f"{path} is not TOML" in done.result["errors"][0] and "line 2" in done.result["errors"][0]
    )


def test_profile_is_loaded_from_the_folder_of_shim_config(box):
    path = write(box)
    other_folder = box.path / "elsewhere"
    (other_folder / "vendors").mkdir(parents=True)
    os.replace(path, other_folder / "vendors" / "parrot.toml")
    (other_folder / "config.toml").write_text('vendor = "parrot"\n')
    box.create_fake(["out", NIGHT], name="parrot")
    assert (
        box.run_claude(*ASK, SHIM_CONFIG=str(other_folder / "config.toml")).result["result"]
        == "Only seeds."
    )


def test_profiles_and_adapters_are_not_loaded_from_the_working_directory(box):
    """Threat: a cloned repository contains a profile or an adapter."""
    write(box, PARROT.replace("unattended = true", 'adapter = "beak:Beak"'))
    for folder in (box.cwd, box.cwd / "vendors", box.cwd / ".config" / "shim" / "vendors"):
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "crow.toml").write_text(PARROT.replace('"parrot"', '"crow"'))
        (folder / "beak.py").write_text("raise SystemExit('the working directory ran')\n")
    assert "unknown vendor 'crow'" in box.run_claude(*ASK, SHIM_VENDOR="crow").stderr
    done = box.run_claude(*ASK, SHIM_VENDOR="parrot")
    assert "the module is in the profile's folder" in done.result["errors"][0]


def test_adapter_of_a_profile_handles_events_before_the_rules(box):
    path = write(box, PARROT.replace("unattended = true", 'adapter = "beak:Beak"'))
    (path.parent / "beak.py").write_text(
        "from shim.profiles.profile import ProfileTranslator\n\n\n"
        "class Beak(ProfileTranslator):\n"
        '    """Louder."""\n\n'
        "    def on_event(self, event):\n"
        "        if event.get('type') == 'squawk':\n"
        "            self.turn.add_text(event['sound'].upper())\n"
        "            return True\n"
        "        return False\n"
    )
    box.create_fake(["out", NIGHT], name="parrot")
    assert box.run_claude(*ASK, SHIM_VENDOR="parrot").result["result"] == "ONLY SEEDS."


@loop_over_rows(
    "text",
    [
        '{"a":[1,2.5,-1e3,"\\u00e9\\ud83d\\ude00",true,null]}',
        '"x"',
        "12345678901234567890",
        '{"a":{"a":{}}}',
        "NaN",
    ],
)
def test_cache_parser_matches_json_loads(text):
    ours, theirs = profile_files._parse_json(text.encode()), json.loads(text)
    assert repr(ours) == repr(theirs)


@loop_over_rows("text", ["", "{", '{"a":1} {}', "nonsense", "\x80", '["\n"]', "[" * 100_000])
def test_cache_parser_rejects_invalid_json(text):
    with pytest.raises((ValueError, RecursionError)):
        profile_files._parse_json(text.encode("latin-1"))


def test_parsed_profile_is_cached_until_the_file_changes(local_box):
    path = write(local_box)
    register_user_profiles(os.environ)
    assert get_adapter("parrot").shutdown.interrupt_signal == "SIGINT"
    (stored_file,) = (local_box.state / "profiles").iterdir()
    assert stored_file.stat().st_mode & 0o777 == 0o600
    remembered = json.loads(stored_file.read_bytes())
    remembered["table"]["launch"]["interrupt"] = {"signal": "SIGTERM"}
    stored_file.write_text(json.dumps(remembered))
    assert get_adapter("parrot").shutdown.interrupt_signal == "SIGTERM", "it is read from there"
    path.write_text(PARROT + "# another size\n")
    assert get_adapter("parrot").shutdown.interrupt_signal == "SIGINT"


@pytest.mark.parametrize(
    "wrong", ["nan", "inf", "2026-11-22", "2026-11-22T10:00:00Z", "99999999999999999999"]
)
def test_toml_value_without_a_json_form_is_refused_on_every_load(local_box, wrong):
    write(
        local_box,
        PARROT.replace(
            'command = ["parrot", "talk"]', f'command = ["parrot", "talk"]\nlogin = {wrong}'
        ),
    )
    register_user_profiles(os.environ)
    for _ in range(2):
        with pytest.raises(FrontendError, match=r"launch\.login is .*; it must be a string"):
            get_adapter("parrot")


def test_thread_total_usage_is_not_counted_twice_after_resume(box):
    text = PARROT.replace('"request"', '"thread_total"')
    write(box, text.replace('emit = "usage"\nusage', 'emit = "result"\nusage'))
    night = format_ndjson(
        {"type": "wake", "perch": "perch-7", "voice": "grey-1"}, {"type": "squawk", "sound": "a"}
    )
    results = []
    for input_tokens, cached_tokens, output_tokens in ((100, 20, 7), (260, 40, 17)):
        box.create_fake(
            [
                "out",
                night
                + format_ndjson(
                    {
                        "type": "breath",
                        "heard": input_tokens,
                        "known": cached_tokens,
                        "said": output_tokens,
                    }
                ),
            ],
            name="parrot",
        )
        done = box.run_claude(
            *ASK, *results and ["--resume", results[0]["session_id"]], SHIM_VENDOR="parrot"
        )
        results.append(done.result)
    used = [
        (result["usage"]["input_tokens"], result["usage"]["cache_read_input_tokens"])
        for result in results
    ]
    assert used == [(80, 20), (140, 20)]
    assert [result["usage"]["output_tokens"] for result in results] == [7, 10]


@pytest.mark.parametrize("broken", ["", "[]", '{"key": 1}', '{"key": "x", "table": []}', "\xff"])
def test_broken_profile_cache_is_rebuilt(local_box, broken):
    write(local_box)
    register_user_profiles(os.environ)
    get_adapter("parrot")
    (stored_file,) = (local_box.state / "profiles").iterdir()
    stored_file.write_text(broken, encoding="latin-1")
    assert get_adapter("parrot").programs == ("parrot",)


def test_user_profile_overrides_a_bundled_profile(local_box):
    write(local_box, PARROT.replace('id = "parrot"', 'id = "opencode"'), "opencode.toml")
    register_user_profiles(os.environ)
    assert get_adapter("opencode").programs == ("parrot",)
    assert get_adapter("kilo").programs == ("kilo",), "what extends the bundled one still does"


def test_user_profile_can_extend_a_bundled_profile(local_box):
    write(
        local_box,
        'schema = 1\nid = "mine"\nextends = "opencode"\n[launch]\ncommand = ["mine"]\n',
        "mine.toml",
    )
    register_user_profiles(os.environ)
    assert (get_adapter("mine").programs, get_adapter("mine").modes) == (
        ("mine",),
        get_adapter("opencode").modes,
    )


def test_user_profile_can_extend_a_profile_that_extends_another(local_box):
    write(
        local_box,
        'schema = 1\nid = "mine"\nextends = "kilo"\n[launch]\ncommand = ["mine"]\n',
        "mine.toml",
    )
    register_user_profiles(os.environ)
    assert (get_adapter("mine").programs, get_adapter("mine").modes) == (
        ("mine",),
        get_adapter("opencode").modes,
    )


def test_user_profile_can_extend_the_bundled_profile_of_the_same_id(local_box):
    write(
        local_box,
        'schema = 1\nid = "opencode"\nextends = "opencode"\nunattended = false\n',
        "opencode.toml",
    )
    modes = get_adapter("opencode").modes
    register_user_profiles(os.environ)
    assert get_adapter("opencode").modes == modes and not get_adapter("opencode").unattended


@pytest.mark.parametrize(
    "code", ["import nothing_of_that_name", "1 / 0", "def", "Beak = 3", "class Beak: pass"]
)
def test_invalid_adapter_is_refused_with_file_and_line(local_box, code):
    path = write(local_box, PARROT.replace("unattended = true", 'adapter = "beak:Beak"'))
    (path.parent / "beak.py").write_text(code + "\n")
    register_user_profiles(os.environ)
    with pytest.raises(FrontendError, match=f'{path}:4: adapter is "beak:Beak"; it must be '):
        get_adapter("parrot")


def test_extending_a_user_profile_is_refused(local_box):
    write(local_box)
    path = write(local_box, 'schema = 1\nid = "mine"\nextends = "parrot"\n', "mine.toml")
    register_user_profiles(os.environ)
    with pytest.raises(
        FrontendError,
        match=f'{path}:3: extends is "parrot"; it must be a bundled profile: acai, amp,',
    ):
        get_adapter("mine")


@pytest.mark.parametrize(
    "name", ["Parrot.toml", "my bird.toml", "-x.toml", "parrot.toml.bak", ".toml"]
)
def test_profile_file_with_an_invalid_vendor_name_is_ignored(local_box, name):
    before = set(VENDORS)
    write(local_box, name=name)
    register_user_profiles(os.environ)
    assert set(VENDORS) == before


def test_registering_another_config_folder_removes_old_profiles(local_box):
    write(local_box)
    register_user_profiles(os.environ)
    assert "parrot" in VENDORS
    register_user_profiles({**os.environ, "XDG_CONFIG_HOME": str(local_box.path / "nowhere")})
    assert "parrot" not in VENDORS


def test_turn_of_a_bundled_vendor_imports_no_profile_modules(box):
    """Modules that are not needed are not imported, so that the start is fast."""
    write(box)
    script = (
        "import sys; from shim.__main__ import main\n"
        "sys.argv = ['shim', 'claude', '-p', 'hi', '--output-format', 'stream-json', '--verbose']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted(name for name in sys.modules if '.profiles.' in name or name == 'tomllib'), file=sys.stderr)\n"
    )
    import subprocess
    import sys

    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        env=box.build_environment(SHIM_VENDOR="demo", SHIM_BIN=box.create_demo_program()),
        cwd=box.cwd,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.stderr.splitlines()[-1] == "[]"
