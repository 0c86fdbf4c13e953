"""The table of all threats with the tests of the defense against each."""

from sweeps import loop_over_rows

from tests.test_contract import read_tests

ROWS = """
our own flags are smuggled in by a value
    test_threats.py::test_shim_flags_are_parsed_only_in_option_position
    test_threats.py::test_frontend_cannot_set_the_installed_options
a prompt begins with a dash or an @, is a megabyte, has NUL
    test_threats.py::test_prompt_is_passed_to_the_vendor_as_text
    test_threats.py::test_prompt_in_an_argument_is_not_run_by_a_shell
    test_threats.py::test_prompt_of_a_megabyte_reaches_the_vendor
    test_threats.py::test_prompt_with_nul_is_refused_with_a_message
    test_threats.py::test_system_prompt_with_nul_is_an_error
    test_spawn_error.py::test_prompt_above_the_argument_limit_reaches_every_vendor_on_stdin
    test_spawn_error.py::test_system_prompt_above_the_argument_limit_is_refused_with_its_size
a recording that is played is trusted, or chosen by somebody else
    test_replay.py::test_model_settings_and_installation_cannot_select_a_recording
    test_replay.py::test_invalid_replay_path_is_refused_with_an_error_result
    test_replay.py::test_replay_refuses_a_named_pipe_without_waiting
    test_selection.py::test_session_of_another_vendor_is_not_resumed_by_a_replay
    test_replayer.py::test_number_of_pending_input_lines_is_bounded
    test_replayer.py::test_replay_waits_for_a_stdin_line_until_a_timeout
a frontend's ids and names are paths or flags
    test_threats.py::test_ids_and_names_that_look_like_paths_or_flags_are_refused
    test_threats.py::test_session_id_that_is_not_a_uuid_is_refused
a vendor's ids become file names or arguments
    test_threats.py::test_unsafe_vendor_session_id_is_neither_stored_nor_passed_on
    test_threats.py::test_tampered_state_file_is_not_used
    test_transcript.py::test_invalid_session_id_creates_no_file
    test_cast_fixture.py::test_vendor_name_cannot_leave_the_fixtures_folder
    test_cast_fixture.py::test_case_name_cannot_leave_the_vendor_folder
the working directory chooses what is run
    test_threats.py::test_program_in_the_working_directory_is_not_run
    test_threats.py::test_relative_program_path_is_refused
    test_threats.py::test_config_in_the_working_directory_is_not_read
    test_threats.py::test_relative_xdg_config_home_is_ignored
    test_threats.py::test_modules_in_the_working_directory_are_not_imported
    test_threats.py::test_launcher_in_the_working_directory_is_not_run
    test_doctor.py::test_program_in_the_working_directory_is_rejected_with_a_note
state is a link, somebody else's, or shared
    test_threats.py::test_symlinked_state_directory_is_not_used
    test_threats.py::test_state_directory_open_to_other_users_is_not_used_with_a_warning
    test_threats.py::test_symlink_at_a_state_file_is_replaced_without_changing_its_target
    test_threats.py::test_state_files_are_private_to_the_user
    test_files.py::test_directory_of_another_user_is_refused
    test_files.py::test_named_pipe_at_a_file_path_reads_as_none
    test_threats.py::test_named_pipe_instead_of_a_config_file_is_refused_without_blocking
    test_cast_command.py::test_pipe_or_device_is_rejected_as_a_recording
    test_transcript.py::test_symlink_at_the_file_path_is_not_followed
    test_install.py::test_symlink_target_is_never_overwritten
    test_recording.py::test_symlink_at_the_record_path_is_not_followed
    test_recording.py::test_existing_file_is_not_overwritten_and_the_turn_continues
    test_recording.py::test_unwritable_record_folder_does_not_fail_the_turn
    test_rewrite.py::test_redaction_refuses_a_replaced_file
    test_cast_command.py::test_redact_does_not_write_through_links_or_over_files
    test_cast_fixture.py::test_existing_fixture_folder_is_not_overwritten
    test_threats.py::test_turn_completes_if_the_state_directory_is_unusable
    test_threats.py::test_turn_completes_if_the_home_is_not_a_directory
    test_abnormal_exits.py::test_unusable_state_folder_does_not_fail_the_turn
an event is forged inside a line that had to be mended
    test_threats.py::test_forged_json_after_tool_output_on_a_line_is_ignored
    test_threats.py::test_forged_result_does_not_make_a_truncated_turn_succeed
    test_persistent_driver.py::test_permission_request_in_a_repaired_line_is_ignored
    test_threats.py::test_forged_line_is_ignored_after_any_repair
a line, a kind, an id, a depth or stderr never ends
    test_threats.py::test_diagnostics_of_endless_output_are_bounded
    test_threats.py::test_error_message_is_bounded_if_stderr_is_flooded
    test_diagnostics.py::test_kinds_over_the_limit_are_counted_as_overflow
    test_diagnostics.py::test_samples_and_kinds_are_truncated_to_200_characters
    test_persistent_driver.py::test_messages_beyond_the_queue_limit_are_all_answered
    test_transcript.py::test_file_size_is_limited
    test_bounds.py::test_repeated_turn_method_does_not_grow_memory
    test_bounds.py::test_repeated_vendor_event_does_not_grow_memory
    test_bounds.py::test_repeated_control_traffic_does_not_grow_memory
    test_inbound_limit.py::test_line_of_the_child_above_the_limit_is_skipped_and_the_turn_succeeds
    test_inbound_limit.py::test_stdin_line_above_the_limit_is_skipped_with_a_warning
    test_hostile_input.py::test_repairable_damage_does_not_change_the_output
    test_recording.py::test_recording_stops_at_record_max_bytes
    test_recorder.py::test_hanging_disk_uses_bounded_memory_and_warns_once
    test_secrets.py::test_streams_are_separate_and_json_paths_are_bounded
    test_verify.py::test_line_above_the_size_limit_is_reported
    test_verify.py::test_number_of_stored_findings_is_limited_and_the_rest_counted
    test_pattern_search.py::test_slow_pattern_times_out_and_restores_the_alarm_signal
what a vendor prints is obeyed by a terminal
    test_threats.py::test_run_output_escapes_control_characters
    test_threats.py::test_error_messages_escape_control_characters
    test_threats.py::test_vendor_list_escapes_control_characters
    test_replay.py::test_replay_removes_control_characters_on_a_terminal
    test_doctor.py::test_control_characters_in_program_output_are_escaped
    test_replay.py::test_replay_of_an_invalid_recording_prints_a_single_error_line
    test_replay.py::test_recording_of_an_unknown_vendor_is_refused_without_escapes
    test_selection.py::test_unrecorded_prompt_is_an_error_that_lists_the_recorded_prompts
    test_replay_check.py::test_different_output_is_reported_with_its_line_without_escape_sequences
    test_renderer.py::test_brackets_are_not_interpreted_as_markup
    test_cast_list.py::test_markup_and_escapes_in_a_recording_are_not_interpreted
    test_cast_stats.py::test_markup_and_escapes_in_a_recording_are_escaped
    test_show.py::test_rendered_recording_escapes_control_characters
    test_show.py::test_followed_recording_escapes_control_characters
    test_show.py::test_live_run_escapes_control_characters
    test_show.py::test_fixture_recordings_are_rendered_without_control_characters
    test_session_commands.py::test_session_names_are_printed_without_control_characters
    test_show.py::test_markdown_links_images_html_and_entities_are_rendered_as_text
    test_show.py::test_control_code_filter_removes_controls_and_links
    test_cast_command.py::test_verify_escapes_terminal_sequences_and_markup
    test_cast_command.py::test_redact_escapes_terminal_sequences_and_markup
    test_cast_command.py::test_fixture_escapes_terminal_sequences_and_markup
    test_conform.py::test_table_output_escapes_control_characters_and_markup
    test_conform.py::test_hostile_command_line_is_printed_without_control_characters
a question is forged in what a terminal draws, or a real one is hidden
    test_terminal_injection.py::test_session_output_cannot_send_control_characters_to_a_terminal
    test_terminal_injection.py::test_session_output_to_a_pipe_contains_no_control_characters
    test_terminal_injection.py::test_keys_do_not_answer_a_permission_prompt_forged_by_the_model
    test_terminal_injection.py::test_real_permission_prompt_stays_above_the_answer_keys_after_a_forgery
    test_terminal_injection.py::test_server_frames_cannot_send_control_characters_to_a_terminal
    test_renderer.py::test_prompt_contains_the_complete_command_and_arguments
    test_input_controller.py::test_typed_text_does_not_answer_a_prompt
    test_input_controller.py::test_key_within_the_grace_period_does_not_answer_a_prompt
what a model or a vendor says is script or HTML in an export
    test_export_html.py::test_csp_allows_only_the_embedded_script_and_style
    test_export_html.py::test_page_loads_no_external_resources
    test_export_html.py::test_hostile_text_does_not_change_the_page_structure
    test_export_html.py::test_embedded_json_escapes_html_characters_of_the_text
    test_export_html.py::test_control_characters_are_not_in_the_page
    test_markdown_tree.py::test_hostile_markdown_produces_only_allowed_elements
    test_markdown_tree.py::test_non_web_link_is_rendered_as_text
    test_export_markdown.py::test_hostile_text_produces_no_html_no_image_and_no_open_fence
    test_export_markdown.py::test_mentions_and_issue_references_are_disabled
    test_export_markdown.py::test_fence_is_longer_than_any_fence_in_its_text
    test_export_markdown.py::test_control_characters_are_not_in_the_output
    test_export_command.py::test_export_does_not_write_through_a_symlink
    test_cast_stats.py::test_markup_and_escapes_in_a_recording_are_escaped
    test_cast_stats.py::test_html_page_contains_all_statistics_and_no_scripts
a frontend gets more permission than it asked for
    test_policy.py::test_allow_rule_permits_only_matching_calls
    test_persistent_driver.py::test_permission_request_is_denied_without_stream_json_output
    test_persistent_driver.py::test_deny_rule_answers_the_vendor_request_and_the_turn_continues
    test_persistent_driver.py::test_denied_call_that_ran_without_a_request_ends_the_turn
a vendor sees the tokens of another
    test_threats.py::test_vendor_environment_excludes_claude_and_shim_variables
    test_environment.py::test_variable_listed_by_the_vendor_is_passed_on
a secret reaches a log, a transcript, an error, a spilled file or a cast
    test_threats.py::test_secret_is_redacted_from_stdout_and_stderr
    test_threats.py::test_secret_is_redacted_from_the_log
    test_threats.py::test_secret_is_redacted_from_the_transcript
    test_threats.py::test_secret_on_stderr_is_redacted_from_the_result
    test_threats.py::test_secret_is_redacted_from_spilled_files
    test_recording.py::test_planted_secrets_are_redacted_in_the_recording_and_the_log
    test_secrets.py::test_secret_split_over_deltas_is_redacted
    test_secrets.py::test_secret_across_two_chunks_of_a_line_is_redacted
    test_cast_command.py::test_redact_removes_detected_secrets_and_patterns_from_every_stream
    test_cast_fixture.py::test_unredacted_recording_requires_a_redact_option
a secret reaches an export
    test_export_html.py::test_secrets_are_redacted_in_the_page_unless_disabled
    test_export_html.py::test_streamed_secret_is_redacted_completely
    test_export_markdown.py::test_secrets_are_redacted_in_the_description_unless_disabled
    test_export_ndjson.py::test_secrets_are_redacted_only_if_requested
    test_export_atif.py::test_redacted_export_contains_no_secret
    test_export_otel.py::test_secrets_are_redacted_in_exported_spans
    test_cast_list.py::test_secret_in_a_prompt_is_redacted
redaction itself changes what a user's file will hold
    test_threats.py::test_permission_request_input_is_not_redacted
    test_threats.py::test_hook_input_is_not_redacted
    test_threats.py::test_claude_lines_are_redacted_but_permission_requests_are_not
the drop-in finds itself, or a tool of its child calls it
    test_threats.py::test_claude_vendor_runs_the_backed_up_program
    test_threats.py::test_drop_in_does_not_run_itself_as_claude
    test_threats.py::test_symlink_to_the_drop_in_is_not_run_as_claude
    test_threats.py::test_drop_in_nested_too_deeply_is_refused
    test_threats.py::test_drop_in_that_starts_itself_exits_with_an_error
somebody else calls the tools of a frontend's process
    test_relay_server.py::test_socket_folder_is_private_and_removed_at_the_end
    test_relay_server.py::test_wrong_ticket_closes_the_connection
    test_relay_server.py::test_connection_of_another_user_is_closed
    test_relay_server.py::test_malformed_input_does_not_break_the_connection
    test_relay_server.py::test_client_that_reads_no_output_is_disconnected
    test_sdk_server_calls.py::test_mcp_call_that_differs_from_the_allowed_call_is_prompted
    test_sdk_server_calls.py::test_relay_ticket_is_not_in_argv_or_environment_and_socket_is_removed
    test_sdk_server_calls.py::test_frontend_that_closes_stdin_during_an_mcp_call_fails_the_call
another user's process, or a client that means harm, is at the socket of a session
    test_socket_attacks.py::test_process_of_another_user_cannot_connect
    test_two_users.py::test_session_files_and_environment_are_inaccessible_to_other_users
    test_two_users.py::test_commands_neither_list_nor_stop_sessions_of_another_user
    test_two_users.py::test_forged_metadata_in_a_foreign_state_folder_is_ignored
    test_socket_attacks.py::test_connection_without_a_valid_hello_is_refused
    test_socket_attacks.py::test_silent_client_is_disconnected_after_the_hello_timeout
    test_socket_attacks.py::test_connections_over_the_limit_are_refused
    test_socket_attacks.py::test_connection_flood_leaks_no_file_descriptors
    test_socket_attacks.py::test_oversized_frame_disconnects_only_its_client
    test_socket_attacks.py::test_session_survives_malformed_frames
    test_socket_attacks.py::test_client_that_never_reads_uses_bounded_memory
    test_sockets.py::test_socket_file_has_mode_0600
    test_sockets.py::test_connection_to_a_socket_of_another_user_is_refused
    test_registry.py::test_invalid_session_id_is_not_resolved_to_a_path
    test_registry.py::test_metadata_and_folders_are_accessible_only_to_the_owner
    test_registry.py::test_state_folder_accessible_to_other_users_is_rejected
a client of a session that lives on its own does what it may not
    test_hub.py::test_watch_only_client_cannot_control_the_session
    test_hub.py::test_only_the_controller_sends_messages_until_another_client_takes_over
    test_hub.py::test_only_the_owner_answers_prompts_under_the_owner_policy
    test_hub.py::test_bypass_mode_is_refused_unless_the_session_allows_bypass
    test_hub.py::test_answer_may_change_the_input_but_not_the_tool_call
    test_hub.py::test_invalid_answer_leaves_the_prompt_open
    test_hub.py::test_permission_prompt_is_sent_to_new_clients_and_resolved_once
    test_hub.py::test_hook_request_is_sent_to_the_client_that_registered_the_hook
    test_hub_interleavings.py::test_hub_invariants_hold_for_random_client_interleavings
a call runs because the frontend that would have denied it has gone
    test_hub.py::test_tool_calls_are_denied_after_the_client_with_the_hook_disconnects
    test_hub.py::test_initialize_without_hooks_does_not_remove_hooks_of_another_client
    test_hub.py::test_permission_prompt_is_denied_after_its_timeout
    test_hub.py::test_closing_the_session_denies_open_prompts_and_sends_bye
    test_unanswerable_prompts.py::test_permission_prompt_is_denied_if_no_client_can_answer
a client of such a session floods it, does not read, or says what is no frame
    test_hub.py::test_messages_are_refused_while_too_many_bytes_are_pending
    test_hub.py::test_requests_beyond_the_pending_limit_are_refused
    test_hub.py::test_client_that_does_not_read_responses_is_disconnected
    test_hub.py::test_queue_of_a_slow_client_is_bounded
    test_hub.py::test_malformed_frames_are_refused_and_too_many_disconnect_the_client
    test_hub.py::test_client_is_disconnected_unless_its_first_frame_is_hello
    test_hub.py::test_client_beyond_the_client_limit_is_disconnected
    test_hub.py::test_client_name_is_truncated_and_has_no_control_characters
another page in the same browser asks the gateway
    test_attacks.py::test_request_from_a_foreign_origin_is_rejected
    test_attacks.py::test_post_without_json_content_type_returns_415
    test_attacks.py::test_foreign_host_header_returns_403
    test_attacks.py::test_wildcard_bind_accepts_only_ip_address_hosts
    test_attacks.py::test_responses_have_no_cors_headers
    test_attacks.py::test_websocket_upgrade_is_rejected
    test_attacks.py::test_every_response_has_security_headers
    test_attacks.py::test_cross_site_navigation_loads_only_the_index_page
    test_foreign_page.py::test_foreign_page_cannot_read_sessions_or_send_messages
    test_foreign_page.py::test_gateway_refuses_a_foreign_host_name
somebody has no token for the gateway, an old one, one that may only watch, or a cookie that another port was sent
    test_attacks.py::test_request_without_a_valid_token_is_rejected_with_401
    test_attacks.py::test_token_in_a_query_string_is_rejected
    test_attacks.py::test_watch_token_is_read_only
    test_attacks.py::test_replaced_token_invalidates_cookies_and_open_streams
    test_attacks.py::test_cookie_without_a_valid_page_header_is_rejected
    test_attacks.py::test_duplicate_security_header_is_rejected
    test_tokens.py::test_tokens_are_compared_in_constant_time
    test_tokens.py::test_token_file_has_mode_0600_and_its_folder_0700
    test_tokens.py::test_token_file_is_refused_if_the_state_folder_is_not_private
somebody on the way reads what the gateway says
    test_server.py::test_non_loopback_address_requires_tls_or_a_proxy
    test_server.py::test_tls_server_accepts_https_origins_only
    test_tls.py::test_tls_cookie_is_secure_and_limited_to_the_https_origin
    test_tls.py::test_plain_http_request_to_the_tls_port_gets_no_response
    test_tls.py::test_proxied_request_is_accepted_only_for_the_configured_host_name
the gateway's token stands in a log, a list of processes, an address or a browser's history
    test_serve.py::test_address_is_printed_without_a_token_if_stdout_is_not_a_terminal
    test_serve.py::test_terminal_receives_a_login_address_that_does_not_contain_the_token
    test_tokens.py::test_login_code_expires_and_is_not_a_token
    test_foreign_page.py::test_drive_token_is_not_stored_in_browser_files
an answer is replayed, or is for another question
    test_attacks.py::test_repeated_answer_to_a_prompt_returns_409
    test_app.py::test_answer_to_an_unknown_permission_prompt_returns_404
    test_hosts.py::test_answer_to_a_prompt_of_another_session_returns_404
    test_hosts.py::test_message_posted_twice_with_the_same_id_is_sent_once
    test_attacks.py::test_ambiguous_session_id_prefix_returns_409
what a session says is a question, a script or an order for the page
    test_attacks.py::test_prompt_forged_in_message_text_creates_no_question_event
    test_attacks.py::test_session_text_contains_no_control_characters
    test_streams.py::test_line_breaks_in_data_do_not_end_a_server_sent_event
    test_streams.py::test_permission_prompt_event_contains_the_complete_input
an id in an address is a path
    test_attacks.py::test_session_id_with_path_characters_is_rejected
    test_app.py::test_unknown_session_id_returns_404
    test_app.py::test_page_and_assets_are_served_without_a_token
the gateway is flooded with connections, requests, messages or bodies that never end
    test_attacks.py::test_message_flood_returns_429
    test_attacks.py::test_stream_limit_returns_429_until_a_stream_closes
    test_attacks.py::test_oversized_content_length_is_rejected
    test_attacks.py::test_chunked_body_over_the_limit_closes_the_connection
    test_attacks.py::test_incomplete_body_times_out
    test_attacks.py::test_incomplete_request_head_times_out
    test_attacks.py::test_head_sent_byte_by_byte_does_not_extend_the_timeout
    test_attacks.py::test_keep_alive_request_has_a_separate_timeout
    test_attacks.py::test_oversized_head_is_rejected
    test_attacks.py::test_thousands_of_connections_do_not_block_new_requests
    test_attacks.py::test_idle_connections_do_not_displace_an_open_stream
    test_attacks.py::test_stalled_stream_client_is_disconnected
    test_tls.py::test_connection_without_a_tls_handshake_is_closed_after_the_timeout
a session begins with wider permissions from the web
    test_attacks.py::test_session_start_rejects_bypass_modes_and_injected_flags
    test_app.py::test_invalid_session_parameters_are_rejected_before_start
    test_hosts.py::test_switch_to_bypass_permissions_returns_403
the number of a host that has died is another process's
    test_session_commands.py::test_stop_does_not_signal_another_process_with_the_recorded_pid
    test_stop.py::test_stop_does_not_signal_a_process_that_reused_the_pid_of_a_host
a child will not die
    test_threats.py::test_child_exits_after_the_shim_is_killed
    test_child.py::test_child_that_ignores_signals_is_killed_with_its_process_group
    test_child.py::test_stop_ends_a_grandchild_outside_the_process_group
    test_conversation.py::test_daemon_started_by_the_child_is_stopped_when_the_turn_is_aborted
    test_conversation.py::test_child_that_writes_output_exits_when_the_shim_is_killed
    test_abnormal_exits.py::test_signal_ends_the_turn_with_a_result_and_stops_the_process_tree
    test_abnormal_exits.py::test_killed_frontend_leaves_no_running_process
    test_abnormal_exits.py::test_daemon_of_a_stopped_child_is_stopped
a hostile server of the fleet changes, forges, holds back or reorders messages
    test_fleet.py::test_entries_that_the_machine_has_not_signed_are_ignored
    test_fleet_registry.py::test_entry_that_the_machine_has_not_written_is_refused
    test_tunnel.py::test_messages_out_of_order_never_add_lose_or_repeat_data
    test_tunnel.py::test_message_of_another_tunnel_direction_or_sender_is_refused
    test_tunnel.py::test_hostile_server_never_adds_loses_or_repeats_data
    test_fleet_tunnels.py::test_reordered_and_lost_messages_end_the_tunnel
    test_copied_line.py::test_forged_lines_are_ignored
    test_copied_line.py::test_missing_lines_are_reported_and_repeated_ones_ignored
a command of a member of the fleet is sent again
    test_fleet.py::test_messages_that_the_server_repeats_or_forges_have_no_effect
    test_fleet_tunnels.py::test_forged_messages_are_ignored_and_repeated_ones_end_the_tunnel
    test_members.py::test_introduction_belongs_to_its_key_context_and_sender
a join file of the fleet is stolen, expired, revoked or used for more than its role
    test_fleet.py::test_stranger_expired_and_revoked_members_are_refused_with_the_reason
    test_fleet.py::test_server_limits_each_member_to_its_role
    test_fleet.py::test_machine_checks_the_role_that_the_server_does_not
    test_fleet_tunnels.py::test_machine_checks_role_session_and_expiry_without_the_server
    test_fleet_tunnels.py::test_tunnel_ends_with_the_membership
    test_fleet_tunnels.py::test_guest_has_a_limited_number_of_tunnels
    test_relay.py::test_limited_command_cannot_use_or_start_other_sessions
    test_fleet.py::test_member_of_a_session_reads_nothing_of_others
    test_fleet.py::test_body_of_a_request_gives_a_guest_no_other_session
    test_members.py::test_member_that_watches_has_no_key_for_commands
    test_fleet_clocks.py::test_membership_ends_in_time_on_a_machine_whose_clock_is_late
    test_fleet_clocks.py::test_member_is_revoked_after_the_clock_of_its_invitation_was_corrected
a member of the fleet damages the entries or the copied logs of others
    test_fleet.py::test_answers_of_the_server_change_no_entry
    test_fleet.py::test_receiver_of_an_entry_may_not_confirm_the_entry
    test_fleet.py::test_server_limits_each_member_to_its_role
a machine of the fleet is copied
    test_fleet.py::test_copied_machine_is_refused_with_both_names
    test_fleet_clocks.py::test_wrong_clock_does_not_hide_a_copied_machine
a bug of ours leaves a frontend waiting
    test_threats.py::test_internal_error_ends_in_a_result
    test_threats.py::test_malformed_events_do_not_fail_the_turn
"""


def read_rows() -> dict[str, list[str]]:
    """Return row → its tests."""
    rows: dict[str, list[str]] = {}
    names: list[str] = []
    for line in ROWS.strip().splitlines():
        if line.startswith("    "):
            names.append(line.strip())
        else:
            names = rows.setdefault(line, [])
    return rows


@loop_over_rows(("row", "names"), read_rows().items())
def test_every_threat_row_names_existing_tests(row, names):
    assert names, f"nothing holds: {row}"
    for name in names:
        module, _, test = name.partition("::")
        assert test in read_tests(module), f"there is no test {name}"
