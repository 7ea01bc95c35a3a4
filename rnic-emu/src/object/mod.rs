//! What programs create: each object begins with the struct `verbs.h` shows, and goes on with ours.

pub mod ah;
pub mod async_event;
pub mod channel;
pub mod cq;
pub mod key;
pub mod mr;
pub mod pd;
pub mod qp;
pub mod qp_attr;
pub mod qp_state;
pub mod qp_table;
pub mod recv_ring;
pub mod segments;
pub mod send_queue;
pub mod srq;
