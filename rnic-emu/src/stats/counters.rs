//! Names of the counters. The order is part of the file's format: append only, and raise `VERSION`.

macro_rules! counters {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(usize)]
        pub enum $name { $($(#[$vdoc])* $variant,)+ }

        impl $name {
            /// Every counter, in file order.
            pub const ALL: &'static [$name] = &[$($name::$variant,)+];
            /// How many there are.
            pub const COUNT: usize = Self::ALL.len();

            /// Name in tables and JSON.
            pub const fn name(self) -> &'static str {
                match self { $($name::$variant => $text,)+ }
            }
        }
    };
}

counters! {
    /// What is counted per QP, and, summed over its QPs, per device.
    QpCounter {
        /// Calls of post_send and wr_complete, failed ones included.
        SendCalls = "send_calls",
        /// Work requests those calls posted.
        SendWrs = "send_wrs",
        /// Of them, with a completion on success: flagged signalled, or on a QP with `sq_sig_all`.
        Signalled = "signalled",
        /// Of them, with inline data.
        Inline = "inline",
        /// Payload bytes of posted send work requests.
        SendBytes = "send_bytes",
        /// Scatter/gather entries of posted send work requests; inline data counts its buffers.
        SendSges = "send_sges",
        /// Calls of post_recv (not to a shared receive queue), failed ones included.
        RecvCalls = "recv_calls",
        /// Work requests those calls posted.
        RecvWrs = "recv_wrs",
        /// Posted RDMA WRITEs.
        Writes = "writes",
        /// Posted RDMA WRITEs with immediate data.
        WritesImm = "writes_imm",
        /// Posted SENDs.
        Sends = "sends",
        /// Posted SENDs with immediate data.
        SendsImm = "sends_imm",
        /// Posted RDMA READs.
        Reads = "reads",
        /// Posted compare-and-swaps.
        CompareSwaps = "compare_swaps",
        /// Posted fetch-and-adds.
        FetchAdds = "fetch_adds",
        /// Posted local invalidations.
        LocalInvs = "local_invs",
        /// Posted memory window bindings.
        Binds = "binds",
        /// Posted SENDs with invalidation.
        SendsInv = "sends_inv",
        /// Completions of the send queue that reached its CQ.
        SendCqes = "send_cqes",
        /// Completions of the receive queue that reached its CQ.
        RecvCqes = "recv_cqes",
        /// Send completions with an error status, flushes included.
        SendErrors = "send_errors",
        /// Receive completions with an error status, flushes included.
        RecvErrors = "recv_errors",
        /// Messages sent, retransmissions included.
        TxMessages = "tx_messages",
        /// Packets of the path MTU they would take.
        TxPackets = "tx_packets",
        /// Their payload bytes (of a READ: 0).
        TxBytes = "tx_bytes",
        /// Messages served as the responder.
        RxMessages = "rx_messages",
        /// Packets of the path MTU they took.
        RxPackets = "rx_packets",
        /// Their payload bytes (of a READ: what was sent back).
        RxBytes = "rx_bytes",
        /// RNR NAKs sent as the responder.
        RnrSent = "rnr_naks_sent",
        /// RNR NAKs received as the requester.
        RnrReceived = "rnr_naks_received",
        /// Retransmissions after the ACK timeout or a sequence error.
        Retries = "retries",
        /// Messages this QP dropped unserved: wrong state, no receive on UC or UD, wrong Q_Key.
        Drops = "drops",
    }
}

counters! {
    /// What is counted per CQ.
    CqCounter {
        /// Calls of poll_cq and start_poll.
        PollCalls = "poll_calls",
        /// Of them, that found nothing.
        EmptyPolls = "empty_polls",
        /// Completions handed to the program.
        Polled = "polled",
        /// Completions written to the queue.
        Cqes = "cqes",
        /// Calls of req_notify_cq.
        Notifies = "notifies",
        /// Events sent to the channel.
        Events = "events",
        /// Completions lost because the queue was full.
        Overruns = "overruns",
    }
}

