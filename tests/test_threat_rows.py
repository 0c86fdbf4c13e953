"""Which test holds which row of the threats page: who may hurt whom, and what prevents it."""

from sweeps import loop_over_rows

from tests.test_contract import read_tests

ROWS = """
our own flags are smuggled in by a value
    test_threats.py::test_our_flags_are_taken_in_option_position_only
    test_threats.py::test_what_was_baked_in_cannot_be_said_by_a_frontend
a prompt begins with a dash or an @, is a megabyte, has NUL
    test_threats.py::test_a_prompt_is_only_ever_text
    test_threats.py::test_a_prompt_in_an_argument_meets_no_shell
    test_threats.py::test_a_prompt_of_a_megabyte_arrives
    test_threats.py::test_a_prompt_with_nul_is_refused_with_a_sentence
    test_threats.py::test_a_system_prompt_with_nul_is_an_error_and_no_crash
    test_spawn_error.py::test_a_prompt_that_is_longer_than_an_argument_may_be_reaches_every_vendor
    test_spawn_error.py::test_what_a_vendor_takes_in_an_argument_only_is_refused_with_its_size
a recording that is played is trusted, or chosen by somebody else
    test_replay.py::test_neither_a_model_nor_the_settings_nor_an_installed_file_names_a_recording
    test_replay.py::test_a_path_that_is_no_recording_is_refused_in_a_result
    test_replay.py::test_a_pipe_in_the_place_of_a_cast_is_not_waited_for
    test_choice.py::test_a_session_of_a_vendors_own_is_not_taken_over
    test_script.py::test_lines_that_nothing_waits_for_are_bounded
    test_script.py::test_a_line_that_never_comes_is_not_waited_for_for_ever
a frontend's ids and names are paths or flags
    test_threats.py::test_ids_and_names_are_no_paths_and_no_flags
    test_threats.py::test_a_session_id_that_is_no_uuid_is_refused
a vendor's ids become file names or arguments
    test_threats.py::test_an_id_of_a_vendors_own_is_no_file_name_and_no_later_argument
    test_threats.py::test_an_id_in_a_state_file_that_somebody_changed_is_not_used
    test_transcript.py::test_an_id_that_is_no_uuid_is_never_a_file_name
    test_cast_fixture.py::test_no_vendor_of_a_header_leaves_the_folder_of_fixtures
    test_cast_fixture.py::test_no_name_leaves_the_folder_of_the_vendor
the working directory chooses what is run
    test_threats.py::test_a_program_in_the_working_directory_is_not_found
    test_threats.py::test_a_relative_path_in_a_setting_is_refused
    test_threats.py::test_settings_in_the_working_directory_are_not_read
    test_threats.py::test_a_relative_settings_folder_is_not_the_working_directorys
    test_threats.py::test_modules_in_the_working_directory_are_not_imported
    test_threats.py::test_a_launcher_in_the_working_directory_is_not_found_either
    test_doctor.py::test_a_program_in_the_working_directory_is_not_taken_and_that_is_said
state is a link, somebody else's, or shared
    test_threats.py::test_a_state_folder_that_is_a_link_is_not_used
    test_threats.py::test_a_state_folder_that_others_may_enter_is_not_used_and_one_line_says_so
    test_threats.py::test_a_file_of_ours_that_became_a_link_is_replaced_and_not_written_through
    test_threats.py::test_what_is_kept_is_for_us_alone
    test_files.py::test_a_folder_of_somebody_else_is_refused
    test_files.py::test_a_pipe_in_the_place_of_a_file_does_not_hang_us
    test_threats.py::test_a_pipe_in_the_place_of_a_file_of_settings_is_not_waited_for
    test_cast_command.py::test_a_recording_that_is_a_pipe_or_a_device_is_not_waited_for
    test_transcript.py::test_a_link_in_the_place_of_the_file_is_not_followed
    test_install.py::test_a_link_is_never_written_through
    test_recording.py::test_a_link_in_the_place_of_the_cast_is_not_followed
    test_recording.py::test_a_file_that_is_there_is_not_touched_and_the_turn_goes_on
    test_recording.py::test_a_folder_that_cannot_be_written_costs_the_recording_and_not_the_turn
    test_rewrite.py::test_a_sweep_touches_no_file_that_somebody_put_there
    test_cast_command.py::test_nothing_is_written_through_a_link_or_over_a_file
    test_cast_fixture.py::test_a_folder_that_is_there_is_left_alone
    test_threats.py::test_a_turn_goes_on_where_no_state_can_be_kept
    test_threats.py::test_a_turn_goes_on_where_the_home_is_no_folder
    test_death.py::test_a_state_folder_that_cannot_be_used_costs_the_state_and_never_the_turn
an event is forged inside a line that had to be mended
    test_threats.py::test_a_line_glued_to_tool_output_is_not_believed
    test_threats.py::test_a_forged_result_does_not_make_a_turn_that_was_cut_a_success
    test_two_way.py::test_a_question_in_a_line_that_had_to_be_mended_is_not_believed
    test_threats.py::test_whatever_the_repair_a_forged_line_is_not_believed
a line, a kind, an id, a depth or stderr never ends
    test_threats.py::test_what_never_ends_is_bounded
    test_threats.py::test_a_flood_of_stderr_is_bounded
    test_account.py::test_at_most_64_kinds_are_kept_and_the_rest_is_counted_as_one
    test_account.py::test_samples_and_kinds_have_at_most_200_characters
    test_two_way.py::test_more_messages_than_may_wait_are_read_later_and_none_is_lost
    test_transcript.py::test_a_transcript_does_not_grow_beyond_its_bound
    test_bounds.py::test_a_flood_of_a_verb_grows_nothing
    test_bounds.py::test_a_flood_of_a_vendors_event_grows_nothing
    test_bounds.py::test_a_flood_between_frontend_and_vendor_grows_nothing
    test_inbound.py::test_a_longer_line_of_the_childs_is_skipped_and_the_turn_goes_on
    test_inbound.py::test_a_longer_line_of_the_frontends_is_skipped_and_said_so
    test_hostile.py::test_what_can_be_repaired_changes_nothing_that_is_said
    test_recording.py::test_a_cast_is_not_larger_than_it_may_become
    test_recorder.py::test_a_disk_that_hangs_costs_bounded_memory_and_says_so_once
    test_clean.py::test_streams_are_told_apart_and_paths_that_never_end_are_bounded
    test_verify.py::test_a_line_that_no_reader_takes_is_named_and_not_held
    test_verify.py::test_a_flood_of_findings_is_counted_and_not_kept
    test_search.py::test_an_expression_that_takes_for_ever_is_given_up
what a vendor prints is obeyed by a terminal
    test_threats.py::test_what_a_person_watches_obeys_nothing
    test_threats.py::test_an_error_obeys_nothing
    test_threats.py::test_the_list_of_vendors_obeys_nothing
    test_replay.py::test_a_terminal_obeys_nothing_of_a_recording
    test_doctor.py::test_nothing_that_a_program_says_reaches_the_terminal_as_an_order
    test_replay.py::test_what_is_no_cast_ends_in_a_sentence
    test_replay.py::test_a_cast_of_an_unknown_vendor_is_refused_and_its_name_obeys_nothing
    test_choice.py::test_a_prompt_that_nobody_recorded_is_an_error_that_lists_what_is_there
    test_replay_check.py::test_a_difference_is_shown_with_its_line_and_its_place
    test_draw.py::test_words_in_brackets_are_no_markup
    test_cast_list.py::test_nothing_that_stands_in_a_recording_is_obeyed
    test_cast_stats.py::test_markup_and_escapes_of_a_recording_are_text
    test_show.py::test_nothing_that_a_vendor_printed_is_obeyed_when_it_is_shown
    test_show.py::test_nothing_that_a_vendor_printed_is_obeyed_when_it_is_followed
    test_show.py::test_nothing_that_a_vendor_printed_is_obeyed_when_it_runs
    test_show.py::test_whatever_was_recorded_is_drawn_and_not_obeyed
    test_session_doors.py::test_a_name_is_shown_and_not_obeyed
    test_show.py::test_links_images_html_and_entities_of_a_markdown_text_are_words
    test_show.py::test_a_drawing_that_somebody_else_made_has_no_controls_and_no_links
    test_cast_command.py::test_what_is_verified_obeys_nothing
    test_cast_command.py::test_what_is_redacted_obeys_nothing
    test_cast_command.py::test_what_is_cut_obeys_nothing
    test_conform.py::test_a_person_gets_a_table_that_obeys_nothing
    test_conform.py::test_a_command_line_that_is_hostile_obeys_nothing
a question is forged in what a terminal draws, or a real one is hidden
    test_forged.py::test_nothing_that_a_session_says_is_obeyed_by_a_terminal
    test_forged.py::test_nothing_that_a_session_says_is_obeyed_in_a_pipe
    test_forged.py::test_a_question_that_a_model_writes_is_answered_by_no_key
    test_forged.py::test_the_question_behind_which_a_model_writes_another_stands_at_the_keys
    test_forged.py::test_what_a_refusal_a_driver_and_a_goodbye_say_is_obeyed_by_nobody
    test_draw.py::test_all_that_would_run_is_shown_where_a_person_answers
    test_talk.py::test_words_answer_nothing
    test_talk.py::test_a_key_that_was_on_its_way_when_the_question_came_answers_nothing
what a model or a vendor says is script or HTML in an export
    test_export_html.py::test_the_browser_may_run_this_script_and_this_style_and_load_nothing
    test_export_html.py::test_nothing_in_the_page_is_loaded_from_anywhere
    test_export_html.py::test_hostile_words_change_nothing_about_the_page
    test_export_html.py::test_the_data_has_the_words_and_none_of_the_characters_that_mean_something
    test_export_html.py::test_a_character_that_is_obeyed_is_nowhere_in_the_page
    test_markdown_tree.py::test_hostile_words_make_nothing_but_known_elements
    test_markdown_tree.py::test_a_link_that_does_not_lead_to_the_web_is_text
    test_export_markdown.py::test_hostile_words_leave_no_html_no_image_and_no_open_fence
    test_export_markdown.py::test_nobody_is_mentioned_and_nothing_is_closed
    test_export_markdown.py::test_a_fence_is_longer_than_any_in_its_text
    test_export_markdown.py::test_a_character_that_is_obeyed_is_nowhere
    test_export_command.py::test_a_link_is_never_written_through
    test_cast_stats.py::test_markup_and_escapes_of_a_recording_are_text
    test_cast_stats.py::test_a_page_has_all_of_it_and_runs_nothing
a frontend gets more permission than it asked for
    test_policy.py::test_a_call_is_allowed_beforehand_only_by_a_rule_that_says_just_it
    test_two_way.py::test_a_question_that_the_output_has_no_place_for_is_denied
    test_two_way.py::test_a_forbidden_call_is_refused_where_the_vendor_asks_and_the_turn_goes_on
    test_two_way.py::test_a_forbidden_call_that_ran_unasked_ends_the_turn
a vendor sees the tokens of another
    test_threats.py::test_a_vendor_does_not_see_what_is_claudes_or_ours
    test_environment.py::test_a_key_that_a_vendor_lists_is_handed_over
a secret reaches a log, a transcript, an error, a spilled file or a cast
    test_threats.py::test_a_secret_is_nowhere_in_what_is_printed
    test_threats.py::test_a_secret_never_reaches_a_log
    test_threats.py::test_a_secret_never_reaches_a_transcript_where_all_is_redacted
    test_threats.py::test_a_secret_in_a_stderr_never_reaches_a_result_where_all_is_redacted
    test_threats.py::test_a_secret_never_reaches_a_spilled_file_where_all_is_redacted
    test_recording.py::test_a_planted_secret_of_each_kind_is_in_no_cast_and_no_log
    test_clean.py::test_a_secret_that_is_split_over_deltas_is_not_in_the_file
    test_clean.py::test_a_secret_at_the_border_of_two_pieces_is_not_in_the_file
    test_cast_command.py::test_what_is_known_and_what_is_said_is_blanked_everywhere
    test_cast_fixture.py::test_a_cast_with_its_secrets_is_cut_only_when_it_is_said_how
a secret reaches an export
    test_export_html.py::test_a_secret_of_each_kind_is_in_no_page_unless_that_is_wanted
    test_export_html.py::test_a_secret_that_was_streamed_in_pieces_is_redacted_as_a_whole
    test_export_markdown.py::test_a_secret_of_each_kind_is_in_no_description_unless_that_is_wanted
    test_export_ndjson.py::test_no_secret_is_exported
    test_export_atif.py::test_no_secret_is_exported
    test_export_otel.py::test_no_secret_is_exported
    test_cast_list.py::test_a_secret_in_a_prompt_is_not_listed
redaction itself changes what a user's file will hold
    test_threats.py::test_a_permission_input_is_never_redacted_and_goes_back_as_it_came
    test_threats.py::test_a_hooks_input_is_never_redacted
    test_threats.py::test_a_real_claudes_lines_are_redacted_but_not_its_questions
the drop-in finds itself, or a tool of its child calls it
    test_threats.py::test_what_was_there_before_is_what_vendor_claude_runs
    test_threats.py::test_the_drop_in_never_finds_itself
    test_threats.py::test_a_link_to_the_drop_in_is_the_drop_in
    test_threats.py::test_a_fourth_of_us_is_refused
    test_threats.py::test_a_drop_in_that_starts_itself_for_ever_comes_to_an_end
somebody else calls the tools of a frontend's process
    test_mcp_door.py::test_only_we_may_enter_and_nothing_is_left_behind
    test_mcp_door.py::test_a_wrong_ticket_opens_nothing
    test_mcp_door.py::test_another_user_is_turned_away
    test_mcp_door.py::test_whatever_bytes_come_in_the_door_stays_open
    test_mcp_door.py::test_a_client_that_reads_nothing_is_let_go
    test_inside_calls.py::test_another_call_than_the_one_that_was_allowed_is_asked_about
    test_inside_calls.py::test_nothing_of_the_secret_is_on_the_command_line_or_left_behind
    test_inside_calls.py::test_a_frontend_that_hangs_up_in_the_middle_of_a_call_ends_all_of_it
another user's process, or a client that means harm, is at the socket of a session
    test_socket_attacks.py::test_a_process_of_another_user_is_not_heard
    test_two_users.py::test_no_file_socket_or_token_of_a_session_is_open_to_another_user
    test_two_users.py::test_a_command_that_names_another_users_sessions_finds_and_ends_none
    test_two_users.py::test_what_another_user_wrote_into_a_state_folder_is_not_believed
    test_socket_attacks.py::test_who_says_no_hello_has_no_place
    test_socket_attacks.py::test_a_silent_client_loses_its_place
    test_socket_attacks.py::test_only_so_many_may_come_in
    test_socket_attacks.py::test_ten_thousand_connections_leave_nothing
    test_socket_attacks.py::test_a_frame_that_is_too_large_ends_its_client_alone
    test_socket_attacks.py::test_whatever_bytes_come_in_the_session_goes_on
    test_socket_attacks.py::test_a_client_that_only_writes_costs_a_bounded_amount
    test_sockets.py::test_only_its_owner_may_enter
    test_sockets.py::test_a_socket_of_another_user_is_left_at_once
    test_registry.py::test_an_id_never_becomes_a_path
    test_registry.py::test_facts_and_folders_are_for_their_owner_alone
    test_registry.py::test_a_folder_that_others_may_enter_keeps_no_session
a client of a session that lives on its own does what it may not
    test_hub.py::test_a_watcher_may_not_drive
    test_hub.py::test_only_the_driver_says_messages_until_another_takes_over
    test_hub.py::test_only_who_drives_or_drove_last_answers_where_the_owner_does
    test_hub.py::test_bypass_permissions_cannot_be_chosen_unless_the_session_began_with_it
    test_hub.py::test_what_an_answer_changes_passes_and_its_call_stays_the_question_s
    test_hub.py::test_an_answer_that_cannot_be_given_leaves_the_question_open
    test_hub.py::test_a_question_is_asked_again_of_who_comes_and_settled_once
    test_hub.py::test_a_hook_is_asked_of_the_client_that_brought_it
    test_hub_machine.py::test_no_interleaving_of_clients_breaks_what_is_held
a call runs because the frontend that would have denied it has gone
    test_hub.py::test_nothing_runs_unjudged_because_a_client_has_gone
    test_hub.py::test_hooks_stay_with_a_client_that_is_there
    test_hub.py::test_a_question_that_waits_too_long_is_denied
    test_hub.py::test_the_end_denies_and_says_so
    test_deaf.py::test_a_question_that_nobody_who_is_here_can_answer_is_denied
    test_client_rules.py::test_a_turn_ends_under_the_rules_that_it_began_under
a client of such a session floods it, does not read, or says what is no frame
    test_hub.py::test_a_flood_of_messages_is_refused
    test_hub.py::test_requests_without_end_are_refused
    test_hub.py::test_a_client_that_asks_and_does_not_read_is_sent_away
    test_hub.py::test_a_slow_client_costs_a_bounded_amount
    test_hub.py::test_a_frame_that_cannot_be_read_is_refused_and_a_hundred_are_the_end
    test_hub.py::test_the_first_frame_is_hello
    test_hub.py::test_too_many_clients_are_sent_away
    test_hub.py::test_a_name_cannot_reach_a_terminal
another page in the same browser asks the gateway
    test_attacks.py::test_another_page_sends_nothing_in_the_users_name
    test_attacks.py::test_a_form_or_a_text_that_is_json_is_no_request
    test_attacks.py::test_a_name_that_was_bound_to_our_address_is_not_ours
    test_attacks.py::test_on_every_address_only_an_address_is_a_name
    test_attacks.py::test_nothing_is_shared_with_another_origin
    test_attacks.py::test_no_websocket_is_opened
    test_attacks.py::test_every_answer_binds_the_browser
    test_attacks.py::test_a_link_leads_to_the_page_and_to_nothing_else
    test_foreign_page.py::test_another_page_reads_nothing_and_does_nothing
    test_foreign_page.py::test_a_name_that_leads_to_the_gateway_is_refused
somebody has no token for the gateway, an old one, one that may only watch, or a cookie that another port was sent
    test_attacks.py::test_without_a_token_nothing_is_read_and_nothing_is_done
    test_attacks.py::test_a_token_in_an_address_is_not_taken
    test_attacks.py::test_a_watch_only_token_drives_nothing
    test_attacks.py::test_a_replaced_token_ends_its_cookies_and_its_open_streams
    test_attacks.py::test_the_cookie_that_another_port_of_this_name_was_sent_opens_nothing
    test_attacks.py::test_a_cookie_and_a_header_that_stand_there_twice_are_refused
    test_tokens.py::test_tokens_are_compared_in_constant_time
    test_tokens.py::test_the_file_is_for_us_alone
    test_tokens.py::test_where_no_token_can_be_kept_there_is_no_gateway
somebody on the way reads what the gateway says
    test_server.py::test_another_address_than_this_machines_own_needs_tls_or_a_proxy
    test_server.py::test_with_tls_it_answers_to_https_alone
    test_tls.py::test_over_tls_the_cookie_is_for_tls_and_for_this_name_alone
    test_tls.py::test_without_tls_nothing_is_said_there
    test_tls.py::test_behind_a_proxy_the_name_of_the_proxy_is_ours_and_no_other
the gateway's token stands in a log, a list of processes, an address or a browser's history
    test_serve.py::test_what_is_no_terminal_gets_the_address_without_a_token
    test_serve.py::test_a_terminal_gets_an_address_that_lets_in_and_has_no_token
    test_tokens.py::test_what_stands_in_an_address_is_good_for_a_while_and_for_nothing_but_to_come_in
    test_foreign_page.py::test_a_token_is_in_no_file_of_the_browsers
an answer is replayed, or is for another question
    test_attacks.py::test_a_replayed_answer_is_told_who_was_first
    test_app.py::test_an_answer_to_an_unknown_question_is_404
    test_hosts.py::test_an_answer_to_another_sessions_question_is_none
    test_hosts.py::test_a_message_that_is_posted_twice_under_one_id_is_said_once
    test_attacks.py::test_an_id_that_two_sessions_begin_with_is_no_id
what a session says is a question, a script or an order for the page
    test_attacks.py::test_a_question_that_is_forged_in_words_is_words
    test_attacks.py::test_nothing_that_a_session_says_is_more_than_printable_text
    test_streams.py::test_a_line_break_never_ends_an_event
    test_streams.py::test_a_question_is_told_with_all_that_decides_it
an id in an address is a path
    test_attacks.py::test_an_id_is_never_a_path
    test_app.py::test_an_unknown_id_is_404
    test_app.py::test_the_page_and_its_files_are_for_everybody
the gateway is flooded with connections, requests, messages or bodies that never end
    test_attacks.py::test_a_flood_of_messages_is_refused_and_ends
    test_attacks.py::test_more_streams_than_may_be_are_refused_and_their_places_come_back
    test_attacks.py::test_a_body_that_says_a_gigabyte_is_not_read
    test_attacks.py::test_a_body_without_a_length_is_cut_at_its_first_mebibyte
    test_attacks.py::test_a_body_that_never_comes_is_not_waited_for
    test_attacks.py::test_a_head_that_never_ends_is_not_waited_for
    test_attacks.py::test_a_head_that_is_said_byte_by_byte_has_no_more_time
    test_attacks.py::test_the_next_request_of_a_connection_has_its_own_time
    test_attacks.py::test_a_head_that_is_too_long_is_refused
    test_attacks.py::test_thousands_of_connections_shut_nobody_out
    test_attacks.py::test_who_streams_is_not_displaced_by_who_is_silent
    test_attacks.py::test_a_browser_that_takes_nothing_is_let_go
    test_tls.py::test_who_says_nothing_of_tls_is_let_go
a session begins with wider permissions from the web
    test_attacks.py::test_a_session_begins_with_no_wider_mode_than_it_may_from_the_web
    test_app.py::test_a_session_that_cannot_be_is_refused_before_it_begins
    test_hosts.py::test_bypass_permissions_is_chosen_from_nowhere_unless_the_session_began_with_it
the number of a host that has died is another process's
    test_session_doors.py::test_no_other_process_is_ended_that_has_the_number_of_a_host
    test_stop.py::test_a_number_that_comes_back_while_we_look_is_told_nothing
a child will not die
    test_threats.py::test_nothing_is_left_when_we_are_killed_and_the_pipes_close
    test_child.py::test_a_child_that_ignores_everything_is_killed_with_its_group
    test_child.py::test_a_grandchild_that_left_the_group_does_not_outlive_a_stop
    test_conversation.py::test_a_process_that_belongs_to_nobody_is_ended_too
    test_conversation.py::test_what_reads_or_writes_our_pipes_ends_when_we_are_killed
    test_death.py::test_a_signal_ends_a_turn_in_one_result_and_takes_the_tree_along
    test_death.py::test_a_frontend_that_is_killed_leaves_nothing_running
    test_death.py::test_a_daemon_of_a_child_that_was_stopped_is_found
a bug of ours leaves a frontend waiting
    test_threats.py::test_a_bug_of_ours_ends_in_a_result
    test_threats.py::test_a_bug_in_a_translator_costs_one_event
"""


def read_rows() -> dict[str, list[str]]:
    """A row → its tests."""
    rows: dict[str, list[str]] = {}
    names: list[str] = []
    for line in ROWS.strip().splitlines():
        if line.startswith("    "):
            names.append(line.strip())
        else:
            names = rows.setdefault(line, [])
    return rows


@loop_over_rows(("row", "names"), read_rows().items())
def test_what_holds_a_row_is_there(row, names):
    assert names, f"nothing holds: {row}"
    for name in names:
        module, _, test = name.partition("::")
        assert test in read_tests(module), f"there is no test {name}"
