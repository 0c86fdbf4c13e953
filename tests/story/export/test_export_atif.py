"""`shim export --to atif`: the export of every fixture is a valid trajectory of its session."""

import json
from itertools import pairwise

import pytest
from atif_schema import check_trajectory
from cast_builder import build_case_recording, build_recording
from export_helpers import (
    SECRETS,
    build_assistant_line,
    build_init_line,
    build_result_line,
    build_session,
    build_session_with_secret,
    build_text_block,
    build_thinking_block,
    build_tool_result_line,
    build_tool_use,
    build_user_line,
    encode_events,
    export_recording,
)
from fixture_cases import Case, find_case, list_fixture_cases
from sweeps import choose_few_cases, loop_over_cases, loop_over_rows

from shim.core.cast.format import RecordingError
from shim.story.export.atif import MAX_DEPTH, write_recording_export


def trajectory(folder, cast, *, redact=False):
    document = json.loads(export_recording(write_recording_export, folder, cast, redact=redact))
    check_trajectory(document)
    return document


@pytest.mark.parametrize("redact", [False, True])
@loop_over_cases(list_fixture_cases(), quick=choose_few_cases)
def test_every_fixture_exports_a_valid_trajectory(case: Case, redact: bool, tmp_path) -> None:
    trajectory(tmp_path, build_case_recording(case), redact=redact)


