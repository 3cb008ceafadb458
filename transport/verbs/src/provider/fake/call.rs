//! The calls that the device can refuse.

/// A call that can be refused, by its name in libibverbs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Call {
    /// `ibv_get_device_list`.
    Devices,
    /// `ibv_open_device`.
    Open,
    /// `ibv_close_device`.
    Close,
    /// `ibv_query_device_ex`.
    QueryDevice,
    /// `ibv_query_port`.
    QueryPort,
    /// `ibv_query_gid_ex`.
    QueryGid,
    /// `ibv_query_pkey`.
    QueryPkey,
    /// `ibv_get_async_event`.
    AsyncEvent,
    /// `ibv_alloc_pd`.
    CreateDomain,
    /// `ibv_dealloc_pd`.
    DestroyDomain,
    /// `ibv_reg_mr`.
    Register,
    /// `ibv_dereg_mr`, of any memory region.
    Deregister,
    /// `ibv_reg_dmabuf_mr`.
    RegisterDmabuf,
    /// `ibv_reg_dm_mr`.
    RegisterBuffer,
    /// `ibv_alloc_dm`.
    CreateBuffer,
    /// `ibv_free_dm`.
    DestroyBuffer,
    /// `ibv_alloc_mw`.
    CreateWindow,
    /// `ibv_dealloc_mw`.
    DestroyWindow,
    /// `ibv_bind_mw`.
    BindWindow,
    /// `ibv_create_comp_channel`.
    CreateChannel,
    /// `ibv_destroy_comp_channel`.
    DestroyChannel,
    /// `ibv_get_cq_event`.
    ChannelEvent,
    /// `ibv_create_cq`.
    CreateCompletionQueue,
    /// `ibv_destroy_cq`, of any completion queue.
    DestroyCompletionQueue,
    /// `ibv_create_srq`.
    CreateSharedReceive,
    /// `ibv_modify_srq` with `IBV_SRQ_LIMIT`.
    ArmSharedReceiveLimit,
    /// `ibv_query_srq`.
    QuerySharedReceive,
    /// `ibv_destroy_srq`, of any shared receive queue.
    DestroySharedReceive,
    /// `ibv_create_qp`, of any kind.
    CreatePair,
    /// `ibv_modify_qp`.
    ModifyPair,
    /// `ibv_query_qp`.
    QueryPair,
    /// `ibv_destroy_qp`.
    DestroyPair,
    /// `ibv_post_send`, counted for each request of the list.
    PostSend,
    /// `ibv_post_recv` and `ibv_post_srq_recv`, counted for each request of the list.
    PostReceive,
    /// `ibv_poll_cq`.
    PollQueue,
    /// `ibv_start_poll`, of an extended completion queue.
    StartPoll,
    /// `ibv_next_poll`, of an extended completion queue.
    NextPoll,
    /// `ibv_create_cq_ex`.
    CreateExtendedQueue,
    /// `ibv_query_rt_values_ex`.
    ReadClock,
    /// `ibv_create_ah`.
    CreateAddress,
    /// `ibv_destroy_ah`.
    DestroyAddress,
    /// `ibv_attach_mcast`.
    AttachMulticast,
    /// `ibv_detach_mcast`.
    DetachMulticast,
    /// `ibv_open_xrcd`.
    OpenXrcDomain,
    /// `ibv_close_xrcd`.
    CloseXrcDomain,
    /// `ibv_create_srq_ex` of `IBV_SRQT_XRC`.
    CreateXrcReceives,
    /// `ibv_open_qp`.
    OpenPair,
    /// `ibv_req_notify_cq`.
    RequestNotify,
}
