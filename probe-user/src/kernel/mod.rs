//! What this kernel has: its functions, their prototypes, the layout of its structures.

mod btf;
mod functions;
mod offsets;

pub use btf::{Btf, BtfError};
pub use functions::{functions, is_hooked};
pub use offsets::{Offsets, STRUCTURES, offsets};
