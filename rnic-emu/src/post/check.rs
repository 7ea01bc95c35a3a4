//! Which opcodes a QP type takes.

use crate::abi::consts::*;

/// Whether QPs of `kind` can send `opcode`.
pub fn opcode_fits(kind: u32, opcode: u32) -> bool {
    match kind {
        IBV_QPT_RC => opcode <= IBV_WR_SEND_WITH_INV,
        IBV_QPT_UC => matches!(
            opcode,
            IBV_WR_RDMA_WRITE
                | IBV_WR_RDMA_WRITE_WITH_IMM
                | IBV_WR_SEND
                | IBV_WR_SEND_WITH_IMM
                | IBV_WR_LOCAL_INV
                | IBV_WR_BIND_MW
        ),
        _ => matches!(opcode, IBV_WR_SEND | IBV_WR_SEND_WITH_IMM),
    }
}

/// Whether `opcode` carries payload that can be inline.
pub fn may_be_inline(opcode: u32) -> bool {
    matches!(
        opcode,
        IBV_WR_RDMA_WRITE
            | IBV_WR_RDMA_WRITE_WITH_IMM
            | IBV_WR_SEND
            | IBV_WR_SEND_WITH_IMM
            | IBV_WR_SEND_WITH_INV
    )
}

/// Whether `opcode` addresses remote memory.
pub fn has_remote(opcode: u32) -> bool {
    matches!(opcode, IBV_WR_RDMA_WRITE | IBV_WR_RDMA_WRITE_WITH_IMM | IBV_WR_RDMA_READ)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unreliable_queue_pairs_take_neither_reads_nor_atomics() {
        for opcode in [IBV_WR_RDMA_READ, IBV_WR_ATOMIC_CMP_AND_SWP, IBV_WR_ATOMIC_FETCH_AND_ADD] {
            assert!(opcode_fits(IBV_QPT_RC, opcode));
            assert!(!opcode_fits(IBV_QPT_UC, opcode) && !opcode_fits(IBV_QPT_UD, opcode));
        }
        assert!(!opcode_fits(IBV_QPT_UD, IBV_WR_RDMA_WRITE));
        assert!(!opcode_fits(IBV_QPT_RC, 10) && !opcode_fits(IBV_QPT_RC, u32::MAX));
    }
}