@loop_over_cases(list_fixture_cases("pi", "qwen"), quick=choose_few_cases)
def test_truncated_recording_exports_a_valid_trajectory(case: Case, tmp_path) -> None:
    recording = build_case_recording(case)
    header = recording.index(b"\n") + 1
    for share in (0, 3, 7):
        document = trajectory(
            tmp_path, recording[: header + (len(recording) - header) * share // 10]
        )
        assert document["extra"]["recording_cut"]


def test_session_is_exported_as_steps_with_metrics(tmp_path):
    cast = build_session(
        (0.5, build_init_line(model="m-1")),
        (
            1.5,
            build_assistant_line(
                "m1",
                build_thinking_block("hm"),
                build_text_block("I look."),
                build_tool_use("c1", command="ls"),
                usage={"input_tokens": 3},
            ),
        ),
        (2.0, build_tool_result_line("c1", [{"type": "text", "text": "a\nb"}])),
        (3.0, build_assistant_line("m2", build_text_block("Two files."), model="m-2")),
        (
            3.5,
            build_result_line(
                total_cost_usd=0.25,
                usage={"input_tokens": 3, "cache_read_input_tokens": 4, "output_tokens": 5},
            ),
        ),
        vendor_version="1.2",
    )
    document = trajectory(tmp_path, cast)
    assert document["agent"] == {
        "name": "pi",
        "version": "1.2",
        "model_name": "m-1",
        "tool_definitions": [{"type": "function", "function": {"name": "Bash"}}],
    }
    assert document["session_id"] == "s-1"
    prompt, first, second = document["steps"]
    assert (prompt["source"], prompt["message"]) == ("user", "say hello")
    assert first["timestamp"] == "2026-11-20T10:00:01.500Z"
    assert (first["message"], first["reasoning_content"]) == ("I look.", "hm")
    assert first["tool_calls"] == [
        {"tool_call_id": "c1", "function_name": "Bash", "arguments": {"command": "ls"}}
    ]
    (output,) = first["observation"]["results"]
    assert (output["source_call_id"], output["content"], output["extra"]["outcome"]) == (
        "c1",
        "a\nb",
        "ok",
    )
    assert output["extra"]["duration_s"] == 0.5
    assert first["metrics"] == {"prompt_tokens": 3}
    assert second["model_name"] == "m-2" and "model_name" not in first
    totals = document["final_metrics"]
    assert (
        totals["total_prompt_tokens"],
        totals["total_completion_tokens"],
        totals["total_cached_tokens"],
    ) == (
        7,
        5,
        4,
    )
    assert (totals["total_cost_usd"], totals["total_steps"]) == (0.25, 3)


def test_tokens_per_step_sum_to_the_totals(tmp_path):
    document = trajectory(tmp_path, build_case_recording(find_case("pi/1.5.2-bash")))
    metrics = [step["metrics"] for step in document["steps"] if step["source"] == "agent"]
    totals = document["final_metrics"]
    assert sum(each["prompt_tokens"] for each in metrics) == totals["total_prompt_tokens"] > 0
    assert (
        sum(each["completion_tokens"] for each in metrics) == totals["total_completion_tokens"] > 0
    )


def test_subagent_is_exported_as_a_nested_trajectory(tmp_path):
    cast = build_session(
        (0.0, build_init_line()),
        (1.0, build_assistant_line("m1", build_tool_use("t1", "Task", subagent_type="explorer"))),
        (
            1.5,
            build_assistant_line(
                "n1", build_text_block("inside"), build_tool_use("t2", "Task"), parent="t1"
            ),
        ),
        (1.7, build_assistant_line("o1", build_text_block("deeper"), parent="t2")),
        (1.8, build_tool_result_line("t2", parent="t1")),
        (2.0, build_tool_result_line("t1", "found")),
        (3.0, build_result_line()),
    )
    document = trajectory(tmp_path, cast)
    (inner,) = document["subagent_trajectories"]
    assert (inner["trajectory_id"], inner["agent"]["name"]) == ("t1", "explorer")
    assert [step["message"] for step in inner["steps"]] == ["inside"]
    assert inner["subagent_trajectories"][0]["steps"][0]["message"] == "deeper"
    (outer,) = document["steps"][1]["observation"]["results"]
    assert outer["subagent_trajectory_ref"] == [{"trajectory_id": "t1"}]


def test_background_subagent_is_exported_after_its_call_completes(tmp_path):
    document = trajectory(tmp_path, build_case_recording(find_case("claude/2.1.327-tool-agent")))
    (inner,) = document["subagent_trajectories"]
    assert inner["steps"][0]["tool_calls"][0]["function_name"] == "Bash"


def test_cyclic_parent_ids_lose_no_steps(tmp_path):
    events = [
        build_assistant_line(f"m{number}", build_tool_use(f"c{number + 1}"), parent=f"c{number}")
        for number in range(MAX_DEPTH + 5)
    ]
    events += [
        build_assistant_line("x", build_tool_use("x"), parent="x"),
        build_assistant_line("y", build_tool_use("z"), parent="y"),
    ]
    events += [build_assistant_line("w", build_tool_use("y"), parent="z")]
    document = trajectory(
        tmp_path,
        build_session(
            *((0.1, event) for event in [build_init_line(), *events, build_result_line()])
        ),
    )

    def count(part):
        return sum(step["source"] == "agent" for step in part["steps"]) + sum(
            count(inner) for inner in part.get("subagent_trajectories", [])
        )

    assert count(document) == len(events)


def test_failed_turn_exports_its_cause_and_errors(tmp_path):
    error = build_assistant_line("m1", build_text_block("no key"), model="<synthetic>") | {
        "error": "authentication_failed"
    }
    ended = build_result_line(
        is_error=True, subtype="error_during_execution", errors=["no key"], shim={"cause": "auth"}
    )
    document = trajectory(
        tmp_path, build_session((0.0, build_init_line()), (1.0, error), (2.0, ended))
    )
    first, second = document["steps"][1:]
    assert (first["source"], first["message"]) == ("system", "no key")
    assert second["message"] == "the turn failed: not logged in or invalid API key"
    assert second["extra"]["errors"] == ["no key"]


def test_session_without_a_prompt_is_exported(tmp_path):
    argv = ["-p", "--output-format", "stream-json", "--input-format", "stream-json"]
    moments = [
        (0.0, build_init_line()),
        (1.0, build_assistant_line("m1", build_text_block("a"))),
        (2.0, build_assistant_line("m2", build_text_block("b"))),
        (3.0, build_result_line()),
    ]
    document = trajectory(tmp_path, build_session(*moments, argv=argv))
    assert [step["message"] for step in document["steps"]] == ["a", "b"]


def test_user_event_becomes_a_user_step(tmp_path):
    events = (
        build_init_line(),
        build_assistant_line("m1", build_text_block("so")),
        build_user_line("[Request interrupted by user]"),
        build_result_line(),
    )
    document = trajectory(
        tmp_path, build_session(*((float(at), event) for at, event in enumerate(events)))
    )
    assert [(step["source"], step["message"]) for step in document["steps"]] == [
        ("user", "say hello"),
        ("agent", "so"),
        ("user", "[Request interrupted by user]"),
    ]


def test_api_retry_becomes_a_system_step(tmp_path):
    retry = {
        "type": "system",
        "subtype": "api_retry",
        "attempt": 2,
        "max_retries": 10,
        "error": "overloaded",
    }
    hook = {"type": "system", "subtype": "hook_response", "exit_code": 1}
    document = trajectory(
        tmp_path,
        build_session(
            (0.0, build_init_line()), (1.0, retry), (1.0, hook), (2.0, build_result_line())
        ),
    )
    (step,) = document["steps"][1:]
    assert (step["source"], step["message"]) == ("system", "api_retry")
    assert step["extra"] == {"attempt": 2, "max_retries": 10, "error": "overloaded"}


def test_empty_recording_exports_a_single_system_step(tmp_path):
    argv = ["-p", "--output-format", "stream-json", "--input-format", "stream-json"]
    (step,) = trajectory(tmp_path, build_recording([], argv=argv))["steps"]
    assert step["source"] == "system"


def test_compaction_becomes_a_system_step(tmp_path):
    shortened = {
        "type": "system",
        "subtype": "compact_boundary",
        "compact_metadata": {"trigger": "auto"},
    }
    document = trajectory(
        tmp_path,
        build_session((0.5, build_init_line()), (1.0, shortened), (2.0, build_result_line())),
    )
    (extra,) = [step["extra"] for step in document["steps"] if step["source"] == "system"]
    assert extra == {"compact_metadata": {"trigger": "auto"}}


def test_api_error_with_subtype_success_becomes_a_system_step(tmp_path):
    ended = build_result_line(
        is_error=True, subtype="success", result="no key", shim={"cause": "auth"}
    )
    steps = trajectory(tmp_path, build_session((0.5, build_init_line()), (1.0, ended)))["steps"]
    assert [step["message"] for step in steps if step["source"] == "system"] == [
        "the turn failed: not logged in or invalid API key"
    ]


def test_timestamps_are_omitted_if_the_start_time_is_invalid(tmp_path):
    document = trajectory(
        tmp_path, build_case_recording(find_case("pi/1.5.2-bash"), started="yesterday")
    )
    assert not any("timestamp" in step for step in document["steps"])


def test_timestamps_are_in_utc_and_ascending(tmp_path):
    events = enumerate(
        (build_init_line(), build_assistant_line("m1", build_text_block("a")), build_result_line())
    )
    cast = build_session(
        *((float(at), event) for at, event in events), started="2026-12-31T23:59:59.500+01:00"
    )
    times = [step["timestamp"] for step in trajectory(tmp_path, cast)["steps"]]
    assert times[1] == "2026-12-31T23:00:00.500Z"
    assert all(before <= after for before, after in pairwise(times))


def test_child_output_is_exported_for_text_output_format(tmp_path):
    argv = ["-p", "--output-format", "text", "say hello"]
    document = trajectory(tmp_path, build_case_recording(find_case("pi/1.5.2-bash"), argv=argv))
    assert document["steps"][-1]["message"] == "Done with bash."


@loop_over_rows("secret", SECRETS)
def test_redacted_export_contains_no_secret(secret, tmp_path):
    cast = build_session_with_secret(secret)
    assert secret in export_recording(write_recording_export, tmp_path, cast).decode()
    assert secret not in json.dumps(trajectory(tmp_path, cast, redact=True))


def test_file_that_is_not_a_recording_raises_recording_error(tmp_path):
    with pytest.raises(RecordingError, match="not a recording"):
        export_recording(write_recording_export, tmp_path, encode_events(build_init_line()))
