//! Shared memory: which processes of one host exchange messages through it.
//!
//! Two nodes share memory if they run on one host, as one user and in one network namespace. With
//! settings at both they do so as different users
//! ([`NodeBuilder::share_memory_with`](crate::NodeBuilder::share_memory_with)), and in different
//! network namespaces
//! ([`NodeBuilder::shared_memory_directory`](crate::NodeBuilder::shared_memory_directory)). The kernel
//! tells each end as which user the other runs.
//!
//! Each process maps the other's memory read-only, and checks what lies there before it is used.
//! Messages between processes of one user are read where the sender wrote them, so a sender that
//! breaks the protocol could change a message while it is read. Messages of another user are copied
//! first. [The guide](https://docs.rs/ibex/latest/ibex/guide/which_fabric/index.html#other-users-and-containers) shows containers.
#![forbid(unsafe_code)]

pub use ibex_bootstrap::ShareWith;

/// Reads the users from a variable of the environment.
pub(crate) fn parse_share_with(text: &str) -> Option<ShareWith> {
    match text.split_once(':') {
        None if text == "nobody" => Some(ShareWith::Nobody),
        None if text == "anyone" => Some(ShareWith::Anyone),
        Some(("group", group)) => group.trim().parse().ok().map(ShareWith::Group),
        Some(("users", users)) => {
            let users = users.split(',').map(|user| user.trim().parse().ok());
            users.collect::<Option<_>>().map(ShareWith::Users)
        }
        _ => None,
    }
}
