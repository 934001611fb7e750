//! Broken plugins: each fault fails the behaviours that are about it, and leaves others alone.

use super::{conform, ended, give_gpus, ids, reference, set};

/// Behaviours that most faults leave alone: the plugin is not simply dead.
const BYSTANDERS: [&str; 3] = ["name-is-a-word", "devices-are-counted", "load-table-is-data"];

/// With this fault, `expected` fail and the bystanders pass.
fn broken(fault: &str, expected: &[&str]) {
    let chosen = [expected, &BYSTANDERS].concat().join(",");
    let mut command = conform(&format!("--timeout 10 --death 2 --only {chosen} --net"));
    command.arg(reference()).env("REFERENCE_FAULT", fault);
    let (code, lines, errors) = ended(command);
    assert_eq!(code, 1, "{fault}: {lines}{errors}");
    assert_eq!(ids(&lines, "FAIL"), set(expected), "{fault}: {lines}");
    assert_eq!(ids(&lines, "pass"), set(&BYSTANDERS), "{fault}: {lines}");
}

/// The same where there are GPUs, whose memory the plugin takes.
fn broken_on_gpus(fault: &str, expected: &[&str]) {
    let sound = "flush-has-an-end";
    let chosen = [expected, &[sound]].concat().join(",");
    let mut command = conform(&format!("--timeout 10 --only {chosen} --net"));
    command.arg(reference()).env("REFERENCE_FAULT", fault);
    if fault != "assume-gpu" {
        command.env("REFERENCE_GPU", "1");
    }
    give_gpus(&mut command);
    let (code, lines, errors) = ended(command);
    assert_eq!(code, 1, "{fault}: {lines}{errors}");
    assert_eq!(ids(&lines, "FAIL"), set(expected), "{fault}: {lines}");
    assert_eq!(ids(&lines, "pass"), set(&[sound]), "{fault}: {lines}");
}

macro_rules! broken_plugins {
    ($($name:ident: $fault:literal fails $($id:literal),+;)*) => {
        $(#[test]
        fn $name() {
            broken($fault, &[$($id),+]);
        })*
    };
}

broken_plugins! {
    a_stale_request_is_found: "stale-request" fails
        "request-null-when-not-now", "isend-overwrites-an-old-request";
    ignored_tags_are_found: "ignore-tags" fails
        "group-of-every-size", "groups-outstanding-together", "rotated-tags-fill-the-queue",
        "every-mixture-over-two-groups";
    tags_cut_to_16_bits_are_found: "cut-tags" fails "group-tags-above-16-bits";
    a_size_off_by_one_is_found: "size-off-by-one" fails
        "size-is-told", "group-sizes-are-told-each", "receive-larger-than-its-message";
    an_overrun_of_the_handle_is_found: "handle-overrun" fails "handle-stays-within-128-bytes";
    a_connect_that_blocks_is_found: "block-in-connect" fails
        "connect-does-not-block", "connect-before-accept";
    one_left_in_the_request_is_found: "leave-one" fails
        "irecv-overwrites-its-word", "optional-completion-still-delivers";
    a_comm_that_keeps_its_socket_is_found: "leak" fails "connections-leak-no-descriptors";
    a_context_that_is_kept_is_found: "finalize-leak" fails "finalize-frees-what-init-made";
    a_crash_fails_its_behaviours_and_no_others: "crash" fails
        "flush-has-an-end", "flush-between-messages";
    a_hang_fails_its_behaviour_and_no_others: "hang" fails "listener-never-connected";
    messages_out_of_order_are_found: "reorder" fails
        "order-of-a-thousand", "window-of-thirty-two", "receive-posted-first",
        "transfer-of-ten-size-pairs";
    a_silent_truncation_is_found: "truncate" fails
        "too-long-send-is-contained", "too-long-send-leaves-others-alone";
    an_overflow_is_found: "overflow" fails "too-long-send-is-contained";
    a_lost_last_message_is_found: "lose-last" fails
        "close-right-after-the-last-send", "exit-right-after-the-last-send",
        "silence-after-small-sends";
    a_close_that_forgets_what_the_kernel_holds_is_found: "abrupt-close" fails
        "close-right-after-the-last-send";
    an_unwritten_property_is_found: "unwritten-property" fails
        "properties-write-every-field", "properties-requests-in-one";
    devices_of_one_name_are_found: "one-name" fails "properties-name-each-device-once";
    a_done_that_is_not_written_is_found: "done-unwritten" fails "test-writes-done-every-time";
    sizes_written_to_null_are_found: "need-sizes" fails "test-bears-null-sizes";
    a_lie_about_global_regions_is_found: "false-global" fails "properties-global-regions-are-global";
    a_buffer_read_after_done_is_found: "keep-buffer" fails "send-buffer-is-free-after-done";
    a_buffer_written_after_done_is_found: "write-again" fails
        "nothing-lands-after-done";
    a_death_that_is_not_told_is_found: "ignore-death" fails
        "death-of-the-sender-is-told", "death-of-the-receiver-is-told";
    listeners_that_are_one_are_found: "shared-listener" fails
        "handles-differ", "listeners-are-independent";
    a_handle_that_cannot_travel_is_found: "wide-handle" fails "handle-is-plain-bytes";
}

macro_rules! broken_on_gpus {
    ($($name:ident: $fault:literal fails $($id:literal),+;)*) => {
        $(#[test]
        fn $name() {
            broken_on_gpus($fault, &[$($id),+]);
        })*
    };
}

broken_on_gpus! {
    a_flush_that_does_nothing_is_found: "no-flush" fails
        "gpu-flush-makes-visible", "gpu-memory-in-groups", "gpu-memory-carries-messages";
    a_flush_of_one_buffer_for_a_group_is_found: "flush-first" fails "gpu-memory-in-groups";
    a_flush_that_ends_too_early_is_found: "flush-early" fails "gpu-flush-makes-visible";
    a_descriptor_used_after_the_call_is_found: "late-descriptor" fails "gpu-dmabuf-registers";
    a_promise_of_device_memory_that_is_not_kept_is_found: "refuse-gpu" fails
        "gpu-memory-registers", "gpu-memory-carries-messages";
    ranges_of_device_memory_that_are_refused_are_found: "ranges-of-gpu" fails
        "gpu-memory-registers";
    a_registration_that_outlives_its_buffer_is_found: "old-view" fails "gpu-address-used-again";
    a_copy_from_device_memory_by_the_cpu_is_found: "copy-gpu" fails
        "gpu-memory-registers", "gpu-memory-carries-messages";
    device_memory_that_is_touched_to_be_refused_is_found: "assume-gpu" fails
        "gpu-memory-is-refused";
    device_memory_for_one_comm_only_is_found: "alone-on-gpu" fails "gpu-buffer-on-many-comms";
}