counters! {
    /// What is counted for the process.
    ProcessCounter {
        /// Device contexts opened.
        ContextsOpened = "contexts_opened",
        /// Protection domains allocated.
        PdsAllocated = "pds_allocated",
        /// Memory regions registered.
        MrsRegistered = "mrs_registered",
        /// Memory regions deregistered.
        MrsDeregistered = "mrs_deregistered",
        /// Bytes of all registrations.
        MrBytes = "mr_bytes",
        /// Memory regions re-registered.
        MrsReregistered = "mrs_reregistered",
        /// Memory windows allocated.
        MwsAllocated = "mws_allocated",
        /// Completion queues created.
        CqsCreated = "cqs_created",
        /// Completion queues destroyed.
        CqsDestroyed = "cqs_destroyed",
        /// Queue pairs created.
        QpsCreated = "qps_created",
        /// Queue pairs destroyed.
        QpsDestroyed = "qps_destroyed",
        /// Successful calls of modify_qp.
        QpsModified = "qps_modified",
        /// Shared receive queues created.
        SrqsCreated = "srqs_created",
        /// Address handles created.
        AhsCreated = "ahs_created",
        /// Completion channels created.
        ChannelsCreated = "channels_created",
        /// Completion events taken by get_cq_event.
        CqEventsTaken = "cq_events_taken",
        /// Asynchronous events raised.
        AsyncEvents = "async_events",
        /// Calls of post_srq_recv, failed ones included.
        SrqRecvCalls = "srq_recv_calls",
        /// Work requests those calls posted.
        SrqRecvWrs = "srq_recv_wrs",
        /// Times the helper thread woke.
        HelperWakeups = "helper_wakeups",
        /// Times another process had to be woken.
        BellsRung = "bells_rung",
        /// Connections to other processes.
        Links = "links",
        /// Completions whose time the timing model gave.
        PacedCompletions = "paced_completions",
        /// Of them, visible more than 200 µs after their time: the machine did not keep up.
        PacedLate = "paced_late",
        /// The greatest such delay, in nanoseconds.
        PacedLagMaxNs = "paced_lag_max_ns",
    }
}

counters! {
    /// What the timing model counts, over both NICs it has; all 0 without a profile. Times are modelled picoseconds.
    ModelCounter {
        /// Requests handed to the model.
        Posted = "posted",
        /// Requests it completed.
        Completed = "completed",
        /// Packets sent.
        Packets = "packets",
        /// Doorbells rung.
        Doorbells = "doorbells",
        /// Lookups of QP contexts for sending.
        QpcLookups = "qpc_lookups",
        /// Of them, hits.
        QpcHits = "qpc_hits",
        /// Lookups of QP contexts for receiving.
        RxcLookups = "rxc_lookups",
        /// Of them, hits.
        RxcHits = "rxc_hits",
        /// Lookups of CQ contexts.
        CqcLookups = "cqc_lookups",
        /// Of them, hits.
        CqcHits = "cqc_hits",
        /// Lookups of WQEs of outstanding requests.
        WqeLookups = "wqe_lookups",
        /// Of them, hits.
        WqeHits = "wqe_hits",
        /// Lookups of memory keys.
        MptLookups = "mpt_lookups",
        /// Of them, hits.
        MptHits = "mpt_hits",
        /// Lookups of page translations.
        MttLookups = "mtt_lookups",
        /// Of them, hits.
        MttHits = "mtt_hits",
        /// Time the processing units were taken, summed over them.
        PuBusy = "pu_busy_ps",
        /// Time the send pipelines were taken.
        TxBusy = "tx_busy_ps",
        /// Time the receive pipelines were taken.
        RxBusy = "rx_busy_ps",
        /// Time the ports were sending.
        PortBusy = "port_busy_ps",
        /// Time PCIe towards the host was taken.
        PcieUpBusy = "pcie_up_busy_ps",
        /// Time PCIe from the host was taken.
        PcieDownBusy = "pcie_down_busy_ps",
        /// Modelled time passed.
        Now = "now_ps",
        /// Completed requests' time in the stage of this name (see `model::Stage`), and so on to the last.
        StageDoorbell = "stage_doorbell_ps",
        /// See above.
        StageWqeFetch = "stage_wqe_fetch_ps",
        /// See above.
        StageQueue = "stage_queue_ps",
        /// See above.
        StageSend = "stage_send_ps",
        /// See above.
        StagePayload = "stage_payload_ps",
        /// See above.
        StageWire = "stage_wire_ps",
        /// See above.
        StageRespond = "stage_respond_ps",
        /// See above.
        StageReturn = "stage_return_ps",
        /// See above.
        StageComplete = "stage_complete_ps",
        /// See above.
        StageContextMiss = "stage_context_miss_ps",
        /// See above.
        StageTranslationMiss = "stage_translation_miss_ps",
    }
}
