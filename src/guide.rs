//! [getting_started]: self::getting_started
//! [semantics]: self::semantics
//! [which_fabric]: self::which_fabric
//! [from_tcp_stream]: self::from_tcp_stream
//! [request_and_reply]: self::request_and_reply
//! [acknowledgement]: self::acknowledgement
//! [groups]: self::groups
//! [which_driver]: self::which_driver
//! [memory]: self::memory
//! [security]: self::security
//! [restarting]: self::restarting
//! [updating]: self::updating
//! [rdma_setup]: self::rdma_setup
//! [watching]: self::watching
//! [metrics]: self::metrics
//! [coming_from]: self::coming_from
//! [troubleshooting]: self::troubleshooting
#![doc = include_str!("guide/README.md")]

// Pages name each other by links that are defined at the end of each page as files, for readers of
// the repository. In rustdoc the first definition of a name counts, and leads to the module.
macro_rules! page_names {
    () => {
        "\
[getting_started]: crate::guide::getting_started
[semantics]: crate::guide::semantics
[which_fabric]: crate::guide::which_fabric
[from_tcp_stream]: crate::guide::from_tcp_stream
[request_and_reply]: crate::guide::request_and_reply
[acknowledgement]: crate::guide::acknowledgement
[groups]: crate::guide::groups
[which_driver]: crate::guide::which_driver
[memory]: crate::guide::memory
[security]: crate::guide::security
[restarting]: crate::guide::restarting
[updating]: crate::guide::updating
[rdma_setup]: crate::guide::rdma_setup
[watching]: crate::guide::watching
[metrics]: crate::guide::metrics
[coming_from]: crate::guide::coming_from
[troubleshooting]: crate::guide::troubleshooting
"
    };
}

#[doc = page_names!()]
#[doc = include_str!("guide/getting_started.md")]
pub mod getting_started {}

#[doc = page_names!()]
#[doc = include_str!("guide/semantics.md")]
pub mod semantics {}

#[doc = page_names!()]
#[doc = include_str!("guide/which_fabric.md")]
pub mod which_fabric {}

#[doc = page_names!()]
#[doc = include_str!("guide/from_tcp_stream.md")]
pub mod from_tcp_stream {}

#[doc = page_names!()]
#[doc = include_str!("guide/request_and_reply.md")]
pub mod request_and_reply {}

#[doc = page_names!()]
#[doc = include_str!("guide/acknowledgement.md")]
pub mod acknowledgement {}

#[doc = page_names!()]
#[doc = include_str!("guide/groups.md")]
pub mod groups {}

#[doc = page_names!()]
#[doc = include_str!("guide/which_driver.md")]
pub mod which_driver {}

#[doc = page_names!()]
#[doc = include_str!("guide/memory.md")]
pub mod memory {}

#[doc = page_names!()]
#[doc = include_str!("guide/security.md")]
pub mod security {}

#[doc = page_names!()]
#[doc = include_str!("guide/restarting.md")]
pub mod restarting {}

#[doc = page_names!()]
#[doc = include_str!("guide/updating.md")]
pub mod updating {}

#[doc = page_names!()]
#[doc = include_str!("guide/rdma_setup.md")]
pub mod rdma_setup {}

#[doc = page_names!()]
#[doc = include_str!("guide/watching.md")]
pub mod watching {}

#[doc = page_names!()]
#[doc = include_str!("guide/metrics.md")]
pub mod metrics {}

#[doc = page_names!()]
#[doc = include_str!("guide/coming_from.md")]
pub mod coming_from {}

#[doc = page_names!()]
#[doc = include_str!("guide/troubleshooting.md")]
pub mod troubleshooting {}
