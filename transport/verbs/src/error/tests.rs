//! Tests of what errors say.

use super::*;
use crate::locked_memory::LockedMemory;

#[test]
fn a_missing_library_names_the_packages() {
    let error = VerbsError::NoLibrary {
        reason: "cannot open shared object file".to_owned(),
    };
    assert!(error.is_absence());
    assert_eq!(
        error.to_string(),
        "RDMA cannot be used: libibverbs.so.1 cannot be loaded (cannot open shared object \
         file); install rdma-core's libraries (Debian: libibverbs1 ibverbs-providers; \
         Fedora: libibverbs) and start again"
    );
}

#[test]
fn each_reason_not_to_open_has_its_own_next_step() {
    let text = |source| {
        VerbsError::Open {
            device: "mlx5_0".to_owned(),
            source,
        }
        .to_string()
    };
    assert!(text(Errno::ACCESS).contains("group rdma"));
    assert!(text(Errno::NOENT).contains("--device=/dev/infiniband"));
    assert!(text(Errno::NOSYS).contains("provider library is missing"));
}

#[test]
fn a_queue_that_finds_no_memory_may_have_met_the_limit_if_there_is_one() {
    let text = |limit, source| {
        let pinned = 4096;
        let locked = LockedMemory { pinned, limit };
        VerbsError::creation("mlx5_0", "ibv_create_cq", locked, source).to_string()
    };
    assert_eq!(
        text(Some(65_536), Errno::NOMEM),
        "RDMA device mlx5_0: ibv_create_cq failed: Cannot allocate memory (os error 12); the \
         device has no room for it, or the limit on locked memory is too small: of 65536 bytes \
         4096 are pinned already, and the receive buffers of a node take 36 MiB by default; \
         raise it with `ulimit -l`, LimitMEMLOCK=infinity (systemd), --ulimit memlock=-1 \
         (docker) or /etc/security/limits.conf"
    );
    assert_eq!(
        text(None, Errno::NOMEM),
        "RDMA device mlx5_0: ibv_create_cq failed: Cannot allocate memory (os error 12); the \
         device has no room for it"
    );
    assert_eq!(
        text(Some(65_536), Errno::INVAL),
        "RDMA device mlx5_0: ibv_create_cq failed: Invalid argument (os error 22); the device \
         refuses what is within all limits that it tells"
    );
    assert_eq!(
        text(Some(65_536), Errno::IO),
        "RDMA device mlx5_0: ibv_create_cq failed: Input/output error (os error 5); the device \
         was removed or has failed; open it again when it is in the list of devices"
    );
}

#[test]
fn locked_memory_is_blamed_only_beyond_its_limit() {
    let locked = LockedMemory {
        pinned: 4096,
        limit: Some(65_536),
    };
    let text = |bytes, source| VerbsError::registration("rxe0", bytes, locked, source).to_string();
    assert_eq!(
        text(65_536, Errno::NOMEM),
        "cannot register 65536 bytes with RDMA device rxe0: 4096 bytes are pinned already and \
         the limit on locked memory is 65536 bytes, so at least 69632 are needed (Cannot \
         allocate memory (os error 12)); raise it with `ulimit -l`, LimitMEMLOCK=infinity \
         (systemd), --ulimit memlock=-1 (docker) or /etc/security/limits.conf, or lower \
         receive_buffers or held_buffers"
    );
    for text in [text(4096, Errno::NOMEM), text(65_536, Errno::INVAL)] {
        assert!(text.contains("ibv_reg_mr failed"), "{text}");
    }
    let none = LockedMemory {
        pinned: 0,
        limit: Some(0),
    };
    let text = VerbsError::registration("rxe0", 4096, none, Errno::PERM).to_string();
    assert!(
        text.contains("the limit on locked memory is 0 bytes"),
        "{text}"
    );
    assert!(text.contains("`ulimit -l`"), "{text}");
}
