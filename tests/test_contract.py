"""Which test proves which rule of the contract (its sections 1 to 4); `pytest -k contract` runs
them all.

A test that is named here says the rule's id in its docstring or its name. F2 is missing: we are
lenient on purpose. Of what the contract leaves open (MAY) only what is done here is listed.
"""

import ast
import re
from functools import cache
from pathlib import Path

from sweeps import loop_over_rows

RULES = """
# 1. the process
P1 MUST
    test_dropin.py::test_the_version_is_said_wherever_it_is_asked_for
    test_argv.py::test_version_is_heard_anywhere_among_the_options
    test_door.py::test_the_version_of_the_two_doors_is_the_same
P2 SHOULD
    test_door.py::test_the_version_is_said_before_anything_is_imported
    test_door.py::test_a_flag_before_it_costs_the_parser_and_no_more
P3 MUST
    test_process.py::test_print_mode_needs_no_flag
P4 MUST
    test_process.py::test_values_may_be_joined_repeated_and_empty_in_any_order
    test_conversation.py::test_a_positional_prompt_means_nothing_beside_messages
    test_argv.py::test_what_a_real_client_sends_is_understood
P5 MUST
    test_process.py::test_a_flag_that_nobody_knows_is_no_failure_and_no_vendor_sees_it
    test_argv.py::test_the_word_after_an_unknown_flag_is_its_value_when_another_word_follows
P6 MUST
    test_dropin.py::test_a_prompt_that_a_flag_swallowed_is_named
    test_process.py::test_a_flag_written_with_equals_swallows_no_prompt
    test_argv.py::test_a_variadic_flag_swallows_the_prompt
P7 MUST
    test_dropin.py::test_stdin_follows_the_positional
    test_process.py::test_a_second_positional_means_nothing
    test_conversation.py::test_a_positional_prompt_means_nothing_beside_messages
P8 MUST
    test_process.py::test_every_line_is_written_as_soon_as_it_is_known
    test_process.py::test_what_a_vendor_breaks_is_whole_on_our_stdout
    test_dropin.py::test_the_log_never_touches_stdout
P9 MUST
    test_process.py::test_what_a_vendor_breaks_is_whole_on_our_stdout
    test_properties.py::test_flipped_bytes_break_no_rule
P10 MUST
    test_process.py::test_what_a_vendor_breaks_is_whole_on_our_stdout
    test_passthrough_loop.py::test_a_line_that_was_cut_is_not_passed
    test_properties.py::test_a_stream_cut_anywhere_ends_with_one_true_result
P11 MUST
    test_process.py::test_what_a_vendor_breaks_is_whole_on_our_stdout
    test_properties.py::test_flipped_bytes_break_no_rule
P12 MUST
    test_process.py::test_no_line_is_longer_than_its_reader_can_take
P13 MUST
    test_process.py::test_the_exit_status_and_the_last_result_agree
    test_conversation.py::test_the_status_is_that_of_the_last_result
    test_conversation.py::test_an_api_error_of_one_turn_leaves_the_next_alone
    test_conversation.py::test_an_idle_conversation_that_is_terminated_says_nothing
    test_message_loop.py::test_told_to_go_it_says_one_error_result_and_takes_the_group_along
P14 MUST
    test_process.py::test_the_exit_status_and_the_last_result_agree
    test_conversation.py::test_the_status_is_that_of_the_last_result
P15 MUST
    test_conversation.py::test_an_end_of_stdin_without_a_message_says_nothing
    test_conversation.py::test_an_end_of_stdin_in_the_middle_of_a_turn_lets_it_finish
    test_process.py::test_an_idle_conversation_ends_with_its_stdin
P16 MUST
    test_process.py::test_an_idle_conversation_ends_with_its_stdin
    test_process.py::test_what_an_idle_child_is_given_to_end_stays_inside_the_sdks_patience
    test_conversation.py::test_a_child_that_ignores_its_end_is_gone_soon_after_stdin_is_closed
P17 SHOULD
    test_conversation.py::test_a_sigint_ends_the_turn_and_the_conversation
    test_message_loop.py::test_an_interrupt_closes_the_blocks_and_is_no_failure
    test_message_loop.py::test_a_second_interrupt_changes_nothing
P18 MUST
    test_conversation.py::test_a_turn_that_is_terminated_is_closed_and_its_child_ended
    test_conversation.py::test_a_process_that_belongs_to_nobody_is_ended_too
    test_conversation.py::test_what_reads_or_writes_our_pipes_ends_when_we_are_killed
    test_passthrough_loop.py::test_a_pass_through_that_is_terminated_ends_its_child
P19 SHOULD
    test_conversation.py::test_a_frontend_that_crashes_takes_a_silent_child_with_it
    test_message_loop.py::test_a_reader_that_closes_our_stdout_ends_the_child
P20 SHOULD
    test_dropin.py::test_a_silent_open_stdin_beside_a_prompt_is_not_waited_for_until_its_end
P21 MAY
    test_dropin.py::test_a_turn_of_every_vendor_is_a_turn_of_claude
# 2. the stream
S1 MUST
    test_golden.py::test_every_stream_keeps_the_contract
    test_conversation.py::test_each_message_gets_its_own_init_and_result_in_their_order
    test_properties.py::test_a_stream_cut_anywhere_ends_with_one_true_result
S2 MUST
    test_conversation.py::test_each_message_gets_its_own_init_and_result_in_their_order
    test_process.py::test_messages_may_wait_behind_initialize_and_initialize_behind_messages
S3 MUST
    test_conversation.py::test_a_chosen_session_id_is_that_of_every_line
    test_process.py::test_every_line_has_its_own_random_uuid
S4 MUST
    test_turn.py::test_blocks_of_a_reply_share_their_message_id_and_replies_do_not
    test_golden.py::test_every_stream_keeps_the_contract
S5 MUST
    test_golden.py::test_every_stream_keeps_the_contract
    test_turn.py::test_a_model_that_nobody_named_is_called_unknown
S6 MUST
    test_golden.py::test_every_stream_keeps_the_contract
    test_claude_pen.py::test_a_thinking_block_has_a_signature
    test_tools.py::test_arguments_that_are_no_object_become_one
S7 MUST
    test_golden.py::test_every_stream_keeps_the_contract
    test_tool_calls.py::test_parallel_calls_are_answered_in_the_order_of_their_results
S8 SHOULD
    test_line_pieces.py::test_bash_tells_its_output
    test_line_pieces.py::test_write_tells_what_was_written
    test_line_pieces.py::test_edit_tells_both_strings
    test_line_pieces.py::test_a_failure_is_its_text_with_a_prefix
S9 MUST
    test_claude_pen.py::test_a_result_has_every_key_that_some_client_needs
    test_golden.py::test_every_stream_keeps_the_contract
S10 MUST
    test_api_error_texts.py::test_contract_s10_a_vendors_words_become_claudes
    test_result.py::test_an_api_failure_is_a_synthetic_line_and_a_result_that_is_called_success
    test_golden.py::test_every_stream_keeps_the_contract
S11 MUST
    test_golden.py::test_every_stream_keeps_the_contract
    test_speech.py::test_fragments_are_deltas_with_partial_messages
S12 MUST
    test_golden.py::test_every_stream_keeps_the_contract
    test_speech.py::test_fragments_are_one_line_without_partial_messages
S13 MUST
    test_golden.py::test_every_stream_keeps_the_contract
    test_turn.py::test_the_usage_of_a_reply_is_in_its_message_delta
S14 SHOULD
    test_golden.py::test_every_stream_keeps_the_contract
    test_speech.py::test_what_the_model_said_is_said_whole_and_once
S15 SHOULD
    test_process.py::test_what_can_be_told_by_its_first_characters_begins_with_its_type
S16 MUST
    test_golden.py::test_every_stream_keeps_the_contract
S16b MUST
    test_process.py::test_the_exit_status_and_the_last_result_agree
    test_dropin.py::test_the_terminator_follows_the_result
    test_machine.py::test_no_verb_says_anything_after_the_result
S16c MUST
    test_golden.py::test_every_stream_keeps_the_contract
    test_tool_calls.py::test_calls_that_are_open_at_the_end_get_a_result
    test_tool_calls.py::test_a_hidden_call_is_left_out_with_its_result
    test_dropin.py::test_both_halves_of_a_hidden_call_are_left_out_everywhere
S17 MUST
    test_golden.py::test_every_stream_keeps_the_contract
    test_process.py::test_what_a_vendor_breaks_is_whole_on_our_stdout
S18 MUST
    test_conversation.py::test_the_states_of_a_session_are_said_to_those_who_asked
    test_conversation.py::test_a_turn_that_is_terminated_is_closed_and_its_child_ended
S19 MAY
    test_golden.py::test_every_stream_keeps_the_contract
S20 MAY
    test_passthrough_loop.py::test_the_second_result_of_background_work_passes
# 3. the control protocol
C1 MUST
    test_conversation.py::test_initialize_is_answered_before_any_child_exists
C2 MUST
    test_conversation.py::test_initialize_is_answered_before_any_child_exists
    test_process.py::test_messages_may_wait_behind_initialize_and_initialize_behind_messages
C3 MUST
    test_control.py::test_initialize_gives_every_key_that_a_client_reads
C4 MUST
    test_process.py::test_every_answer_has_the_envelope_of_the_real_one
    test_control.py::test_an_answer_carries_the_id_of_its_question_whatever_it_is
C5 MUST
    test_conversation.py::test_every_request_is_answered_an_unknown_one_with_an_error
    test_control.py::test_every_known_request_gets_one_answer_whatever_it_lacks
C6 MUST
    test_conversation.py::test_an_interrupt_ends_the_turn_and_the_process_lives_on
    test_conversation.py::test_an_idle_interrupt_is_a_success_and_nothing_else
    test_two_way.py::test_an_interrupt_goes_by_message_and_the_child_stays
C7 MUST
    test_conversation.py::test_a_model_and_a_mode_hold_from_the_next_turn_on
    test_two_way.py::test_a_model_and_a_mode_are_told_in_the_vendors_words
    test_control.py::test_what_cannot_be_done_is_refused_in_the_real_ones_words
    test_control.py::test_no_model_is_the_first_one_again
C8 SHOULD
    test_control.py::test_a_request_is_answered_as_it_was_measured
    test_control.py::test_what_cannot_be_done_is_refused_in_the_real_ones_words
    test_control.py::test_every_known_request_gets_one_answer_whatever_it_lacks
C8b SHOULD
    test_control.py::test_a_request_is_answered_as_it_was_measured
C9 MUST
    test_two_way.py::test_a_question_stands_behind_its_call_and_an_allowed_call_runs
    test_two_way.py::test_a_denied_call_says_the_users_words_and_is_counted
    test_two_way.py::test_a_denial_that_interrupts_ends_the_turn_although_the_vendor_would_go_on
    test_two_way.py::test_a_conversation_whose_last_turn_was_stopped_by_a_denial_is_exit_1
    test_two_way.py::test_an_error_in_place_of_an_answer_is_a_denial
    test_two_way.py::test_a_stdin_that_ends_denies_what_was_asked_and_the_turn_goes_on
    test_two_way.py::test_a_frontend_that_cannot_be_asked_denies_and_is_told
    test_control.py::test_what_a_user_allowed_for_good_is_not_asked_about_again
    test_control.py::test_a_question_is_put_to_the_frontend_in_claudes_words
C10 SHOULD
    test_two_way.py::test_an_interrupt_takes_an_open_question_back_first
C11 SHOULD
    test_two_way.py::test_hooks_hear_of_calls_and_their_denial_reaches_the_vendor
    test_conversation.py::test_a_hook_that_forbids_a_call_of_a_vendor_that_never_asks_stops_the_turn
    test_hooks.py::test_a_call_is_told_with_what_the_real_one_tells
    test_history.py::test_a_hook_is_told_where_the_transcript_is
C13 MUST
    test_conversation.py::test_a_line_that_cannot_be_read_is_skipped_with_a_word
    test_conversation.py::test_lines_that_say_nothing_to_us_are_ignored
    test_conversation.py::test_the_last_line_may_lack_its_newline
C14 MUST
    test_conversation.py::test_blocks_are_read_and_what_cannot_be_taken_is_said
C15 MUST
    test_conversation.py::test_replayed_messages_stand_behind_their_init_with_their_uuid
C16 MUST
    test_conversation.py::test_each_message_gets_its_own_init_and_result_in_their_order
    test_process.py::test_a_message_that_comes_in_the_middle_of_a_turn_waits_for_its_own
C17 MAY
    test_control.py::test_the_state_is_told_around_a_question
# 4. flags and sessions
F1 MUST
    test_dropin.py::test_text_is_the_answer_and_a_newline
    test_dropin.py::test_json_is_one_object_and_a_newline
    test_dropin.py::test_verbose_json_is_one_array_without_a_newline
F3 SHOULD
    test_process.py::test_flags_that_do_not_go_together_are_refused_and_start_nothing
F4 SHOULD
    test_dropin.py::test_without_a_prompt_the_real_ones_sentence
F5 MUST
    test_conversation.py::test_a_chosen_session_id_is_that_of_every_line
    test_dropin.py::test_a_session_goes_on_under_the_vendors_own_id
    test_dropin.py::test_a_session_that_was_forked_has_an_id_of_its_own
    test_dropin.py::test_the_last_session_of_the_directory_goes_on_with_the_vendor_that_made_it
    test_dropin.py::test_where_no_session_was_held_continue_begins_one
    test_argv.py::test_resume_is_read_in_each_of_its_forms
F6 SHOULD
    test_dropin.py::test_a_session_id_that_is_taken_is_refused
    test_process.py::test_flags_that_do_not_go_together_are_refused_and_start_nothing
F7 MUST
    test_dropin.py::test_an_unknown_session_is_said_at_once_and_starts_nothing
    test_process.py::test_an_unknown_session_ends_a_conversation_before_anything_is_answered
F8 MUST
    test_process.py::test_init_lists_what_can_run_and_nothing_else
    test_policy.py::test_a_rule_with_a_specifier_leaves_the_tool_on_the_list
F9 SHOULD
    test_process.py::test_a_model_passes_through_and_the_vendors_own_name_for_it_is_shown
F10 SHOULD
    test_process.py::test_a_limit_of_turns_ends_what_would_go_on
    test_two_way.py::test_a_limit_of_turns_counts_for_the_message_and_not_for_the_process
    test_api_error_texts.py::test_contract_f10_a_turn_that_would_go_on_beyond_its_budget_ends
    test_api_error_texts.py::test_contract_f10_a_limit_that_the_vendor_counted_is_said_in_claudes_words_first
F11 SHOULD
    test_structured.py::test_contract_f11_the_vendor_is_asked_and_its_answer_is_the_result
    test_structured.py::test_contract_f11_text_output_is_the_object_alone
    test_structured.py::test_contract_f11_an_answer_that_fits_is_a_call_and_its_result_and_an_object
    test_structured.py::test_contract_f11_every_message_of_a_conversation_is_asked_and_answered
    test_two_way.py::test_contract_f11_a_child_that_listens_is_asked_for_json_with_every_message
F11b SHOULD
    test_dropin.py::test_no_subcommand_of_claude_starts_a_vendor
    test_dropin.py::test_auth_status_says_logged_in
    test_subcommands.py::test_contract_f11b_auth_status_is_the_pretty_object_of_the_real_one
    test_subcommands.py::test_contract_f11b_auth_status_imports_nothing_heavy
F12 MAY
    test_history.py::test_a_turn_leaves_a_transcript_whatever_is_printed
"""


