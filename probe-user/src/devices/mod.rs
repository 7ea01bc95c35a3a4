//! RDMA devices of this host, their ports and counters, and which process owns which object.
