"""The planted bugs: what each failure must say, and the tests that must fail. See test_planted_bugs.py."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

TESTS = Path(__file__).resolve().parents[1]
# The file that a test is in → the suite, as docs/faults.md calls it.
SUITES = {
    "test_compaction_explorer": "compaction explorer",
    "test_master_coordinator": "coordinator",
    "test_group_store": "ZooKeeper",
    "test_zookeeper_state": "ZooKeeper",
    "test_leadership": "ZooKeeper",
    "test_values": "values and maps",
    "test_map_states": "values and maps",
    "test_user_tasks": "values and maps",
    "test_local_copy": "local copies",
    "test_copy_rows": "local copies",
    "test_sorted_runs": "local copies",
    "test_state_copy": "local copies",
    "test_host_copy": "local copies",
    "test_simulator": "simulator",
    "test_own_steps": "late part in the driver",
    "test_late_forms": "late part in the driver",
    "test_late_at_once": "whole topologies",
    "test_kafka_answers": "Kafka",
    "test_kafka_consumer": "Kafka",
    "test_migrate": "taken over",
    "test_fork": "time travel",
    "test_outside": "states outside",
    "test_kafka_state": "states outside",
    "test_kafka_wire": "states outside",
    "test_http_state": "states outside",
    "test_adoption": "merging and reading",
    "test_postgres": "states outside",
    "test_stores": "stores",
    "test_few_requests": "stores",
    "test_store_warehouses": "stores",
    "test_place": "stores",
    "test_store_faults": "stores",
    "test_process_races": "races",
    "test_store_messages": "stores",
    "test_one_host": "cluster",
    "test_window_parts": "windows",
    "test_in_driver": "late part in the driver",
    "test_together": "requests",
    "test_committer": "publishing",
    "test_staging": "publishing",
    "test_log_commit": "publishing",
    "test_commit_rules": "publishing",
    "test_torn_entries": "publishing",
    "test_kernel_races": "races",
    "test_recorder": "publishing",
    "test_compactor": "merging and reading",
    "test_reading": "merging and reading",
    "test_key_reads": "merging and reading",
    "test_native_merge_files": "merging and reading",
    "test_file_merge": "merging and reading",
    "test_fitting": "merging and reading",
    "test_evolution": "publishing",
    "test_advice": "coordinator",
    "test_live_rows": "merging and reading",
    "test_sequenced": "merging and reading",
    "test_change_feed": "merging and reading",
    "test_history": "merging and reading",
    "test_views": "merging and reading",
    "test_acker": "messages",
    "test_message_executor": "messages",
    "test_settled_messages": "messages",
    "test_tracked_streams": "messages",
    "test_ledger": "messages",
    "test_queue_spout": "queues",
    "test_file_spout": "spouts",
    "test_spout_host": "spouts",
    "test_task_rows": "spouts",
    "test_kafka_reader": "Kafka",
    "test_kafka_coordinator": "Kafka",
    "test_kafka_spout": "Kafka",
    "test_kafka_values": "Kafka",
    "test_kafka_poison": "Kafka",
    "test_json_lines": "spouts",
    "test_debezium_values": "spouts",
    "test_spout_executors": "spouts",
    "test_changed_files": "spouts",
    "test_file_formats": "spouts",
    "test_late_states": "whole topologies",
    "test_timed_rules": "event time",
    "test_timed": "event time",
    "test_kept_plans": "kept plans",
    "test_class_archive": "starting",
    "test_cli": "starting",
    "test_cluster": "cluster",
    "test_rollback": "time travel",
    "test_matrix": "matrix",
    "test_replay": "time travel",
    "test_typed_values": "users' functions",
    "test_signatures": "users' functions",
    "test_types": "users' functions",
    "test_local_modules": "users' functions",
}

# The sixteen that the project promises to catch → the patch that is exactly it.
PROMISED = {
    "no fence": "20-no-fence",
    "no SetTransaction": "40-no-set-transaction",
    "metadata not pinned": "21-metadata-not-pinned",
    "opaque base wrong": "50-opaque-base-wrong",
    "advance before publish": "02-advance-before-publish",
    "success before advance": "03-success-before-advance",
    "cleanup of the current txid": "27-cleanup-of-the-current-txid",
    "a swallowed multi failure": "22-swallowed-multi-failure",
    "retry across session expiry": "23-retry-across-session-expiry",
    "corrupt value read as absent": "25-corrupt-value-read-as-absent",
    "control record not checked": "41-control-record-not-checked",
    "attempt ids reset": "01-attempt-ids-used-again-after-a-restart",
    "live read in the wrong order": "38-live-read-in-the-wrong-order",
    "MERGE without its txn ids": "39-merge-without-its-txn-ids",
    "log dropped beyond P": "30-log-dropped-beyond-what-is-merged",
    "staged files taken from a listing": "47-staged-files-taken-from-a-listing",
}


class Caught(NamedTuple):
    """How a bug is found.

    Attributes:
        says: what the failure must be about (a regex).
        tests: all of them must fail.
        needs: what they run on.
    """

    says: str
    tests: tuple[str, ...]
    needs: str = "nothing"

    @property
    def suites(self) -> set[str]:
        return {SUITES[Path(test.split("::")[0]).stem] for test in self.tests}


def located(test: str) -> str:
    """The whole path of ``NAME.py::TEST``, which is in ``test_NAME.py`` of whichever folder of tests/ has it.

    Of two files of one name it is ``FOLDER/NAME.py::TEST``.
    """
    name, _, rest = test.partition("::")
    folder, slash, file = name.rpartition("/")
    (path,) = TESTS.rglob(f"{folder}{slash}test_{file}")
    return f"tests/{path.relative_to(TESTS).as_posix()}::{rest}"


SIMULATED = "tests/whole/test_simulator.py::test_every_claim_holds_in_every_seed_and_the_rare_states_were_reached"
ROLLED_BACK = "tests/whole/test_simulator.py::test_every_claim_holds_where_an_operator_rolls_back"


def coordinator(says: str, *units: str) -> Caught:
    """Found by the unit tests alone: the driver of today, or its recovery, never comes where the bug would show."""
    tests = tuple(f"tests/coordinators/test_master_coordinator.py::{unit}" for unit in units)
    return Caught(says, tests, "hypothesis" if any("in_any_run" in unit for unit in units) else "nothing")


def simulated(says: str, *units: str, by: str = SIMULATED) -> Caught:
    """Found by the unit tests, the first of which `make test` runs, and by the simulator."""
    found = coordinator(f"{says}|assert" if units else says, *units)
    return found._replace(tests=(*found.tests, by))


def compaction(says: str, world: str) -> Caught:
    name = f"test_compaction_is_exact_in_every_interleaving_of_a_tiny_world[{world}]"
    return Caught(says, (f"tests/states/keyed/test_compaction_explorer.py::{name}",))


def zookeeper(says: str, *tests: str) -> Caught:
    return Caught(says, tuple(located(test) for test in tests), "ZooKeeper")


def pure(says: str, *tests: str) -> Caught:
    return Caught(says, tuple(located(test) for test in tests))


def spark(says: str, *tests: str) -> Caught:
    return Caught(says, tuple(located(test) for test in tests), "Spark")


def cell(name: str) -> str:
    """Of the matrix; those of one state only are there with TRIDENT_MATRIX=all, which every run here has."""
    escaped = name.encode("unicode_escape").decode()  # as pytest writes names
    return f"matrix.py::test_cell[{escaped}]"


PLANTED: dict[str, Caught] = {
    # --- values of users' functions, and names
    "330-values-within-values-are-not-looked-at": pure(
        "assert |DID NOT RAISE",
        "typed_values.py::test_a_thousand_drawn_values_are_kept_exactly_or_refused_with_their_path[rows]",
    ),
    "331-fields-of-structs-are-not-compared-by-name": pure(
        "assert |DID NOT RAISE",
        "typed_values.py::test_a_thousand_drawn_values_are_kept_exactly_or_refused_with_their_path[rows]",
    ),
    "332-a-generator-function-is-a-condition": pure(
        "DID NOT RAISE", "signatures.py::test_a_condition_that_runs_nothing_when_it_is_called_is_refused"
    ),
    "333-names-are-compared-in-lower-case-alone": pure(
        "DID NOT RAISE",
        "types.py::test_names_that_are_one_to_spark_are_refused_wherever_fields_meet[s-\\u017f]",
        "types.py::test_names_that_are_one_to_spark_are_refused_wherever_fields_meet[s\\u0131ra-sira]",
    ),
    "334-workers-keep-a-module-as-they-loaded-it": spark(
        "new 1", "local_modules.py::test_workers_know_a_folder_of_sys_path_and_a_module_that_was_reloaded"
    ),
    # --- coordinators/master.py
    "01-attempt-ids-used-again-after-a-restart": simulated(
        "not everything has committed", "test_attempt_ids_grow_for_ever_and_over_a_restart"
    ),
    "02-advance-before-publish": simulated(
        "advances before it is in table", "test_an_attempt_goes_processing_processed_committing_success"
    ),
    "03-success-before-advance": simulated(
        "is told, advanced is",
        "test_success_is_told_only_after_the_advance_is_durable",
    ),
    "04-stale-fail-clears-the-live-attempt": coordinator("assert", "test_a_stale_fail_does_not_clear_the_live_attempt"),
    "05-order-broken-when-readiness-flips": simulated(
        "live is not contiguous: 2:0 BEGINNING",
        "test_in_any_run_each_attempt_is_begun_once_and_successes_come_in_order",
    ),
    "06-failure-heard-after-the-decision": coordinator(
        "assert",
        "test_a_failure_after_the_decision_was_issued_is_not_heard[False-5]",
    ),
    "07-replay-waits-for-readiness": simulated(
        "not everything has committed", "test_replays_do_not_wait_for_readiness"
    ),
    "08-later-attempts-kept-when-an-earlier-one-fails": simulated(
        "cannot be decided with parent",
        "test_a_failure_replays_the_batch_and_every_later_active_one_with_new_attempt_ids",
    ),
    "09-two-commits-at-once": simulated("cannot be decided with parent", "test_one_commit_at_a_time"),
    "10-decision-forgotten-at-the-restart": simulated(
        "while a decision is pending", "test_a_restart_finishes_the_pending_decision_before_anything_begins"
    ),
    "11-begins-before-the-decision-is-finished": coordinator(
        "assert", "test_a_restart_finishes_the_pending_decision_before_anything_begins"
    ),
    "12-stop-leaves-a-decision-behind": simulated(
        "stopped, and its decision is not finished",
        "test_stop_finishes_what_is_decided_and_drops_the_rest",
    ),
    "13-gives-up-before-the-earlier-ones-are-finished": simulated(
        "gave up, and its decision is not finished", "test_at_the_attempt_cap_the_earlier_ones_are_finished_first"
    ),
    "14-success-not-told-again-after-a-restart": simulated(
        "not everything has committed", "test_success_is_told_again_after_a_restart"
    ),
    "15-replaced-backoff-never-ends": simulated("not everything has committed", "test_failures_are_counted_per_txid"),
    "16-one-active-too-many": pure(
        "assert", "master_coordinator.py::test_at_most_max_spout_pending_transactions_are_active[2]"
    ),
    "132-begins-ahead-of-what-may-still-fail": simulated("AssertionError: .* PREPARING"),
    # --- who leads: coordinators/leadership.py
    "17-takeover-leaves-the-fence-as-it-is": zookeeper(
        "DID NOT RAISE.*Deposed",
        "leadership.py::test_every_group_that_zookeeper_knows_is_fenced",
        "group_store.py::test_deposed_while_the_answer_was_lost[decide-request]",
    ),
    "18-a-leader-on-another-host-is-taken-for-dead": zookeeper(
        "assert not True", "leadership.py::test_a_leader_on_another_host_is_waited_for_although_its_pid_is_not_here"
    ),
    # --- what is in ZooKeeper: coordinators/group_store.py, zookeeper.py, transactional_state.py
    "20-no-fence": zookeeper(
        "DID NOT RAISE.*Deposed", "group_store.py::test_a_paused_leader_that_wakes_up_writes_nothing"
    ),
    "21-metadata-not-pinned": zookeeper(
        r"\[0, 9\]", "group_store.py::test_a_pin_is_got_or_created_and_given_back_as_json_will_give_it"
    ),
    "22-swallowed-multi-failure": zookeeper(
        "DID NOT RAISE.*MultiRefused",
        "zookeeper_state.py::test_a_refused_multi_says_which_operation_and_does_nothing",
        "zookeeper_state.py::test_two_writers_of_one_map_are_noticed",
        "group_store.py::test_a_store_that_was_deposed_stays_closed",
    ),
    "23-retry-across-session-expiry": zookeeper(
        "DID NOT RAISE.*ZooKeeperUnreachable", "zookeeper_state.py::test_a_read_is_not_repeated_in_the_next_session"
    ),
    "24-write-repeated-in-the-next-session": zookeeper(
        "DID NOT RAISE.*OutcomeUnknown", "group_store.py::test_a_write_is_not_repeated_in_the_next_session"
    ),
    "25-corrupt-value-read-as-absent": zookeeper(
        "DID NOT RAISE.*CorruptZnode",
        "zookeeper_state.py::test_a_value_that_cannot_be_read_is_never_absent",
        "group_store.py::test_a_znode_that_holds_garbage_is_named[garbage-names2]",
    ),
    "26-corrupt-decision-read-as-none": zookeeper(
        "DID NOT RAISE.*CorruptZnode", "group_store.py::test_a_znode_that_holds_garbage_is_named[garbage-names1]"
    ),
    "27-cleanup-of-the-current-txid": zookeeper(
        r"\{4: 'four'\}",
        "zookeeper_state.py::test_rotating_state_against_its_reading_by_another",
        "group_store.py::test_a_transaction_step_by_step_as_another_process_reads_it",
    ),
    "28-attempt-id-not-stored": zookeeper("attempt 1:0", "group_store.py::test_an_attempt_id_is_never_used_again"),
    "29-an-older-attempt-is-decided": zookeeper(
        "DID NOT RAISE.*StaleState",
        "group_store.py::test_only_the_last_begun_attempt_at_the_current_txid_is_decided_once",
    ),
    # --- states/keyed/compaction.py
    "30-log-dropped-beyond-what-is-merged": compaction("the log was dropped up to 2, the table is", "two-compactors"),
    "31-log-dropped-into-the-retention": compaction("1 before 1 must be kept", "retention"),
    "32-live-read-of-a-log-that-was-dropped-since": compaction("a live read as of 1 gives {}", "reader"),
    "33-live-read-of-a-table-that-is-ahead": compaction("a live read as of 0 gives {'a'", "reader"),
    "34-live-read-of-a-half-published-transaction": compaction("which is half published", "reader"),
    "35-no-upto-guard": compaction(r"'a', \(1, 1, 2\)", "two-compactors"),
    "36-merges-what-has-not-advanced": compaction("1 is merged, but 0 is the last", "reader"),
    "37-live-read-that-waits-for-a-publish": compaction("round for ever", "half-published-above-an-empty-one"),
    # --- carried out on Delta: states/keyed/reading.py, compactor.py, committer.py, staging.py
    "38-live-read-in-the-wrong-order": spark(
        r"\(\{\('the',\): \(4,\)\}, 1\)",
        "reading.py::test_a_transaction_and_its_merge_between_two_looks_at_tables_are_not_half_seen",
    ),
    "39-merge-without-its-txn-ids": spark(
        "was told as done and is not in the table",
        "compactor.py::test_merges_exactly_the_advanced_transactions_and_no_published_one_above[delta]",
    ),
    "40-no-set-transaction": spark(
        "assert None == 1",
        "committer.py::test_each_table_also_carries_the_transaction_id_that_delta_itself_checks",
    ),
    "41-control-record-not-checked": spark(
        "DID NOT RAISE.*Deposed", "committer.py::test_a_stale_writer_is_refused_by_the_control_record"
    ),
    "42-control-record-not-checked-in-prepare": spark(
        "DID NOT RAISE.*Deposed",
        "committer.py::test_what_another_coordinator_has_published_stops_the_one_before_the_decision",
    ),
    "43-control-record-not-checked-at-takeover": spark(
        "DID NOT RAISE.*Halted", "committer.py::test_a_stale_writer_that_still_leads_halts_instead_of_writing"
    ),
    "44-foreign-commit-not-noticed": spark(
        "DID NOT RAISE.*Halted",
        "committer.py::test_a_row_that_somebody_else_wrote_halts_before_the_decision",
    ),
    "45-cleanup-of-published-files": spark(
        r"\{'2-0'\} == ",
        "committer.py::test_leftovers_of_failed_attempts_go_only_when_their_txid_has_advanced",
    ),
    "46-cleanup-of-what-the-next-needs": spark(
        r"\[False, False, False, False\] == ",
        "committer.py::test_rows_that_wait_for_their_turn_stay_until_they_had_it",
    ),
    "47-staged-files-taken-from-a-listing": spark(
        "6 == 3", "staging.py::test_the_files_of_a_try_that_spark_gave_up_do_not_count"
    ),
    "48-published-again-after-a-lost-answer": spark(
        "TableMark", "committer.py::test_publishing_again_changes_nothing_in_this_process_and_another"
    ),
    # --- what states hold, and users' maps: states/core/values.py, user_tasks.py
    "50-opaque-base-wrong": pure(
        r"assert OpaqueValue",
        "values.py::test_every_row_of_the_table[Semantics.OPAQUE-stored11-tried-old-after_new11-after_none11]",
        "values.py::test_opaque_replays_of_any_rows_give_exactly_the_fold_of_the_last_tries",
    ),
    "51-transactional-update-applied-again": pure(
        r"TransactionalValue\(txid=7, value='new'",
        "values.py::test_every_row_of_the_table"
        "[Semantics.TRANSACTIONAL-stored5-old-skipped-_Unchanged.UNCHANGED-_Unchanged.UNCHANGED]",
        "values.py::test_transactional_replays_of_the_same_rows_give_exactly_the_fold",
    ),
    "52-user-map-without-its-fence": pure(
        "DID NOT RAISE.*StaleEpoch",
        "user_tasks.py::test_a_task_of_an_older_coordinator_writes_nothing_whatever_its_transaction",
    ),
    "53-fence-of-the-coordinator-only": pure(
        "DID NOT RAISE.*StaleEpoch",
        "user_tasks.py::test_a_task_of_an_older_transaction_that_wakes_up_writes_nothing",
    ),
    # --- spouts, and what is told to them: trident/spouts/executors.py, queue_spout.py, coordinators/driver.py
    "54-opaque-partitions-go-on-from-what-is-committed": pure(
        r"\{'a': 0, 'b': 0\} == \{'a': 3, 'b': 3\}",
        "spout_executors.py::test_an_opaque_attempt_goes_on_from_its_parent_also_while_that_is_in_flight"
        "[OpaquePartitionedTridentSpout]",
    ),
    "55-partition-that-is-away-is-forgotten": pure(
        "carried along to be committed",
        "spout_executors.py::test_an_opaque_partition_that_was_away_goes_on_where_it_was[OpaquePartitionedTridentSpout]",
    ),
    "56-opaque-metadata-not-stored-when-advancing": spark(
        "count twice", cell("opaque × Delta append × crash after publish")
    ),
    "57-spout-told-before-the-tables-are-published": spark(
        "assert 0 == 2", "queue_spout.py::test_nothing_is_acknowledged_before_its_tables_are_published"
    ),
    "58-transactional-partition-that-is-away-is-forgotten": pure(
        r"\{'a': 6, 'b': 0\} == \{'a': 6, 'b': 3\}",
        "spout_executors.py::test_a_transactional_partition_that_was_away_goes_on_where_it_was"
        "[PartitionedTridentSpout]",
    ),
    "59-rows-of-another-pin-are-used": pure(
        r"assert \[\] == \[\('a', 'again'",
        "spout_executors.py::test_rows_emitted_for_another_pin_are_not_used[PartitionedTridentSpout]",
    ),
    "76-queue-message-acknowledged-before-the-decision": pure(
        "assert False", "queue_spout.py::test_a_failed_transaction_gives_its_messages_back_before_it_takes_again"
    ),
    "77-queue-message-not-held": pure(
        "queue.hold:fail_before:1",
        "queue_spout.py::test_an_operation_whose_answer_is_lost_is_made_good_by_the_next[hold-fail_before]",
    ),
    # --- in the transaction's turn: trident/running/runner.py
    "60-resolved-before-its-turn": spark(
        r"Counter\(\{\(0,\): 4\}\) == ",
        "late_states.py::test_an_aggregate_behind_what_is_read_late_has_a_row_for_every_batch",
    ),
    "61-resolved-as-of-the-wrong-transaction": spark(
        "AssertionError: assert Counter", "late_states.py::test_everything_that_reads_states_gives_what_a_fold_gives"
    ),
    "165-one-job-before-its-turn": spark(
        r"assert \{'", "late_at_once.py::test_of_several_in_flight_only_the_next_one_is"
    ),
    "198-a-promised-copy-is-read-as-it-is": spark(
        "assert", "late_at_once.py::test_own_steps_are_one_job_too_and_wait_for_the_copy"
    ),
    "199-rows-that-one-job-goes-on-with-are-not-staged": spark(
        "assert", "late_at_once.py::test_own_steps_are_one_job_too_and_wait_for_the_copy"
    ),
    "227-a-promise-forgets-another-history": spark(
        "assert {", "state_copy.py::test_after_the_tables_went_back_another_history_is_followed[promised before]"
    ),
    "228-no-worker-where-spark-gives-no-partition": spark(
        "assert", "late_at_once.py::test_a_filter_that_is_always_false_gives_the_late_part_an_empty_batch[none-one_job]"
    ),
    "191-each-partition-is-folded-by-itself": spark(
        "assert",
        "late_at_once.py::test_rows_of_a_key_in_several_spark_partitions_are_folded_once[hint-one_job]",
        "late_at_once.py::test_rows_of_a_key_in_several_spark_partitions_are_folded_once[setting-one_job]",
    ),
    # --- local copies of states: states/core/local_copy.py, states/keyed/state_copy.py
    "100-copy-read-without-its-mark": pure(
        "DID NOT RAISE",
        "local_copy.py::test_another_mark_gives_no_value_and_takes_none[older]",
        "local_copy.py::test_another_mark_gives_no_value_and_takes_none[newer]",
        "local_copy.py::test_another_mark_gives_no_value_and_takes_none[life]",
        "local_copy.py::test_another_mark_gives_no_value_and_takes_none[form]",
        "local_copy.py::test_another_mark_gives_no_value_and_takes_none[history]",
    ),
    "101-copy-of-another-history-is-gone-on-with": spark(
        "assert {",
        "state_copy.py::test_after_the_tables_went_back_another_history_is_followed[same process]",
        "state_copy.py::test_after_the_tables_went_back_another_history_is_followed[restarted]",
    ),
    "102-copy-keeps-deleted-keys": spark(
        "assert {",
        "state_copy.py::test_it_follows_the_transactions_over_merges_and_restarts[last-in parts]",
    ),
    "103-copy-of-another-form-is-gone-on-with": spark(
        "assert PosixPath",
        "state_copy.py::test_a_copy_in_doubt_is_built_again[another boot]",
        "state_copy.py::test_a_copy_in_doubt_is_built_again[another form]",
    ),
    "111-copy-keeps-old-places-in-its-order": pure(
        "damaged|assert",
        "local_copy.py::test_a_range_gives_what_a_sorted_list_gives",
        "local_copy.py::test_a_part_that_moves_its_key_moves_it_in_the_order",
    ),
    "127-copy-filled-with-the-first-row-of-a-key": spark(
        "assert",
        "local_copy.py::test_a_copy_is_filled_in_runs_that_come_in_any_order[None-1]",
        "local_copy.py::test_a_copy_is_filled_in_runs_that_come_in_any_order[None-1048576]",
    ),
    "261-a-copy-keeps-its-mark-between-parts": pure(
        "assert ", "local_copy.py::test_many_rows_that_fail_in_the_middle_leave_no_copy"
    ),
    "262-moved-rows-come-back-in-another-order": spark(
        "assert ", "late_forms.py::test_rows_that_are_moved_to_the_values_they_look_up_come_back_to_their_places"
    ),
    "128-copy-from-the-middle-of-a-repair": spark(
        "assert",
        "state_copy.py::test_copies_that_were_built_in_the_middle_of_a_repair_are_not_used[leads]",
    ),
    "129-null-key-is-another-key": spark(
        "assert",
        "copy_rows.py::test_keys_are_equal_bytes_where_spark_takes_them_for_equal[bigint]",
        "copy_rows.py::test_keys_are_equal_bytes_where_spark_takes_them_for_equal[string]",
    ),
    "130-runs-of-a-copy-in-a-wrong-order": spark(
        "assert|out of order",
        "sorted_runs.py::test_rows_come_in_the_order_of_their_bytes[long ties-1]",
        "sorted_runs.py::test_rows_come_in_the_order_of_their_bytes[long ties-1048576]",
    ),
    "131-copy-is-dropped-when-the-log-is-past-it": spark(
        "DID NOT RAISE|assert",
        "state_copy.py::test_a_log_that_is_past_the_transaction_costs_no_copy",
    ),
    "140-host-takes-its-view-of-the-log-for-the-whole": spark(
        "assert |DID NOT RAISE|Regex",
        "host_copy.py::test_a_log_that_a_host_sees_as_it_was_is_not_taken_for_the_whole",
    ),
    "146-copy-ends-with-the-task-that-asks": spark(
        "never comes up",
        "host_copy.py::test_a_copy_that_takes_longer_than_a_task_waits_comes_up_behind_the_task",
    ),
    "141-copy-of-one-transaction-before-will-do": pure(
        "of a local copy, its state was",
        "simulator.py::test_every_claim_holds_in_every_seed_and_the_rare_states_were_reached",
    ),
    # --- starting: trident/spark/class_archive.py
    "138-archive-of-classes-is-not-looked-at": spark(
        "assert",
        "class_archive.py::test_a_damaged_archive_is_not_used",
    ),
    "136-older-look-drops-a-copy": spark(
        "assert", "state_copy.py::test_transactions_without_a_commit_leave_it_as_it_is"
    ),
    # --- the late part in the driver: trident/workers/arrow_plan.py, own_steps.py
    "135-windows-once-per-spark-partition": spark(
        "assert", "late_forms.py::test_steps_that_need_all_rows_of_a_batch_have_them_behind_a_shuffle"
    ),
    "107-driver-takes-the-users-steps": pure(
        "assert ", "own_steps.py::test_a_plan_with_a_step_of_the_user_s_is_none_for_the_driver"
    ),
    "108-driver-sums-past-its-type": spark(r"== \{\}", "late_forms.py::test_a_sum_that_does_not_fit_is_left_to_spark"),
    "110-driver-knows-aggregators-by-their-name": pure(
        "assert", "late_forms.py::test_the_driver_has_no_step_of_a_class_below_a_built_in_aggregator"
    ),
    # --- windows that keep parts: trident/operations/window_changes.py
    "112-a-fired-window-fires-again": pure(
        "assert", "window_parts.py::test_parts_of_panes_give_what_all_rows_ever_give"
    ),
    "113-a-session-that-has-fired-stays-open": pure(
        "assert", "window_parts.py::test_sessions_give_what_all_rows_ever_give"
    ),
    "114-sessions-that-meet-stay-two": pure("assert", "window_parts.py::test_sessions_give_what_all_rows_ever_give"),
    "109-request-keeps-the-copies-of-its-first-look": spark(
        "AssertionError|assert", "in_driver.py::test_each_answer_is_as_of_one_transaction_while_batches_commit"
    ),
    # --- messages: coordinators/acker.py, trident/messages/batches.py, ledger.py
    "70-acker-completes-before-the-init": pure(
        "spout=-1",
        "acker.py::test_a_fail_beats_a_zero_that_comes_with_the_init",
    ),
    "71-acker-lets-a-failed-root-complete": pure(
        "'acked'.* == .*'failed'",
        "acker.py::test_a_fail_beats_a_zero_that_comes_with_the_init",
    ),
    "72-acker-adds-instead-of-xor": pure("assert None == Ended", "acker.py::test_the_arithmetic_of_example_6_2"),
    "73-failed-message-stays-in-its-batch": pure(
        "column's length must match",
        "message_executor.py::test_the_rows_of_a_batch_have_their_messages_as_roots",
    ),
    "139-tuples-of-a-message-share-an-id": pure(
        "assert", "message_executor.py::test_the_rows_of_a_batch_have_their_messages_as_roots"
    ),
    "74-dead-letter-not-in-the-decision": spark(
        "not enough values to unpack",
        "tracked_streams.py::test_a_message_that_fails_leaves_its_batch_and_becomes_a_dead_letter",
    ),
    "220-only-the-newest-file-of-settled-messages-is-read": spark(
        "assert", "settled_messages.py::test_the_window_is_read_without_a_spark_job"
    ),
    "75-lost-row-counts-as-processed": pure(
        r"dict_keys\(\[\]\)", "messages/ledger.py::test_a_message_of_which_a_row_is_missing_has_failed_and_no_other"
    ),
    # --- the commit path: states/delta/log_commit.py, kernel.py, committer.py, manifest.py, staging.py, control.py
    "68-control-record-without-its-digest": pure(
        "assert not True",
        "commit_rules.py::test_a_batch_is_the_same_only_with_its_transaction_its_attempt_and_its_digest[change2]",
    ),
    "69-foreign-rows-behind-a-conflict-not-looked-for": spark(
        "DID NOT RAISE.*Halted",
        "committer.py::test_a_foreign_row_behind_the_check_is_not_committed_over[False]",
        "committer.py::test_a_foreign_row_behind_the_check_is_not_committed_over[True]",
    ),
    "78-log-entry-not-flushed-after-a-commit": pure(
        "_delta_log",
        "log_commit.py::test_an_entry_is_flushed_before_it_has_its_name_and_the_name_before_anybody_is_told",
        "log_commit.py::test_a_flush_that_fails_behind_the_link_leaves_the_outcome_open",
    ),
    "79-entry-linked-before-it-is-flushed": pure(
        "link",
        "log_commit.py::test_an_entry_is_flushed_before_it_has_its_name_and_the_name_before_anybody_is_told",
    ),
    "80-entries-of-others-not-flushed": spark(
        "00000001.json' in ",
        "kernel_races.py::test_what_another_writer_committed_is_flushed_before_ours_is_built_upon_it",
    ),
    "81-staged-size-not-compared": pure(
        "DID NOT RAISE.*StagedFileMissing",
        *(f"commit_rules.py::test_a_staged_file_of_another_length_is_not_published[{length}]" for length in (0, -1, 1)),
    ),
    "82-published-by-another-and-not-flushed": spark(
        "00000001.json",
        "committer.py::test_what_was_published_by_another_is_flushed_before_the_transaction_advances",
    ),
    "83-commit-into-a-table-that-was-made-anew": pure(
        "DID NOT RAISE.*CommitConflict",
        "log_commit.py::test_a_table_that_was_made_anew_with_as_many_versions_gets_nothing[before it looks]",
    ),
    "84-rivals-may-still-rename": pure(
        "assert not True",
        "log_commit.py::test_a_rival_that_was_stopped_between_its_look_and_its_rename_cannot_replace_our_entry",
    ),
    "85-replaced-entry-not-noticed": pure(
        "DID NOT RAISE.*CommitConflict",
        "log_commit.py::test_an_entry_of_ours_that_was_replaced_before_we_were_told_is_no_commit",
    ),
    "86-manifest-digest-not-compared": pure(
        "DID NOT RAISE.*Halted", "commit_rules.py::test_a_manifest_of_the_right_length_with_other_bytes_is_refused"
    ),
    "87-manifest-not-flushed": pure(
        "assert ",
        "commit_rules.py::test_a_manifest_and_the_folders_that_name_it_are_flushed_before_it_may_be_decided",
    ),
    "88-clean-up-of-every-life": pure(
        "assert 6 == 2", "commit_rules.py::test_manifests_of_another_life_are_not_cleaned_up"
    ),
    "89-staged-file-not-flushed": pure(
        "assert ", "commit_rules.py::test_a_staged_file_is_flushed_with_every_folder_above_it_up_to_the_table"
    ),
    "90-fence-not-asked-before-a-commit": spark(
        "DID NOT RAISE.*Deposed", "committer.py::test_who_does_not_lead_any_more_is_told_before_it_commits"
    ),
    "91-dropped-beyond-the-floor": spark(
        "assert ",
        "compactor.py::test_drops_what_is_merged_and_out_of_retention_and_keeps_the_control_record",
    ),
    "92-dropped-while-a-stopped-merge-may-replace": spark(
        "assert not True",
        "compactor.py::test_a_merge_that_was_stopped_inside_its_commit_cannot_replace_the_one_that_rows_were_dropped_for",
    ),
    "93-marks-not-stored-when-advancing": zookeeper(
        "AssertionError: assert ", "group_store.py::test_a_transaction_step_by_step_as_another_process_reads_it"
    ),
    "94-decided-upon-another-parent": zookeeper(
        "DID NOT RAISE.*StaleState",
        "group_store.py::test_only_the_last_begun_attempt_at_the_current_txid_is_decided_once",
    ),
    "133-begin-with-an-advance-keeps-no-pin": zookeeper(
        "AssertionError: assert ", "group_store.py::test_an_advance_and_the_next_begin_are_one_multi"
    ),
    "95-plain-tables-without-marks": spark(
        "DID NOT RAISE.*Halted",
        "committer.py::test_a_plain_table_that_is_gone_is_not_made_anew_at_takeover",
    ),
    "96-empty-entry-taken-for-whole": pure(
        "assert ", "torn_entries.py::test_several_in_a_row_are_set_aside_and_what_is_whole_is_not_read_again"
    ),
    "97-lost-answer-of-a-link-taken-for-a-conflict": pure(
        "CommitConflict", "log_commit.py::test_a_link_whose_answer_was_lost_is_known_by_its_inode"
    ),
    "190-a-failed-table-leaves-the-others-to-themselves": spark(
        "InjectedFault",
        "committer.py::test_a_table_that_fails_is_told_only_when_no_other_is_written_to_any_more",
    ),
    "208-outside-mark-not-compared": spark(
        "assert ", "outside.py::test_it_is_published_behind_the_tables_by_tasks_and_once[1]"
    ),
    "209-outside-away-is-a-refusal": spark(
        "could not be finished", "outside.py::test_one_that_is_away_holds_the_group_up_says_so_and_loses_nothing"
    ),
    "210-outside-parts-of-the-present-topology": spark(
        "assert ", "outside.py::test_the_number_of_parts_is_that_of_the_decision"
    ),
    "211-outside-store-that-was-put-back-is-taken": spark(
        "DID NOT RAISE", "outside.py::test_a_store_of_another_moment_halts"
    ),
    "212-outside-loss-amid-a-run-is-not-noticed": spark(
        "DID NOT RAISE",
        "outside.py::test_a_store_that_loses_transactions_while_it_runs_halts_and_takes_no_row",
    ),
    "213-outside-marks-of-another-life-are-replaced": spark(
        "DID NOT RAISE", "outside.py::test_another_life_is_refused_however_often_it_starts"
    ),
    "115-a-key-is-forgotten-too-early": pure(
        "assert ", *(f"timed_rules.py::test_dedup_gives_what_the_oracle_gives[{place}]" for place in ("tables", "copy"))
    ),
    "116-new-rows-meet-twice": pure(
        "assert Counter",
        *(
            f"timed_rules.py::test_a_join_within_a_time_gives_what_the_oracle_gives[{place}]"
            for place in ("tables", "copy")
        ),
    ),
    "117-the-faster-side-says-the-time": pure(
        "assert ",
        *(
            f"timed_rules.py::test_a_join_within_a_time_gives_what_the_oracle_gives[{place}]"
            for place in ("tables", "copy")
        ),
    ),
    "118-a-row-forgets-that-it-has-met": pure(
        "assert Counter",
        *(
            f"timed_rules.py::test_a_join_within_a_time_gives_what_the_oracle_gives[{place}]"
            for place in ("tables", "copy")
        ),
    ),
    "119-the-time-of-silent-keys-is-forgotten": spark(
        "assert Counter", "timed.py::test_dedup_a_join_and_timers_give_what_the_oracles_give"
    ),
    "98-begin-ends-its-own-attempts-only": pure(
        r"\['2'\] == \['2', '3'\]",
        "queue_spout.py::test_a_transaction_that_begins_again_ends_every_later_attempt_too",
    ),
    "99-queue-forgets-before-it-acknowledges": pure(
        "'forgotten', 'acknowledged'",
        "queue_spout.py::test_a_queue_has_acknowledged_before_the_spout_forgets_what_it_took",
    ),
    "360-backlog-counts-what-the-last-look-saw": spark(
        "'rows': 0", "file_spout.py::test_the_backlog_has_what_came_while_nobody_asked_for_a_transaction"
    ),
    "361-unknown-backlog-counts-as-nothing": pure(
        "'rows': 0", "spout_host.py::test_what_one_stream_does_not_know_is_unknown_for_all[found2-expected2]"
    ),
    "362-estimated-rows-count-as-read": spark(
        "the count is exact or unknown", "file_spout.py::test_rows_are_counted_where_they_are_read[0-text]"
    ),
    "363-rows-of-a-task-that-runs-twice-count-twice": pure(
        "assert ", "task_rows.py::test_a_count_that_comes_again_changes_nothing"
    ),
    "104-kept-plan-reads-the-first-batch-again": spark(
        "assert ",
        "kept_plans.py::test_attempts_in_flight_have_their_own_rows_and_folders",
        "kept_plans.py::test_files_of_each_batch_are_read_by_one_plan",
    ),
    "105-slots-numbered-as-the-streams-come": spark(
        "assert ", "kept_plans.py::test_streams_that_meet_each_have_a_slot"
    ),
    "106-worker-writes-for-the-attempt-before": spark(
        "FileNotFoundError.*|a file in the folder of another attempt",
        "kept_plans.py::test_each_batch_gives_what_a_plan_made_anew_gives[append]",
    ),
    "137-kept-plan-calls-the-functions-of-before": spark(
        "assert", "kept_plans.py::test_a_plan_follows_functions_that_are_registered_again"
    ),
    "120-nulls-are-skipped-by-bounds": Caught(
        "assert ",
        (located("key_reads.py::test_of_files_of_every_writer_exactly_the_rows_of_the_keys_are_read"),),
        "hypothesis",
    ),
    "121-a-key-is-read-from-files-of-any-length": spark(
        "DID NOT RAISE.*TableError",
        "key_reads.py::test_a_file_of_another_length_than_the_log_says_is_not_read[counts-longer]",
    ),
    "122-waiting-rows-of-later-transactions-are-read": spark(
        "assert ",
        "key_reads.py::test_all_keys_as_of_transactions_before_between_and_after_merges",
    ),
    "123-merged-rows-are-not-looked-at": pure(
        "DID NOT RAISE.*MergedMeanwhile",
        "native_merge_files.py::test_rows_that_are_merged_already_or_are_another_writers_are_not_changed",
    ),
    "124-sums-of-a-native-merge-wrap": pure(
        "DID NOT RAISE.*NotMergeable",
        "native_merge_files.py::test_a_sum_that_does_not_fit_is_an_error_and_never_wraps[rows0]",
        "native_merge_files.py::test_a_sum_that_does_not_fit_is_an_error_and_never_wraps[rows2]",
    ),
    "125-leftovers-of-merges-are-all-that-is-old": spark(
        "No such file",
        "file_merge.py::test_files_whose_commit_never_came_are_removed_by_the_next_merge",
    ),
    "134-files-of-a-commit-that-may-be-there-are-deleted": spark(
        "No such file",
        "file_merge.py::test_files_that_a_commit_may_name_stay_whatever_fails_behind_it[disk]",
    ),
    "160-a-live-read-leaves-out-null-keys": pure(
        "assert",
        "live_rows.py::test_each_key_of_the_log_is_in_one_range_alone_also_between_two_files_and_beyond_both_ends",
    ),
    "161-ranges-of-a-live-read-overlap": pure(
        "assert",
        "live_rows.py::test_each_key_of_the_log_is_in_one_range_alone_also_between_two_files_and_beyond_both_ends",
    ),
    "126-native-merge-on-whatever-is-there": spark(
        "DID NOT RAISE.*CommitConflict",
        "file_merge.py::test_a_commit_that_comes_while_the_files_are_written_wins",
    ),
    # --- stores: states/core/object_storage.py, appended_parts.py, place.py, trident/spark/stores.py
    "147-entries-are-put-over-others": pure(
        "assert", "process_races.py::test_of_processes_that_race_one_wins_each_table_version[s3]"
    ),
    "148-lost-answer-of-a-put-taken-for-a-conflict": pure(
        "the name is taken", "stores.py::test_a_name_whose_taking_was_not_answered_is_looked_at[create]"
    ),
    "149-a-store-is-taken-at-its-word": pure(
        "DID NOT RAISE",
        "store_warehouses.py::test_a_store_where_two_writers_win_is_refused_unless_the_user_vouches",
    ),
    "200-tables-are-taken-for-unchanged": pure(
        "assert", "few_requests.py::test_a_table_is_unchanged_only_while_its_newest_entry_is_the_one_that_was_seen"
    ),
    "201-remembered-manifest-of-another-decision": pure(
        "not the one that was decided",
        "few_requests.py::test_a_manifest_is_not_read_back_but_by_the_decision_that_names_it",
    ),
    "202-next-part-of-a-ledger-is-put-over-anothers": pure(
        "assert|PositionLost|cannot be read",
        "few_requests.py::test_where_another_process_has_appended_no_number_is_given_twice",
    ),
    "150-a-place-leaves-its-store-behind": pure(
        "assert", "place.py::test_a_place_takes_the_settings_of_its_store_to_another_process"
    ),
    "151-a-missing-part-of-a-ledger-is-passed-over": pure(
        "DID NOT RAISE", "stores.py::test_two_appenders_with_one_end_in_view_do_not_both_append[s3]"
    ),
    "152-credentials-in-settings": pure(
        "DID NOT RAISE", "store_warehouses.py::test_a_topologys_settings_hold_no_credentials"
    ),
    "203-kept-plans-look-below-the-wrong-store": pure(
        "assert", "store_faults.py::test_the_rows_of_a_kept_plan_are_named_in_their_store"
    ),
    "204-a-conditional-put-is-sent-again-as-another-writer": pure(
        "assert",
        "store_faults.py::test_a_commit_that_is_never_answered_is_unknown_and_of_all_that_were_sent_one_counts",
    ),
    "205-a-refusal-behind-an-open-request-is-believed": pure(
        "assert",
        "store_faults.py::test_a_commit_that_is_refused_behind_one_without_an_answer_is_not_called_refused"
        "[no permission]",
    ),
    "206-a-pass-is-sent-without-its-store": spark(
        "the store was not sent", "store_messages.py::test_a_task_is_sent_the_store_that_its_ledger_is_in"
    ),
    # --- cluster: trident/running/cluster_probe.py, executor_look.py
    "207-a-queue-of-one-host-serves-a-cluster": pure("DID NOT RAISE", "one_host.py::test_sources_of_one_host"),
    "155-executors-writes-are-not-looked-for": pure(
        "not enough values to unpack",
        "cluster.py::test_a_warehouse_that_is_another_one_on_a_host_is_named_with_it[more2-is not here]",
    ),
    "156-first-executors-answer-for-all": pure(
        "assert .*'a'", "cluster.py::test_executors_are_asked_again_until_each_has_answered"
    ),
    "143-a-request-has-the-rows-of-those-before-it": Caught(
        "assert ",
        (
            located("together.py::test_each_request_of_a_task_gets_what_it_would_get_alone"),
            located("together.py::test_a_static_state_is_asked_by_each_request"),
        ),
        "hypothesis",
    ),
    "175-kafka-reads-past-the-end-of-a-range": spark(
        "assert ", "kafka_reader.py::test_any_range_of_many_partitions_is_read_exactly_by_one_consumer_again_and_again"
    ),
    "176-kafka-topic-ids-not-looked-at-again": spark(
        "DID NOT RAISE.*TopicGone",
        "kafka_spout.py::test_rows_of_a_topic_that_was_made_again_after_they_were_planned_never_count",
    ),
    "177-kafka-end-of-log-ends-any-range": spark(
        "DID NOT RAISE.*SourceFailure",
        "kafka_reader.py::test_a_log_that_ends_before_the_range_is_an_error_or_what_there_is",
    ),
    "178-kafka-latest-not-written-down": spark(
        "an empty first transaction says where",
        "kafka_coordinator.py::test_the_latest_offsets_are_written_down_at_once",
    ),
    "179-kafka-dead-letters-are-rows-too": spark(
        "assert ",
        "kafka_spout.py::test_a_message_is_in_the_results_or_in_the_dead_letters_of_the_same_transaction[driver]",
    ),
    "180-kafka-registry-away-blames-messages": spark(
        "DID NOT RAISE.*SourceFailure",
        "kafka_values.py::test_a_registry_that_does_not_answer_fails_the_batch_and_blames_no_message",
    ),
    "214-late-change-replaces-the-table": pure(
        "assert ", "sequenced.py::test_any_permutation_of_a_history_over_any_cuts_and_merges_gives_one_state"
    ),
    "215-deleted-key-is-forgotten": spark(
        "assert ", "sequenced.py::test_every_reader_and_both_merges_decide_by_sequence_and_transaction[by Spark]"
    ),
    "233-deleted-key-is-forgotten-too-early": pure(
        "assert ", "sequenced.py::test_a_deleted_key_holds_for_its_retention_and_is_forgotten_behind_it"
    ),
    "234-merge-without-changes-has-no-feed": spark(
        "no row was changed", "change_feed.py::test_the_feed_of_each_version_is_the_difference_of_two_tables"
    ),
    "235-delete-ends-no-period": spark(
        "assert ",
        "history.py::test_the_periods_of_many_histories_as_spark_reads_them_before_and_behind_merges[by files]",
    ),
    "238-view-has-a-version-of-another-transaction": spark(
        "assert ", "views.py::test_a_view_is_one_transaction_of_all_tables_and_is_found_at_once"
    ),
    "193-kafka-silence-of-a-leader-is-an-answer": pure(
        "LogCut: .*its end at offset -1001",
        "kafka_answers.py::test_a_leader_that_does_not_answer_leaves_its_partition_where_it_is[KafkaSpout]",
    ),
    "194-kafka-begins-without-a-partition": pure(
        "DID NOT RAISE", "kafka_answers.py::test_no_stream_begins_while_a_leader_is_away[down-latest]"
    ),
    "195-kafka-cut-log-is-read-again": pure(
        "assert ", "kafka_consumer.py::test_a_log_that_is_cut_while_it_is_read_gives_no_offset_twice"
    ),
    "196-kafka-moves-back-under-what-is-in-flight": pure(
        "assert ",
        "kafka_answers.py::test_a_stream_goes_back_only_when_no_batch_in_flight_can_read_what_it_goes_back_to",
    ),
    "221-kafka-out-part-without-a-mark-stays-open": spark(
        "assert ", "kafka_state.py::test_a_part_that_has_no_mark_is_closed_too"
    ),
    "222-kafka-out-mark-not-read-again": spark(
        "DID NOT RAISE",
        "kafka_state.py::test_a_stale_coordinators_executor_that_wakes_up_is_refused_each_time[before it begins]",
    ),
    "223-kafka-out-waits-for-open-transactions": spark(
        "cannot read its marks",
        "kafka_state.py::test_a_stale_coordinators_executor_that_wakes_up_is_refused_each_time[behind its mark]",
    ),
    "300-kafka-out-producer-used-for-two-transactions": spark(
        r"1 of 1 cases failed",
        "kafka_wire.py::test_a_late_request_of_one_transaction_ends_no_other[EndTxn DOUBLED, first]",
    ),
    "301-kafka-out-call-without-a-watch": spark(
        "it hangs", "kafka_wire.py::test_a_call_that_the_client_never_returns_from_is_given_up"
    ),
    "224-kafka-out-growth-not-noticed": spark(
        "DID NOT RAISE", "kafka_state.py::test_a_topic_that_grows_amid_a_transaction_gets_nothing_of_it"
    ),
    "225-kafka-out-transaction-left-open": spark(
        "do not come to their ends",
        "kafka_state.py::test_a_message_that_is_too_large_is_a_refusal_and_holds_no_reader_up[of the client]",
    ),
    "226-kafka-out-marks-of-another-state-are-taken": spark(
        "DID NOT RAISE", "kafka_state.py::test_the_marks_of_another_state_are_refused"
    ),
    "236-kafka-out-loss-amid-a-run-is-not-noticed": spark(
        "DID NOT RAISE", "kafka_state.py::test_a_topic_that_is_made_anew_amid_a_run_gets_nothing_more"
    ),
    "232-batch-in-doubt-is-taken-for-done": pure(
        "assert ", "migrate.py::test_targets_that_do_not_say_it_are_asked_for_nothing"
    ),
    "231-adopted-table-may-have-two-rows-of-a-key": spark(
        "DID NOT RAISE",
        "adoption.py::test_a_table_of_which_not_all_is_understood_is_refused_and_left_as_it_was[doubled]",
    ),
    "229-outbox-key-of-the-coordinator": pure(
        "assert ", "http_state.py::test_each_row_is_a_request_with_a_key_of_its_own_that_stays"
    ),
    "230-outbox-letters-not-finished": pure(
        "assert ", "http_state.py::test_a_crash_about_a_dead_letter_leaves_it_once[before the file]"
    ),
    "243-outbox-progress-is-of-a-number": pure(
        "assert ", "http_state.py::test_progress_is_of_a_decision_not_of_its_number"
    ),
    "244-outbox-record-digest-not-compared": pure(
        "DID NOT RAISE",
        "http_state.py::test_a_record_is_read_as_it_was_written_or_not_at_all",
        "http_state.py::test_a_damaged_record_stops_the_state_until_it_begins_anew",
    ),
    "245-outbox-conflict-is-a-refusal-at-once": pure(
        "assert |Error",
        "http_state.py::test_a_conflict_with_a_request_under_way_is_no_refusal[another process]",
        "http_state.py::test_a_conflict_that_stays_is_a_refusal_unless_it_means_that_the_row_is_there",
    ),
    "246-outbox-request-has-no-deadline": pure(
        "did not match",
        "http_state.py::test_a_server_that_sends_a_little_for_ever_is_away[102]",
        "http_state.py::test_a_server_that_sends_a_little_for_ever_is_away[header]",
    ),
    "239-rollback-keeps-the-app-of-merges": spark(
        "fit together|assert |Halted",
        "rollback.py::test_a_rollback_that_fails_at_every_step_is_finished_by_the_same_command",
    ),
    "240-rollback-leaves-a-table-out": spark(
        "assert ", "rollback.py::test_the_next_incarnation_is_in_every_table_and_no_local_copy_outlives_it"
    ),
    "260-rollback-uses-attempt-ids-again": simulated("attempt id used again", by=ROLLED_BACK),
    "237-manifest-deleted-before-it-is-recorded": spark(
        "== 45", "recorder.py::test_a_manifest_goes_only_when_the_table_has_its_transaction"
    ),
    "197-kafka-early-end-believed-without-the-leader": pure(
        "assert ",
        "kafka_consumer.py::test_an_early_end_is_believed_only_when_it_is_answered_again_and_the_leader_says_so[True]",
    ),
    "241-pins-of-an-attempt-that-was-not-decided": spark(
        "is not that of the attempt that was decided",
        "fork.py::test_the_pins_are_those_of_the_attempts_that_were_decided",
    ),
    "340-a-sum-that-does-not-fit-is-decided": spark(
        "DID NOT RAISE",
        "fitting.py::test_a_sum_that_does_not_fit_fails_the_batch_and_names_state_and_key",
        "fitting.py::test_a_decimal_with_more_digits_than_its_type_fails_the_batch",
    ),
    "341-protocol-of-a-table-is-not-looked-at": spark(
        "DID NOT RAISE",
        "committer.py::test_a_table_that_asks_more_of_its_writers_is_refused_before_a_decision[rows]",
        "committer.py::test_a_table_that_asks_more_of_its_writers_is_refused_before_a_decision[counts]",
    ),
    "342-skip-is-offered-for-a-full-disk": pure("assert ", "advice.py::test_a_cause_below_counts"),
    "343-bounds-leave-out-what-waits-in-the-log": spark(
        "DID NOT RAISE", "fitting.py::test_what_waits_in_the_log_counts_beside_what_is_merged"
    ),
    "344-a-not-null-column-is-harmless": pure(
        "assert ", "evolution.py::test_only_further_nullable_columns_and_what_no_row_shows_are_harmless[change13-False]"
    ),
    "242-a-replay-reads-what-it-has-written": spark(
        "assert ", "replay.py::test_every_transaction_gives_what_was_committed_and_nothing_is_written"
    ),
    "350-spark-before-zookeeper": pure(
        "Spark was started", "cli.py::test_zookeeper_is_tried_before_spark_and_the_status_says_how_the_start_ended"
    ),
    "351-a-disks-refusal-is-an-error-of-the-framework": pure(
        "an error of the framework",
        "cli.py::test_a_warehouse_that_cannot_be_used_is_no_error_of_the_framework[zookeeper start]",
        "cli.py::test_a_warehouse_that_cannot_be_used_is_no_error_of_the_framework[run job.py]",
    ),
    "320-empty-file-is-taken-for-read": pure(
        "assert ", "changed_files.py::test_a_file_that_was_empty_when_it_was_found_is_read_once_it_has_content"
    ),
    "321-file-that-grew-after-it-was-read-is-not-looked-at": pure(
        "DID NOT RAISE",
        "changed_files.py::test_a_file_that_changes_after_it_was_read_is_an_error_that_names_it[grows-False]",
        "changed_files.py::test_a_file_that_changes_after_it_was_read_is_an_error_that_names_it[is replaced-True]",
    ),
    "322-columns-of-a-header-by-position": spark(
        "assert ", "file_formats.py::test_columns_are_matched_by_the_names_in_each_files_header[1000]"
    ),
    "323-open-quote-is-a-row": spark(
        "DID NOT RAISE", "file_formats.py::test_a_value_with_a_newline_in_quotes_fails_the_batch"
    ),
    # --- what others wrote
    "310-second-object-of-a-line-is-dropped": spark(
        "DID NOT RAISE",
        "json_lines.py::test_more_than_one_object_fails_the_batch_and_names_the_file",
    ),
    "311-debezium-column-that-is-missing-is-null": pure(
        "DID NOT RAISE",
        "debezium_values.py::test_a_column_that_the_message_lacks_is_named",
    ),
    "312-debezium-unit-of-a-number-is-guessed": pure(
        "DID NOT RAISE",
        "debezium_values.py::test_a_number_for_a_timestamp_needs_a_unit",
    ),
    "313-kafka-timestamp-is-not-looked-at": pure(
        "OverflowError", "kafka_poison.py::test_without_dead_letters_the_error_names_its_place[1]"
    ),
    "314-kafka-no-timestamp-is-1969": pure(
        "assert ", "kafka_poison.py::test_each_becomes_a_dead_letter_with_its_bytes_and_its_place[bytes]"
    ),
}
