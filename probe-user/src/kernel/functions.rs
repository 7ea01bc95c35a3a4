//! Which functions the kernel has, and their prototypes.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, BufRead, BufReader};

use super::Btf;
use crate::hooks::{DRIVER_SUFFIX, KERNEL_HOOKS};
use crate::plan::KnownFunctions;

/// The hooked functions of this kernel, from `/proc/kallsyms`, with the prototypes their BTF tells.
///
/// # Errors
/// When `/proc/kallsyms` cannot be read.
pub fn functions(vmlinux: Option<&Btf<'_>>, modules: &[Btf<'_>]) -> io::Result<KnownFunctions> {
    let names = hooked(BufReader::new(File::open("/proc/kallsyms")?))?;
    let parameters =
        |name: &str| modules.iter().find_map(|m| m.parameters(name)).or_else(|| vmlinux?.parameters(name));
    Ok(KnownFunctions {
        functions: names.into_iter().map(|name| (name.clone(), parameters(&name))).collect(),
    })
}

/// True for names a kernel hook may sit at.
pub fn is_hooked(name: &str) -> bool {
    // Cheap first: this is asked of every function of the kernel.
    let driver = name.ends_with(DRIVER_SUFFIX) && !name.starts_with("__") && name != NO_DRIVER;
    driver || name.starts_with("ib_") && KERNEL_HOOKS.iter().any(|hook| hook.symbol == name)
}

/// Ends like a driver's function, but serves the kernel's own users.
const NO_DRIVER: &str = "ib_reg_user_mr";

/// The names out of kallsyms that a hook may sit at: functions (`t`, `T`) only.
fn hooked(kallsyms: impl BufRead) -> io::Result<HashSet<String>> {
    let mut found = HashSet::new();
    for line in kallsyms.split(b'\n') {
        let line = line?;
        let Ok(line) = std::str::from_utf8(&line) else { continue };
        let mut fields = line.split_ascii_whitespace();
        let (Some(_address), Some(kind), Some(name)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        if matches!(kind, "t" | "T") && is_hooked(name) {
            found.insert(name.to_owned());
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_functions_that_are_hooked_are_taken() {
        let text = "0000000000000000 T schedule\n\
                    0000000000000000 t ib_umem_get\t[ib_uverbs]\n\
                    0000000000000000 r ib_umem_release\t[ib_uverbs]\n\
                    0000000000000000 t mlx5_ib_reg_user_mr\t[mlx5_ib]\n\
                    0000000000000000 T ib_reg_user_mr\t[ib_core]\n\
                    0000000000000000 t __pfx_rxe_reg_user_mr\t[rdma_rxe]\n\
                    broken line\n\n";
        let mut found: Vec<_> = hooked(text.as_bytes()).unwrap().into_iter().collect();
        found.sort();
        assert_eq!(found, ["ib_umem_get", "mlx5_ib_reg_user_mr"]);
    }
}
