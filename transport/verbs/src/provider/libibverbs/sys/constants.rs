//! The constants of `infiniband/verbs.h`, as far as this provider uses them; what the data path
//! needs is in [`crate::abi`].

use std::ffi::c_uint;

/// Declares constants, and a comparison of each with the generated one.
macro_rules! constants {
    ($($name:ident: $type:ty = $value:expr, $($theirs:tt)::+ $(. $number:tt)?;)*) => {
        $(pub(in super::super) const $name: $type = $value;)*

        /// Returns each difference from the constants that `rdma-sys` generates.
        #[cfg(all(test, feature = "rdma-sys"))]
        pub(super) fn differences() -> Vec<String> {
            let mut found = super::compare::Found::default();
            $(
                let theirs = rdma_sys::$($theirs)::+ $(. $number)?;
                found.number(stringify!($name), "value", $name as usize, theirs as usize);
            )*
            found.differences()
        }
    };
}

constants! {
    IBV_WC_EX_WITH_BYTE_LEN: u64 = 1, ibv_create_cq_wc_flags::IBV_WC_EX_WITH_BYTE_LEN.0;
    IBV_WC_EX_WITH_IMM: u64 = 1 << 1, ibv_create_cq_wc_flags::IBV_WC_EX_WITH_IMM.0;
    IBV_WC_EX_WITH_QP_NUM: u64 = 1 << 2, ibv_create_cq_wc_flags::IBV_WC_EX_WITH_QP_NUM.0;
    IBV_WC_EX_WITH_COMPLETION_TIMESTAMP: u64 = 1 << 7,
        ibv_create_cq_wc_flags::IBV_WC_EX_WITH_COMPLETION_TIMESTAMP.0;
    IBV_CQ_INIT_ATTR_MASK_FLAGS: u32 = 1, ibv_cq_init_attr_mask::IBV_CQ_INIT_ATTR_MASK_FLAGS.0;
    IBV_CREATE_CQ_ATTR_SINGLE_THREADED: u32 = 1,
        ibv_create_cq_attr_flags::IBV_CREATE_CQ_ATTR_SINGLE_THREADED.0;
    IBV_VALUES_MASK_RAW_CLOCK: u32 = 1, ibv_values_mask::IBV_VALUES_MASK_RAW_CLOCK.0;
    IBV_SRQ_LIMIT: c_uint = 1 << 1, ibv_srq_attr_mask::IBV_SRQ_LIMIT.0;
    IBV_MW_TYPE_1: c_uint = 1, ibv_mw_type::IBV_MW_TYPE_1;
    IBV_MW_TYPE_2: c_uint = 2, ibv_mw_type::IBV_MW_TYPE_2;
    IBV_XRCD_INIT_ATTR_FD: u32 = 1, ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_FD.0;
    IBV_XRCD_INIT_ATTR_OFLAGS: u32 = 1 << 1, ibv_xrcd_init_attr_mask::IBV_XRCD_INIT_ATTR_OFLAGS.0;
    IBV_SRQ_INIT_ATTR_TYPE: u32 = 1, ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_TYPE.0;
    IBV_SRQ_INIT_ATTR_PD: u32 = 1 << 1, ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_PD.0;
    IBV_SRQ_INIT_ATTR_XRCD: u32 = 1 << 2, ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_XRCD.0;
    IBV_SRQ_INIT_ATTR_CQ: u32 = 1 << 3, ibv_srq_init_attr_mask::IBV_SRQ_INIT_ATTR_CQ.0;
    IBV_SRQT_XRC: c_uint = 1, ibv_srq_type::IBV_SRQT_XRC;
    IBV_QP_INIT_ATTR_XRCD: u32 = 1 << 1, ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_XRCD.0;
    IBV_QP_OPEN_ATTR_NUM: u32 = 1, ibv_qp_open_attr_mask::IBV_QP_OPEN_ATTR_NUM.0;
    IBV_QP_OPEN_ATTR_XRCD: u32 = 1 << 1, ibv_qp_open_attr_mask::IBV_QP_OPEN_ATTR_XRCD.0;
    IBV_QP_OPEN_ATTR_TYPE: u32 = 1 << 3, ibv_qp_open_attr_mask::IBV_QP_OPEN_ATTR_TYPE.0;
    IBV_GID_TYPE_SYSFS_ROCE_V2: c_uint = 1, IBV_GID_TYPE_SYSFS_ROCE_V2;
}
