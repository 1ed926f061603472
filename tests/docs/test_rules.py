"""Each rule that trtbuild must follow has tests, and these tests exist.

The numbers of the rules come from a document that is not in this repository.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]

#: Rule → file → the tests that fail if the code breaks the rule.
RULES: dict[str, dict[str, list[str]]] = {
    "3 trace: the program equals eager at min and max of every profile, which the trace checks": {
        "stages/trace/proof/test_proof.py": [
            "test_each_profile_is_proven_at_both_ends",
            "test_a_branch_on_batch_size_one_is_a_frozen_branch",
            "test_a_relation_between_two_dims_that_export_does_not_report_is_detected",
        ],
    },
    "3 trace: discovers its own dependencies": {
        "stages/trace/discovery/test_discovery.py": [
            "test_a_file_that_is_read_is_a_dependency_and_an_edit_changes_its_observation",
            "test_a_file_that_is_not_read_or_that_the_model_has_written_is_not_a_dependency",
            "test_an_absent_file_that_was_looked_up_is_a_dependency",
            "test_installed_code_is_observed_as_a_distribution_not_as_files",
            "test_variables_that_are_read_or_declared_are_observed_by_digest",
            "test_a_directory_that_is_listed_is_a_dependency_that_a_new_file_changes",
        ],
        "stages/trace/discovery/test_isolation.py": ["test_a_stale_pyc_file_is_not_run"],
    },
    "3 trace: if a dependency changes during the trace, nothing is published": {
        "stages/trace/discovery/test_recording.py": ["test_a_file_that_changes_during_the_trace_is_an_error"],
        "stages/trace/discovery/test_isolation.py": [
            "test_the_trace_fails_if_another_process_changes_a_file_that_was_read"
        ],
    },
    "3 trace: the example is opt, and never 1": {
        "stages/trace/export/test_exporting.py": ["test_a_dim_with_opt_1_stays_dynamic"]
    },
    "3 trace: named dims, and messages in the manifest's names": {
        "stages/trace/export/test_exporting.py": [
            "test_a_shared_dim_is_one_symbol_and_a_static_axis_is_a_number",
            "test_the_error_about_a_multiple_names_input_and_dim_and_suggests_multiple_of",
        ],
    },
    "3 trace: training mode, mutated buffers and random operators are typed errors": {
        "stages/trace/export/test_checks.py": [
            "test_rejects_a_module_in_training_mode",
            "test_rejects_a_write_to_a_buffer_and_names_it",
            "test_rejects_a_random_operator_and_names_the_users_line",
            "test_accepts_in_place_writes_to_views",
        ],
    },
    "3 trace: the manifest is not a dependency; deps, env and cacheable are declared by hand": {
        "core/planning/test_planning.py": [
            "test_with_cacheable_false_earlier_traces_are_not_used",
            "test_an_earlier_trace_without_the_declared_deps_is_not_used",
        ],
        "builds/test_incremental.py": ["test_renaming_a_profile_and_reordering_its_keys_run_no_engine"],
    },
    "3 weights by name: a fine-tune traces nothing": {
        "stages/trace/export/test_weights.py": ["test_the_graph_does_not_depend_on_whether_values_come_from_a_file"],
        "builds/test_incremental.py": ["test_a_fine_tune_of_one_layer_imports_no_torch_and_runs_one_engine_per_target"],
    },
    "3 lower: always functionalized, then an ordered table of passes": {
        "stages/lower/test_functionalize.py": ["test_an_in_place_write_to_a_view_gives_the_right_result"],
        "stages/lower/test_run.py": ["test_every_pass_has_a_unique_name_and_a_reason"],
    },
    "3 lower: precision is a graph transform, also for rows that are masked entirely": {
        "stages/lower/test_attention.py": ["test_rows_that_are_masked_entirely_equal_eager"],
        "stages/lower/half_precision/test_operators.py": ["test_sensitive_operators_stay_in_float32"],
    },
    "3 partition: the parser decides which operators TensorRT supports; a refused piece is cut again": {
        "toolchain/compiling/test_parsing.py": ["test_refuses_nodes_for_which_supports_operator_returns_true"],
        "stages/partition/test_run.py": [
            "test_a_refused_operator_becomes_a_torch_partition",
            "test_min_block_size_keeps_a_whole_model",
            "test_full_compilation_lists_operator_module_and_reason",
        ],
    },
    "3 partition: diamonds, several outputs, sizes that cross, random graphs against a reference": {
        "stages/partition/test_random.py": ["test_partitions_of_random_models_equal_the_whole_model"],
        "stages/partition/test_graphs.py": ["test_partitions_together_equal_the_whole_graph"],
        "stages/partition/test_sizes.py": [
            "test_a_later_partition_recomputes_sizes",
            "test_a_partition_without_a_tensor_of_a_needed_size_gets_one_as_an_input",
        ],
    },
    "3 convert: structure only; equal layers convert once, a fine-tune converts nothing": {
        "stages/convert/test_conversion.py": [
            "test_zero_and_random_weights_give_the_same_bytes_and_the_right_results",
            "test_names_are_canonical_and_the_model_has_no_metadata",
        ],
        "builds/test_incremental.py": ["test_the_first_build_runs_everything_and_equal_layers_convert_once"],
    },
    "3 engine: does not import torch": {
        "toolchain/compiling/test_compiler.py": [
            "test_another_process_builds_the_same_bytes_and_needs_neither_torch_nor_onnx"
        ],
    },
    "3 two phases: the plan is complete as soon as the partition records exist": {
        "core/planning/test_planning.py": ["test_after_each_stage_the_next_one_is_known"],
    },
    "4.1 keys: different recipes have different encodings": {
        "core/values/test_encoding.py": [
            "test_values_of_different_types_have_different_encodings",
            "test_floats_are_encoded_by_their_bits",
        ],
        "core/recipes/test_recipe.py": ["test_the_key_is_the_sha256_of_the_encoded_schema_and_recipe"],
    },
    "4.2 keys: a field is in a key, or in the table of excluded fields with a reason": {
        "core/recipes/test_key_fields.py": [
            "test_every_field_is_in_a_key_or_excluded",
            "test_every_field_is_accounted_for",
        ]
    },
    "4.3 keys: the text of a graph has everything that changes a result, and no names": {
        "stages/program/test_soundness.py": [
            "test_two_graphs_that_differ_in_one_thing_have_different_texts",
            "test_names_of_modules_weights_and_variables_are_not_in_the_text",
            "test_tied_weights_change_the_text",
            "test_the_digest_does_not_depend_on_path_hash_seed_user_locale_and_time_zone",
        ],
    },
    "4.4 keys: a custom operator is identified by its implementation; if it is unknown, nothing is cached": {
        "stages/trace/discovery/test_isolation.py": [
            "test_a_custom_operator_is_identified_by_the_digest_of_its_file",
            "test_a_trace_with_an_operator_of_unknown_implementation_is_not_cached",
        ],
    },
    "4.5 keys: weights are in the key of an engine by their digests, in order": {
        "core/recipes/test_keys.py": ["test_the_weights_of_an_engine_and_their_order_are_in_its_key"],
        "driver/project/test_weights_file.py": ["test_each_tensor_that_is_needed_becomes_a_blob_of_its_bytes"],
    },
    "4.6 keys: profiles count in order, with the ranges that follow from the bounds": {
        "core/recipes/test_keys.py": ["test_all_profiles_and_their_order_are_in_the_key_of_an_engine"],
        "core/planning/test_expand.py": ["test_ranges_come_from_bounds_not_from_the_values_at_min_and_max"],
    },
    "4.7 keys: the toolchain, the platform, the environment and all settings count": {
        "core/recipes/test_keys.py": ["test_toolchain_version_platform_and_environment_are_in_the_key_of_an_engine"],
        "toolchain/compiling/test_configuration.py": ["test_every_setting_reaches_tensorrt_rtx"],
    },
    "4.8 keys: versions are those of the process that runs the step": {
        "core/planning/test_planning.py": ["test_without_torch_a_trace_of_the_same_files_is_accepted_and_named"],
        "toolchain/compiling/test_compiler.py": ["test_rejects_another_version_than_the_job_names"],
    },
    "4.9 keys: the SM of a target counts, its name does not": {
        "core/recipes/test_keys.py": ["test_the_sm_of_a_target_is_in_the_key_and_its_name_is_not"]
    },
    "4.10 keys: a step has a version": {
        "core/recipes/test_keys.py": ["test_a_new_step_version_changes_the_key_of_that_step_only"]
    },
    "4.11 keys: a result with the same content stops a rebuild": {
        "core/planning/test_planning.py": [
            "test_a_comment_runs_the_trace_and_nothing_after_it",
            "test_a_new_torch_runs_the_steps_that_use_torch_and_no_engine",
        ],
    },
    "4.12 keys: a record is a hit only if its recipe is the wanted one": {
        "core/planning/test_verdicts.py": ["test_a_record_of_another_recipe_under_the_key_is_a_miss"]
    },
    "4.13 keys: the same recipe has the same key everywhere": {
        "core/recipes/test_recipe.py": ["test_golden_keys"],
        "core/recipes/test_keys.py": ["test_keys_do_not_depend_on_hash_seed_place_locale_time_zone_or_user"],
        "core/recipes/test_key_fields.py": ["test_a_field_changes_the_keys_that_it_is_in_and_no_other"],
    },
    "5 null build: it only calls stat, and in doubt the whole program runs": {
        "test_null_build.py": [
            "test_the_null_build_prints_the_answer_of_the_whole_program",
            "test_the_whole_program_runs_after_a_change_of",
            "test_the_whole_program_runs_after_a_change_of_the_variable",
            "test_the_whole_program_runs_after_an_installation",
            "test_a_snapshot_that_cannot_be_read_is_ignored",
        ],
    },
    "5 null build: times do not count for a file that was edited within one tick of the clock": {
        "driver/up_to_date/test_settled.py": [
            "test_a_new_file_is_checked_after_a_tick_of_the_clock",
            "test_a_change_time_is_settled_after_a_tick_of_its_clock",
        ],
    },
    "6 store: after a kill at any moment its entries are complete, and the next build is right": {
        "faults/test_kills.py": [
            "test_after_a_kill_the_cache_is_valid_and_the_next_build_is_right",
            "test_the_checks_notice_a_wrong_entry_and_a_half_output",
        ],
        "builds/faults/test_compiler_crash.py": ["test_a_compiler_that_is_ended_by_sigsegv_is_one_failed_step"],
        "builds/test_two_builds.py": [
            "test_two_builds_at_once_do_each_step_once",
            "test_a_waiting_build_continues_when_the_other_build_is_killed",
        ],
    },
    "8 runtime: streams are the caller's": {
        "runtime/engines/test_engines.py": [
            "test_calls_on_the_default_stream_are_ordered_with_it",
            "test_a_thread_on_two_streams_has_two_contexts_and_workspaces",
        ],
        "runtime/memory/test_arrays.py": [
            "test_the_reader_waits_for_the_writers_stream",
            "test_an_array_of_another_library_is_kept_until_the_call_has_finished",
        ],
    },
    "8 runtime: each thread has its contexts, and concurrent calls are safe": {
        "runtime/engines/test_engines.py": [
            "test_threads_have_contexts_of_their_own_and_calls_are_safe",
            "test_contexts_are_destroyed_only_after_their_work",
        ],
    },
    "8 runtime: inputs are copied only if necessary, and only outputs are allocated": {
        "runtime/engines/test_runs.py": ["test_nothing_but_outputs_is_allocated_after_the_first_call"],
        "runtime/engines/test_engines.py": [
            "test_unaligned_or_non_contiguous_inputs_are_copied_and_kept",
        ],
        "runtime/memory/test_arrays.py": ["test_arrays_of_other_libraries_are_read_without_a_copy"],
    },
    "8 runtime: TensorRT-RTX's kernels are stored for each GPU, and a start never fails because of them": {
        "runtime/engines/test_runtime_cache.py": [
            "test_another_gpu_driver_or_library_has_another_file",
            "test_a_damaged_kernel_file_is_not_used",
            "test_a_kernel_file_that_other_users_may_write_is_not_read",
        ],
    },
}


@pytest.mark.parametrize("rule", RULES)
def test_the_rule_has_its_tests(rule: str) -> None:
    for file, names in RULES[rule].items():
        text = (TESTS / file).read_text()
        for name in names:
            assert re.search(rf"^def {name}\(", text, re.MULTILINE), f"{file} has no {name}"
