"""Bugs put into the real machines on purpose. Each must be found by some seed.

A mutation is a function that patches the product for one test. What it breaks is
said in its docstring.
"""

from collections.abc import Callable

import pytest

from tests.sim.mutations import leadership, replicas

Mutation = Callable[[pytest.MonkeyPatch], None]

MUTATIONS: tuple[tuple[Mutation, tuple[str, ...]], ...] = (
    (replicas.no_deduplication, ("answer-lost", "stall", "scale", "engine-crash")),
    (replicas.dispatch_before_commit, ("slow-journal", "scale")),
    (replicas.claims_end_too_early, ("scale", "temper", "engine-crash")),
    (replicas.launch_without_record, ("agent-crash-between-effects", "agent-crash", "scale", "engine-crash")),
    (replicas.any_process_of_that_pid, ("pid-reused", "agent-crash")),
    (replicas.stopping_the_agent_stops_engines, ("agent-stop", "scale")),
    (replicas.gone_with_the_main_process, ("engine-crash", "scale", "temper")),
    (replicas.stopped_once_told, ("scale", "temper")),
    (replicas.adopts_nothing, ("agent-crash", "scale")),
    (replicas.no_higher_epoch_is_asked_for, ("store-restored", "control-crash", "scale")),
    (replicas.gives_up_without_asking, ("agent-crash", "agent-pause", "temper", "engine-crash", "disk")),
    (replicas.routers_forget_while_settling, ()),
    (replicas.registration_clears_labels, ("label", "agent-stop", "partition")),
    (replicas.holds_end_with_the_process, ("hold", "control-crash")),
    (replicas.holds_keep_nothing_out, ("hold", "label", "engine-crash", "scale")),
    (replicas.stopping_stops_nothing, ("serving", "scale")),
    (replicas.starting_brings_nothing_back, ("serving",)),
    (replicas.replaced_too_early, ("restart", "scale")),
    (replicas.the_old_one_still_counts, ("restart", "scale")),
    (replicas.a_failed_replacement_is_not_noticed, ("restart", "temper", "engine-crash")),
    (replicas.keys_are_read_once, ("provider",)),
    (replicas.endpoints_without_their_key, ("provider",)),
    (replicas.answers_are_kept_for_ever, ("scale", "engine-crash")),
    (leadership.the_lease_goes_by_the_wall_clock, ("host-clock", "store-partition", "control-pause", "scale")),
    (leadership.the_stores_clock_decides, ("store-clock",)),
    (leadership.acts_to_the_end_of_its_claim, ("store-partition", "store-away", "scale")),
    (leadership.never_in_doubt, ("store-partition", "store-away", "scale")),
    (leadership.decided_before_done_in_doubt, ("slow-journal", "store-partition", "scale")),
    (leadership.heals_elsewhere, ("store-partition", "store-away", "engine-crash")),
    (leadership.claims_by_reading_and_writing, ("late-claim", "store-partition", "control-pause")),
    (leadership.a_look_is_a_claim, ("cut-at-takeover", "control-crash")),
    (leadership.a_release_is_not_asked_whose, ("late-claim", "control-stop", "control-pause", "store-partition")),
    (leadership.a_new_leader_has_the_old_epoch, ("control-crash",)),
    (leadership.raises_its_epoch_by_itself, ("store-partition", "control-pause", "control-isolated", "agent-crash")),
    (leadership.forgets_the_epoch, ("store-partition", "agent-crash", "partition", "control-isolated")),
    (leadership.nobody_compares_epochs, ("store-partition", "partition", "control-isolated", "control-pause")),
    (leadership.routers_follow_anybody, ("store-partition", "router-partition", "control-isolated", "control-pause")),
    (leadership.obeys_before_it_is_on_disk, ("disk", "store-restored", "store-partition", "partition", "scale")),
    (leadership.a_restored_store_is_free, ("store-restored", "control-crash")),
    (leadership.nobody_is_told_that_another_leads, ("store-partition", "partition")),
    (leadership.gives_nodes_up_in_doubt, ("store-partition", "store-away", "partition", "host-reboot")),
    (leadership.nodes_never_heard_are_not_counted, ("mass-silence", "control-stop")),
    (leadership.mass_loss_is_loss, ("mass-silence",)),
    (leadership.all_lost_at_once, ("partition", "host-reboot")),
    (leadership.routers_are_not_asked, ("partition",)),
)
"""Each with the kinds of faults that provoke it; none = the usual storm."""

FOUND_BY: dict[Mutation, int] = {
    replicas.no_deduplication: 3,
    replicas.launch_without_record: 3,
    replicas.gives_up_without_asking: 29,
    replicas.routers_forget_while_settling: 8,
    replicas.holds_end_with_the_process: 3,
    replicas.a_failed_replacement_is_not_noticed: 39,
    leadership.a_release_is_not_asked_whose: 16,
    leadership.raises_its_epoch_by_itself: 3,
    leadership.forgets_the_epoch: 19,
    leadership.nobody_compares_epochs: 4,
    leadership.obeys_before_it_is_on_disk: 4,
    leadership.a_restored_store_is_free: 13,
}
"""A seed that found it: where to begin to look. Not needed for the result, only for the time."""
