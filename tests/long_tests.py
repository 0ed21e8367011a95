"""The tests that take long and add least: ``make test`` leaves them out, ``make long`` runs them and no others.

Each has shorter neighbours in ``make test`` that look at the same promise. A name stands for all of its parameters,
a name with brackets for these alone. ``tests/whole/test_long_tests.py`` looks whether each name is there.
"""

from __future__ import annotations

# Its file in tests/: names of tests; without any, all of the file.
LONG: dict[str, tuple[str, ...]] = {
    # Tells what the other one tells, by a process of the command; `make handover` has its kills.
    "commands/test_handover.py": ("test_the_command_as_a_process_of_its_own_is_killed_and_bad_input_is_told",),
    "commands/test_migrate.py": ("test_a_job_that_was_stopped_anywhere_goes_on_here[files-(2, 'before')]",),
    "commands/test_new.py": ("test_its_test_passes",),
    "messages/test_tracked_streams.py": (
        "test_a_function_in_the_transactions_turn_fails_its_message_too",
        "test_a_failure_that_is_no_messages_fault_fails_the_batch[function1]",
        "test_without_ackers_messages_are_acknowledged_when_they_are_emitted",
    ),
    # The pass over local copies stays, which is what a window takes by default.
    "operations/test_window_parts.py": (
        "test_exactly_once_over_crashes[tables]",
        "test_exactly_once_over_crashes[driver]",
    ),
    "running/test_local_copies.py": (
        "test_they_are_used_for_every_batch_and_give_what_a_fold_gives[False]",
        "test_copies_that_are_deleted_all_the_time_cost_no_exactness",
        "test_a_copy_that_goes_between_driver_and_worker_is_built_again",
        "test_tasks_bring_up_the_copies_of_their_own_hosts_or_the_tables_are_read[a log that is not mounted there]",
    ),
    # Kills of a process whose record is looked at; tests/states/history has the record without processes.
    "running/test_recorded_past.py": ("test_through_kills_no_transaction_is_missing_or_doubled",),
    "spark/test_class_archive.py": ("test_a_session_starts_where_the_jvm_dies_of_the_archive[spark.app.name=dies]",),
    "states/keyed/test_adoption.py": (
        "test_an_adoption_that_is_killed_runs_again[1-do_then_fail]",
        "test_an_adoption_that_is_killed_runs_again[2-fail_before]",
        "test_an_adoption_that_is_killed_runs_again[3-do_then_fail]",
    ),
    "states/keyed/test_file_merge.py": ("test_columns_of_any_name_are_staged_merged_and_read[combine]",),
    # `make views` has them for ten minutes.
    "time_travel/test_views_under_kills.py": (),
    "whole/test_notebooks.py": (
        "test_a_notebook_gives_what_is_committed[requests]",
        "test_a_notebook_gives_what_is_committed[time_travel]",
    ),
    "whole/test_pages.py": (
        "test_the_programs_of_a_page_print_what_it_says[docs/tutorial.md]",
        "test_the_programs_of_a_page_print_what_it_says[docs/time-travel.md]",
    ),
    "whole/test_simulator.py": (
        "test_a_planted_defect_is_found[gives up before the earlier ones are finished]",
        "test_a_planted_defect_of_rollbacks_is_found[positions of an attempt that was not decided]",
    ),
    "whole/test_wheel.py": ("test_a_users_program_with_types_passes_mypy_strict",),
}


def is_long(file: str, name: str) -> bool:
    """Tells whether a test is left to ``make long``.

    Args:
        file: relative to tests/.
        name: of the test, with its parameters.
    """
    names = LONG.get(file)
    return names is not None and (not names or name in names or name.partition("[")[0] in names)
