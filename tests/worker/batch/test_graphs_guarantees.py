"""The guarantees of the batch hold for decode passes on static buffers too: the tests of these guarantees, run again
with passes that a `Tape` records and replays. A recorded pass is called once, so few of them are run with passes that
are only called.

Tests that look into passes through hooks of their own are not among them, because a replay calls no hook.
"""

from __future__ import annotations

import pytest

from steerserve.worker.batch import graphs
from tests.parts.activations.test_row import (
    test_readings_are_the_encoding_of_the_states_before_or_after_steering,
    test_readings_beside_rows_of_other_lengths_are_the_rows_own,
    test_two_requests_may_read_the_same_sae_in_different_ways,
)
from tests.worker.batch.test_batch import (
    test_an_idle_batch_holds_no_memory,
    test_cancelling_a_request_takes_all_its_choices_and_memory,
    test_rows_without_room_wait_and_all_finish_with_their_own_text,
)
from tests.worker.batch.test_batch import (
    test_no_order_of_joining_and_cancelling_changes_a_text as check_cancelling,
)
from tests.worker.batch.test_batch import (
    test_rows_that_join_and_leave_give_the_text_of_generate as check_joining,
)
from tests.worker.batch.test_seeds import test_a_seeded_text_is_the_same_alone_and_in_a_crowd
from tests.worker.conftest import Loaded
from tests.worker.hooks.test_edits import (
    test_a_tap_after_steering_reads_the_edited_value,
    test_added_values_are_counted_where_they_are_added,
    test_edited_rows_of_a_batch_equal_their_own_runs,
    test_random_rows_of_a_batch_equal_their_own_runs_byte_for_byte,
    test_rows_that_follow_are_edited_by_the_live_edits_from_the_next_pass_on,
)
from tests.worker.hooks.test_edits import (
    test_random_edits_at_positions_under_conditions_are_what_a_plain_model_does_by_hand as check_random_edits,
)
from tests.worker.hooks.test_readings import (
    test_each_token_has_the_reading_at_the_position_that_it_was_drawn_from,
)
from tests.worker.hooks.test_steering import (
    test_32_requests_with_32_overlays_share_every_pass_and_write_what_each_writes_alone,
    test_a_disabled_live_state_takes_a_stale_overlay_along,
    test_a_suppressed_row_beside_steered_ones_is_unsteered,
    test_an_overlay_yields_to_live_values_after_the_epoch_moved,
    test_an_sae_attached_anew_under_a_key_steers_by_its_own_rows,
    test_applied_counts_a_pass_once_however_many_rows_are_steered,
    test_detaching_while_a_row_runs_ends_its_steering,
    test_rows_steered_at_different_layers_by_different_saes_share_a_pass,
    test_seeded_rows_are_steered_like_others,
    test_two_overlays_in_one_batch_each_equal_their_own_solo_run,
    test_values_that_overflow_refuse_their_row_and_leave_its_neighbour_unchanged,
)
from tests.worker.live.test_monitor import (
    test_a_choice_that_ended_is_recorded_at_the_last_token_that_was_read,
    test_a_tap_and_monitoring_read_the_same,
    test_statistics_are_those_of_every_token_that_was_observed,
    test_the_steering_of_the_sae_itself_is_not_in_what_it_is_seen_to_read,
)
from tests.worker.live.test_sensing import (
    test_each_row_of_a_shared_batch_has_its_own_firings,
    test_the_edges_of_a_circuit_fire_as_by_brute_force,
    test_the_firings_of_a_row_are_those_of_its_hidden_states,
    test_the_values_are_read_before_the_steering_of_their_own_sae,
)
from tests.worker.running import Bench

__all__ = [
    "test_32_requests_with_32_overlays_share_every_pass_and_write_what_each_writes_alone",
    "test_a_choice_that_ended_is_recorded_at_the_last_token_that_was_read",
    "test_a_disabled_live_state_takes_a_stale_overlay_along",
    "test_a_seeded_text_is_the_same_alone_and_in_a_crowd",
    "test_a_suppressed_row_beside_steered_ones_is_unsteered",
    "test_a_tap_after_steering_reads_the_edited_value",
    "test_a_tap_and_monitoring_read_the_same",
    "test_added_values_are_counted_where_they_are_added",
    "test_an_idle_batch_holds_no_memory",
    "test_an_overlay_yields_to_live_values_after_the_epoch_moved",
    "test_an_sae_attached_anew_under_a_key_steers_by_its_own_rows",
    "test_applied_counts_a_pass_once_however_many_rows_are_steered",
    "test_cancelling_a_request_takes_all_its_choices_and_memory",
    "test_detaching_while_a_row_runs_ends_its_steering",
    "test_each_row_of_a_shared_batch_has_its_own_firings",
    "test_each_token_has_the_reading_at_the_position_that_it_was_drawn_from",
    "test_edited_rows_of_a_batch_equal_their_own_runs",
    "test_random_rows_of_a_batch_equal_their_own_runs_byte_for_byte",
    "test_readings_are_the_encoding_of_the_states_before_or_after_steering",
    "test_readings_beside_rows_of_other_lengths_are_the_rows_own",
    "test_rows_steered_at_different_layers_by_different_saes_share_a_pass",
    "test_rows_that_follow_are_edited_by_the_live_edits_from_the_next_pass_on",
    "test_rows_without_room_wait_and_all_finish_with_their_own_text",
    "test_seeded_rows_are_steered_like_others",
    "test_statistics_are_those_of_every_token_that_was_observed",
    "test_the_edges_of_a_circuit_fire_as_by_brute_force",
    "test_the_firings_of_a_row_are_those_of_its_hidden_states",
    "test_the_steering_of_the_sae_itself_is_not_in_what_it_is_seen_to_read",
    "test_the_values_are_read_before_the_steering_of_their_own_sae",
    "test_two_overlays_in_one_batch_each_equal_their_own_solo_run",
    "test_two_requests_may_read_the_same_sae_in_different_ways",
    "test_values_that_overflow_refuse_their_row_and_leave_its_neighbour_unchanged",
]


CALLED = {
    "test_a_seeded_text_is_the_same_alone_and_in_a_crowd",
    "test_rows_without_room_wait_and_all_finish_with_their_own_text",
    "test_32_requests_with_32_overlays_share_every_pass_and_write_what_each_writes_alone",
    "test_readings_are_the_encoding_of_the_states_before_or_after_steering",
}
"""Tests that are run with passes that are only called, too."""


@pytest.fixture
def loaded(tapeable: Loaded) -> Loaded:
    """Checkpoints whose passes can be recorded here."""
    return tapeable


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    modes = ["called", "taped"] if metafunc.function.__name__ in CALLED else ["taped"]
    metafunc.parametrize("decoding", modes, indirect=True)


@pytest.fixture(autouse=True)
def decoding(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the benches of a test run their decode passes."""
    monkeypatch.setattr(Bench, "decoding", request.param)
    monkeypatch.setattr(graphs, "CALLED_FIRST", 0)
    return str(request.param)


# test_graphs.py compares the bits of replays with those of calls in further architectures
@pytest.mark.parametrize("variant", ["llama", "falcon", "gemma3", "gpt_oss"])
def test_rows_that_join_and_leave_give_the_text_of_generate(loaded: Loaded, variant: str) -> None:
    check_joining(loaded, variant)


def test_no_order_of_joining_and_cancelling_changes_a_text(
    loaded: Loaded, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_cancelling(loaded, "llama", 1, monkeypatch)


def test_random_edits_are_what_a_plain_model_does_by_hand(loaded: Loaded) -> None:
    check_random_edits(loaded, "llama")
