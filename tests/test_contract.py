"""Lists the tests of each rule of the contract (its sections 1 to 4). `pytest -k contract` runs
them all.

A test that is listed here has the id of the rule in its docstring or its name. F2 is missing,
because the shim is intentionally lenient. Of the rules with MAY, only those that the shim
implements are listed.
"""

import ast
import re
from functools import cache
from pathlib import Path

from sweeps import loop_over_rows

RULES = """
# 1. the process
P1 MUST
    test_dropin.py::test_version_flag_prints_the_version_in_any_position
    test_argv.py::test_version_flag_is_recognized_at_any_position
    test_startup_imports.py::test_claude_command_prints_the_emulated_claude_version
P2 SHOULD
    test_startup_imports.py::test_version_flag_imports_no_further_modules
    test_startup_imports.py::test_version_flag_after_another_flag_imports_no_heavy_modules
P3 MUST
    test_process.py::test_print_mode_works_without_the_print_flag
P4 MUST
    test_process.py::test_flag_values_may_use_equals_repeat_or_be_empty_on_either_side
    test_conversation.py::test_positional_prompt_is_ignored_in_a_conversation
    test_argv.py::test_arguments_of_real_clients_are_parsed
P5 MUST
    test_process.py::test_unknown_flag_prints_a_warning_and_is_not_passed_to_the_vendor
    test_argv.py::test_argument_after_an_unknown_flag_is_its_value_if_a_prompt_follows
P6 MUST
    test_dropin.py::test_prompt_consumed_by_a_flag_is_named_in_the_error
    test_process.py::test_prompt_after_a_flag_with_equals_is_not_read_as_a_value
    test_argv.py::test_variadic_flag_consumes_the_prompt
P7 MUST
    test_dropin.py::test_stdin_is_appended_to_the_prompt_argument
    test_process.py::test_second_positional_is_ignored
    test_conversation.py::test_positional_prompt_is_ignored_in_a_conversation
P8 MUST
    test_process.py::test_each_line_is_written_without_buffering
    test_process.py::test_stdout_is_valid_utf8_ndjson_after_broken_vendor_output
    test_dropin.py::test_log_is_never_written_to_stdout
P9 MUST
    test_process.py::test_stdout_is_valid_utf8_ndjson_after_broken_vendor_output
    test_properties.py::test_flipped_bytes_preserve_the_contract
P10 MUST
    test_process.py::test_stdout_is_valid_utf8_ndjson_after_broken_vendor_output
    test_passthrough_loop.py::test_truncated_last_line_is_dropped_and_the_turn_fails
    test_properties.py::test_stream_cut_at_any_byte_ends_with_a_single_result
P11 MUST
    test_process.py::test_stdout_is_valid_utf8_ndjson_after_broken_vendor_output
    test_properties.py::test_flipped_bytes_preserve_the_contract
P12 MUST
    test_process.py::test_long_values_are_split_or_truncated_to_the_line_limit
P13 MUST
    test_process.py::test_exit_status_matches_is_error_of_the_last_result
    test_conversation.py::test_exit_status_is_that_of_the_last_result
    test_conversation.py::test_turn_after_a_failed_turn_succeeds
    test_conversation.py::test_sigterm_while_idle_emits_no_result
    test_message_loop.py::test_termination_signal_emits_an_error_result_and_ends_the_process_group
P14 MUST
    test_process.py::test_exit_status_matches_is_error_of_the_last_result
    test_conversation.py::test_exit_status_is_that_of_the_last_result
P15 MUST
    test_conversation.py::test_empty_stdin_prints_nothing_and_exits_with_status_0
    test_conversation.py::test_turn_completes_after_stdin_is_closed
    test_process.py::test_idle_conversation_exits_after_stdin_is_closed
P16 MUST
    test_process.py::test_idle_conversation_exits_after_stdin_is_closed
    test_process.py::test_idle_child_shutdown_timeouts_fit_within_the_sdk_timeout
    test_conversation.py::test_child_that_ignores_signals_is_killed_after_stdin_closes
P17 SHOULD
    test_conversation.py::test_sigint_ends_the_turn_and_exits_with_status_0
    test_message_loop.py::test_interrupt_closes_open_blocks_and_exits_with_status_0
    test_message_loop.py::test_second_interrupt_has_no_effect
P18 MUST
    test_conversation.py::test_sigterm_ends_the_turn_with_a_result_and_stops_the_child
    test_conversation.py::test_daemon_started_by_the_child_is_stopped_when_the_turn_is_aborted
    test_conversation.py::test_child_that_writes_output_exits_when_the_shim_is_killed
    test_passthrough_loop.py::test_sigterm_ends_the_child_and_exits_with_status_143
P19 SHOULD
    test_conversation.py::test_silent_child_is_stopped_when_the_frontend_crashes
    test_message_loop.py::test_stdout_closed_by_the_reader_ends_the_child
P20 SHOULD
    test_dropin.py::test_open_stdin_without_data_times_out_if_a_prompt_was_passed
P21 MAY
    test_dropin.py::test_turn_of_each_vendor_is_a_valid_claude_turn
# 2. the stream
S1 MUST
    test_golden.py::test_output_fulfils_the_contract
    test_conversation.py::test_each_message_gets_an_init_and_a_result_in_order
    test_properties.py::test_stream_cut_at_any_byte_ends_with_a_single_result
S2 MUST
    test_conversation.py::test_each_message_gets_an_init_and_a_result_in_order
    test_process.py::test_interleaved_messages_and_initialize_requests_are_all_answered
S3 MUST
    test_conversation.py::test_session_id_flag_sets_the_id_of_every_line
    test_process.py::test_every_line_has_a_unique_random_uuid
S4 MUST
    test_turn.py::test_blocks_of_a_message_share_its_id_and_messages_do_not
    test_golden.py::test_output_fulfils_the_contract
S5 MUST
    test_golden.py::test_output_fulfils_the_contract
    test_turn.py::test_missing_model_is_reported_as_unknown
S6 MUST
    test_golden.py::test_output_fulfils_the_contract
    test_writer.py::test_thinking_block_has_a_signature
    test_tools.py::test_arguments_that_are_not_an_object_are_wrapped_in_raw
S7 MUST
    test_golden.py::test_output_fulfils_the_contract
    test_tool_calls.py::test_parallel_calls_get_results_in_completion_order
S8 SHOULD
    test_line_pieces.py::test_bash_tool_use_result_contains_stdout
    test_line_pieces.py::test_write_tool_use_result_contains_path_and_content
    test_line_pieces.py::test_edit_tool_use_result_contains_both_strings
    test_line_pieces.py::test_tool_use_result_of_a_failure_is_its_text_with_a_prefix
S9 MUST
    test_writer.py::test_result_has_every_key_required_by_clients
    test_golden.py::test_output_fulfils_the_contract
S10 MUST
    test_api_error_texts.py::test_contract_s10_vendor_error_is_reported_as_a_claude_api_error
    test_result.py::test_api_failure_writes_a_synthetic_message_and_a_success_result
    test_golden.py::test_output_fulfils_the_contract
S11 MUST
    test_golden.py::test_output_fulfils_the_contract
    test_text_blocks.py::test_fragments_are_deltas_with_partial_messages
S12 MUST
    test_golden.py::test_output_fulfils_the_contract
    test_text_blocks.py::test_fragments_are_merged_into_a_single_line_without_partial_messages
S13 MUST
    test_golden.py::test_output_fulfils_the_contract
    test_turn.py::test_message_delta_contains_the_usage_of_the_message
S14 SHOULD
    test_golden.py::test_output_fulfils_the_contract
    test_text_blocks.py::test_all_text_and_thinking_fragments_are_emitted_exactly_once
S15 SHOULD
    test_process.py::test_every_line_starts_with_its_type_key
S16 MUST
    test_golden.py::test_output_fulfils_the_contract
S16b MUST
    test_process.py::test_exit_status_matches_is_error_of_the_last_result
    test_dropin.py::test_terminator_follows_the_result
    test_machine.py::test_turn_method_emits_nothing_after_the_result
S16c MUST
    test_golden.py::test_output_fulfils_the_contract
    test_tool_calls.py::test_open_calls_get_an_error_result_at_the_end_of_the_turn
    test_tool_calls.py::test_hidden_call_is_omitted_with_its_result
    test_dropin.py::test_hidden_call_and_its_result_are_omitted
S17 MUST
    test_golden.py::test_output_fulfils_the_contract
    test_process.py::test_stdout_is_valid_utf8_ndjson_after_broken_vendor_output
S18 MUST
    test_conversation.py::test_session_state_events_are_emitted_if_enabled
    test_conversation.py::test_sigterm_ends_the_turn_with_a_result_and_stops_the_child
S19 MAY
    test_golden.py::test_output_fulfils_the_contract
S20 MAY
    test_passthrough_loop.py::test_second_result_of_background_work_is_passed_through
# 3. the control protocol
C1 MUST
    test_conversation.py::test_initialize_response_is_sent_before_the_child_starts
C2 MUST
    test_conversation.py::test_initialize_response_is_sent_before_the_child_starts
    test_process.py::test_interleaved_messages_and_initialize_requests_are_all_answered
C3 MUST
    test_control.py::test_initialize_returns_every_key_that_clients_read
C4 MUST
    test_process.py::test_control_responses_use_the_envelope_of_real_claude
    test_control.py::test_response_repeats_the_request_id
C5 MUST
    test_conversation.py::test_unknown_control_request_gets_an_error_response
    test_control.py::test_every_supported_request_gets_a_single_response
C6 MUST
    test_conversation.py::test_interrupt_ends_the_turn_and_the_next_message_succeeds
    test_conversation.py::test_interrupt_while_idle_emits_only_a_control_response
    test_persistent_driver.py::test_interrupt_is_sent_on_stdin_and_the_child_continues
C7 MUST
    test_conversation.py::test_model_and_mode_changes_apply_to_the_next_turn
    test_persistent_driver.py::test_model_and_mode_changes_are_translated_for_the_vendor
    test_control.py::test_impossible_request_returns_claude_error_text
    test_control.py::test_null_model_restores_the_initial_model
C8 SHOULD
    test_control.py::test_request_returns_the_measured_response
    test_control.py::test_impossible_request_returns_claude_error_text
    test_control.py::test_every_supported_request_gets_a_single_response
C8b SHOULD
    test_control.py::test_request_returns_the_measured_response
C9 MUST
    test_persistent_driver.py::test_permission_request_follows_its_call_and_the_allowed_call_runs
    test_persistent_driver.py::test_denied_call_returns_the_deny_message_and_is_counted
    test_persistent_driver.py::test_denial_with_interrupt_ends_the_turn
    test_persistent_driver.py::test_conversation_that_ends_with_an_interrupting_denial_exits_with_1
    test_persistent_driver.py::test_error_response_to_a_permission_request_denies_the_call
    test_persistent_driver.py::test_closed_stdin_denies_the_pending_prompt_and_the_turn_continues
    test_persistent_driver.py::test_call_is_denied_and_reported_if_the_frontend_cannot_prompt
    test_control.py::test_valid_permission_update_allows_later_calls
    test_control.py::test_permission_request_has_claude_format
C10 SHOULD
    test_persistent_driver.py::test_interrupt_cancels_the_pending_prompt_first
C11 SHOULD
    test_persistent_driver.py::test_hooks_receive_calls_and_a_hook_denial_is_sent_to_the_vendor
    test_conversation.py::test_hook_denial_stops_the_turn_of_a_vendor_without_permission_requests
    test_hooks.py::test_pre_tool_use_request_contains_the_fields_of_claude
    test_dropin_transcript.py::test_hook_input_contains_the_transcript_path
C13 MUST
    test_conversation.py::test_malformed_stdin_line_is_skipped_with_a_warning
    test_conversation.py::test_irrelevant_stdin_lines_are_ignored
    test_conversation.py::test_last_stdin_line_without_a_newline_is_processed
C14 MUST
    test_conversation.py::test_unsupported_content_block_is_omitted_with_a_notice
C15 MUST
    test_conversation.py::test_replayed_user_message_follows_init_and_preserves_its_uuid
C16 MUST
    test_conversation.py::test_each_message_gets_an_init_and_a_result_in_order
    test_process.py::test_message_received_during_a_turn_starts_the_next_turn
C17 MAY
    test_control.py::test_session_state_changes_around_a_prompt
# 4. flags and sessions
F1 MUST
    test_dropin.py::test_text_output_is_the_answer_with_a_newline
    test_dropin.py::test_json_output_is_a_single_object_with_a_newline
    test_dropin.py::test_verbose_json_output_is_an_array_without_a_newline
F3 SHOULD
    test_process.py::test_conflicting_flags_exit_with_status_1_and_start_no_child
F4 SHOULD
    test_dropin.py::test_missing_prompt_prints_the_error_of_claude
F5 MUST
    test_conversation.py::test_session_id_flag_sets_the_id_of_every_line
    test_dropin.py::test_resume_passes_the_vendor_session_id
    test_dropin.py::test_forked_session_gets_a_new_id
    test_dropin.py::test_continue_resumes_the_last_session_with_its_vendor
    test_dropin.py::test_continue_starts_a_session_if_the_directory_has_none
    test_argv.py::test_resume_accepts_every_flag_form
F6 SHOULD
    test_dropin.py::test_used_session_id_is_refused
    test_process.py::test_conflicting_flags_exit_with_status_1_and_start_no_child
F7 MUST
    test_dropin.py::test_unknown_session_id_is_refused_and_starts_no_vendor
    test_process.py::test_resume_of_an_unknown_session_exits_while_stdin_is_open
F8 MUST
    test_process.py::test_init_lists_only_tools_that_the_flags_permit
    test_policy.py::test_deny_rule_with_a_specifier_does_not_hide_the_tool
F9 SHOULD
    test_process.py::test_init_reports_the_vendor_model_name_or_the_requested_model
F10 SHOULD
    test_process.py::test_max_turns_ends_a_turn_that_would_continue
    test_persistent_driver.py::test_max_turns_is_counted_per_message_and_not_passed_to_the_vendor
    test_api_error_texts.py::test_contract_f10_turn_ends_when_a_tool_call_exceeds_the_budget
    test_api_error_texts.py::test_contract_f10_claude_limit_message_precedes_the_vendor_message
F11 SHOULD
    test_answer_schema.py::test_contract_f11_prompt_contains_the_schema_and_the_result_the_object
    test_answer_schema.py::test_contract_f11_text_output_contains_only_the_json_object
    test_answer_schema.py::test_contract_f11_valid_answer_becomes_a_structured_output_call_and_result
    test_answer_schema.py::test_contract_f11_every_message_gets_the_schema_and_structured_output
    test_persistent_driver.py::test_contract_f11_persistent_child_receives_the_schema_with_every_message
F11b SHOULD
    test_dropin.py::test_claude_subcommands_start_no_vendor
    test_dropin.py::test_auth_status_reports_logged_in
    test_subcommands.py::test_contract_f11b_auth_status_prints_indented_json
    test_subcommands.py::test_contract_f11b_auth_status_imports_no_heavy_modules
F12 MAY
    test_dropin_transcript.py::test_turn_writes_a_transcript_with_every_output_format
"""


