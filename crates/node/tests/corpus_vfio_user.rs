//! The corpus of the fuzz target `vfio_user`, replayed: no nightly toolchain needed.

#[path = "../../../fuzz/bodies/vfio_user.rs"]
mod body;
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[test]
fn no_hypervisor_and_no_guest_stops_the_node() {
    replay::replay("vfio_user", body::body);
}