def read_rules() -> dict[str, tuple[str, list[str]]]:
    """A rule's id → its level and its tests."""
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
    """The tests of a module, each with what its name and its docstring say."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    nodes = ast.parse(MODULES[module].read_text(encoding="utf-8")).body
    return {
        node.name: f"{node.name} {ast.get_docstring(node)}"
        for node in nodes
        if isinstance(node, functions)
    }


def test_every_rule_that_binds_us_is_in_the_table():
    assert [rule_id for rule_id in REQUIRED if rule_id not in TABLE] == []
    assert {level for level, _ in TABLE.values()} <= {"MUST", "SHOULD", "MAY"}
    assert [
        rule_id
        for rule_id, (level, _) in TABLE.items()
        if (level == "MAY") == (rule_id in REQUIRED)
    ] == []


@loop_over_rows("rule_id", TABLE)
def test_the_tests_of_a_rule_exist_and_name_it(rule_id):
    _, names = TABLE[rule_id]
    assert names, f"{rule_id} has no test"
    for name in names:
        module, _, test = name.partition("::")
        text = read_tests(module).get(test)
        assert text is not None and test.startswith("test_"), f"there is no test {name}"
        assert re.search(rf"(?<![a-z0-9]){rule_id}(?![a-z0-9])", text, re.I), (
            f"{name} does not name {rule_id}"
        )


def test_the_tests_of_the_table_carry_its_mark(request):
    """`-k contract` finds them by it (conftest)."""
    wrong = [
        item.nodeid
        for item in request.session.items
        if (item.get_closest_marker("contract") is not None)
        != (f"{item.path.name}::{getattr(item, 'originalname', item.name)}" in NAMED)
    ]
    assert wrong == []