def read_rules() -> dict[str, tuple[str, list[str]]]:
    """Return id of a rule → its level and its tests."""
    rules: dict[str, tuple[str, list[str]]] = {}
    names: list[str] = []
    for line in RULES.strip().splitlines():
        if line.startswith("    "):
            names.append(line.strip())
        elif not line.startswith("#"):
            rule_id, level = line.split()
            names = []
            rules[rule_id] = (level, names)
    return rules


TABLE = read_rules()
NAMED = frozenset(name for _, names in TABLE.values() for name in names)
REQUIRED = (
    *(f"P{number}" for number in range(1, 21)),
    *(f"S{number}" for number in range(1, 19)),
    *("S16b", "S16c"),
    *(f"C{number}" for number in range(1, 17) if number != 12),
    "C8b",
    *(f"F{number}" for number in range(1, 12) if number != 2),
    "F11b",
)
MODULES = {path.name: path for path in sorted(Path(__file__).parent.rglob("test_*.py"))}


@cache
def read_tests(module: str) -> dict[str, str]:
    """Return the tests of a module, each with its name and its docstring."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = ast.parse(MODULES[module].read_text(encoding="utf-8")).body
    return {
        node.name: f"{node.name} {ast.get_docstring(node)}"
        for node in nodes
        if isinstance(node, functions)
    }


def test_every_required_rule_is_in_the_table():
    assert [rule_id for rule_id in REQUIRED if rule_id not in TABLE] == []
    assert {level for level, _ in TABLE.values()} <= {"MUST", "SHOULD", "MAY"}
    assert [
        rule_id
        for rule_id, (level, _) in TABLE.items()
        if (level == "MAY") == (rule_id in REQUIRED)
    ] == []


@loop_over_rows("rule_id", TABLE)
def test_tests_of_a_rule_exist_and_contain_its_id(rule_id):
    _, names = TABLE[rule_id]
    assert names, f"{rule_id} has no test"
    for name in names:
        module, _, test = name.partition("::")
        text = read_tests(module).get(test)
        assert text is not None and test.startswith("test_"), f"there is no test {name}"
        assert re.search(rf"(?<![a-z0-9]){rule_id}(?![a-z0-9])", text, re.I), (
            f"{name} does not name {rule_id}"
        )


def test_tests_in_the_table_have_the_contract_mark(request):
    """`-k contract` selects tests by this mark (conftest)."""
    wrong = [
        item.nodeid
        for item in request.session.items
        if (item.get_closest_marker("contract") is not None)
        != (f"{item.path.name}::{getattr(item, 'originalname', item.name)}" in NAMED)
    ]
    assert wrong == []
