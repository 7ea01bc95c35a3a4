//! From the hook table and what a library or kernel has, to what is attached where: pure, so that odd libraries can be
//! tried without having them.

use std::collections::{BTreeMap, HashSet};

use probe_common::hook::Hook;
use probe_common::{Layout, Part, Returns};

use crate::hooks::{DRIVER_SUFFIX, KERNEL_HOOKS, KernelHook, LibraryHook, library_hooks};
use crate::library::Image;

/// How the return of a function is seen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Exit {
    /// By a return probe, which replaces the return address.
    ReturnAddress,
    /// By probes on its return instructions, at these offsets in the file: the stack stays as it is.
    Instructions(Vec<u64>),
}

/// One attachment in a library.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LibraryPoint {
    /// What it watches.
    pub hook: &'static LibraryHook,
    /// Where its first instruction is in the file.
    pub file_offset: u64,
    /// The same, in the file's own address space.
    pub vaddr: u64,
    /// Where its return is seen.
    pub exit: Exit,
}

impl LibraryPoint {
    /// What the probe is told; `site` is its number in the table of sites.
    pub fn told(&self, site: u16) -> Hook {
        Hook {
            call: Some(self.hook.call),
            layout: self.hook.layout,
            returns: self.hook.returns,
            part: Part::None,
            address_arg: None,
            size_arg: None,
            entry_only: false,
            by_instruction: matches!(self.exit, Exit::Instructions(_)),
            site,
        }
    }
}

/// Where to attach in a library: every hook it exports, unless all its calls pass through another one.
pub fn library(image: &Image) -> Vec<LibraryPoint> {
    let mut taken = HashSet::new();
    library_hooks()
        .filter_map(|hook| {
            let export = image.exports.get(hook.symbol)?;
            // Only rdma-core's own functions are known to call one another; elsewhere each is hooked, and calls nested
            // in one another are merged when they happen.
            let covered =
                image.is_rdma_core && hook.through.is_some_and(|other| image.exports.contains_key(other));
            // Two names of one address (aliases, folded functions) are one place.
            (!covered && taken.insert(export.file_offset)).then(|| LibraryPoint {
                hook,
                file_offset: export.file_offset,
                vaddr: export.vaddr,
                exit: if hook.cancellable && !export.exits.is_empty() {
                    Exit::Instructions(export.exits.clone())
                } else {
                    Exit::ReturnAddress
                },
            })
        })
        .collect()
}

/// One attachment in the kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelPoint {
    /// Function.
    pub symbol: String,
    /// What the probe is told.
    pub told: Hook,
    /// Why its arguments are not read, where they would be of interest.
    pub blind: Option<String>,
}

/// What the kernel has: function names, and prototypes as far as it tells them.
pub trait KernelFunctions {
    /// True where the kernel has a function of this name.
    fn has(&self, symbol: &str) -> bool;
    /// Names of functions with this ending.
    fn ending(&self, suffix: &str) -> Vec<String>;
    /// Parameter names of a function, in order; `None` where no prototype is known.
    fn parameters(&self, symbol: &str) -> Option<Vec<String>>;
}

/// Where to attach in the kernel.
pub fn kernel(functions: &dyn KernelFunctions) -> Vec<KernelPoint> {
    let mut points: Vec<_> = KERNEL_HOOKS
        .iter()
        .filter(|hook| functions.has(hook.symbol))
        .map(|hook| kernel_point(hook, functions.parameters(hook.symbol)))
        .collect();
    for symbol in functions.ending(DRIVER_SUFFIX) {
        let told = Hook {
            call: None,
            layout: Layout::Bare,
            returns: Returns::KernelPointer,
            part: Part::Driver,
            address_arg: None,
            size_arg: None,
            entry_only: false,
            by_instruction: false,
            site: 0,
        };
        points.push(KernelPoint { symbol, told, blind: None });
    }
    points
}

fn kernel_point(hook: &KernelHook, parameters: Option<Vec<String>>) -> KernelPoint {
    let (mut address_arg, mut size_arg, mut blind) = (None, None, None);
    if hook.layout == Layout::KernelRange {
        match parameters {
            // Names are reused with other arguments from one kernel to the next: what a prototype does not name is
            // not read.
            Some(names) => {
                let at = |wanted: &[&str]| {
                    names
                        .iter()
                        .position(|name| wanted.contains(&name.as_str()))
                        .and_then(|i| u8::try_from(i).ok())
                };
                address_arg = at(&["addr", "address", "va", "start"]);
                size_arg = at(&["size", "length", "len"]);
                if size_arg.is_none() && !names.is_empty() {
                    blind = Some(format!("its arguments ({}) name no size", names.join(", ")));
                }
            }
            None => blind = Some("the kernel's BTF has no prototype of it".to_owned()),
        }
    }
    let told = Hook {
        call: hook.call,
        layout: hook.layout,
        returns: hook.returns,
        part: hook.part,
        address_arg,
        size_arg,
        entry_only: false,
        by_instruction: false,
        site: 0,
    };
    KernelPoint { symbol: hook.symbol.to_owned(), told, blind }
}

/// Kernel functions from plain lists.
#[derive(Debug, Default, Clone)]
pub struct KnownFunctions {
    /// Parameter names by function; `None` where there is no prototype.
    pub functions: BTreeMap<String, Option<Vec<String>>>,
}

impl KernelFunctions for KnownFunctions {
    fn has(&self, symbol: &str) -> bool {
        self.functions.contains_key(symbol)
    }

    fn ending(&self, suffix: &str) -> Vec<String> {
        self.functions.keys().filter(|name| name.ends_with(suffix)).cloned().collect()
    }

    fn parameters(&self, symbol: &str) -> Option<Vec<String>> {
        self.functions.get(symbol).cloned().flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::library::Export;

    fn image(is_rdma_core: bool, symbols: &[(&str, u64)]) -> Image {
        let exports = symbols
            .iter()
            .map(|(name, at)| {
                let export = Export {
                    vaddr: *at + 0x1000,
                    file_offset: *at,
                    exits: vec![*at + 7],
                    version: String::new(),
                };
                ((*name).to_owned(), export)
            })
            .collect();
        Image { exports, is_rdma_core, errno_slot_vaddr: None }
    }

    fn names(points: &[LibraryPoint]) -> Vec<&str> {
        points.iter().map(|point| point.hook.symbol).collect()
    }

    #[test]
    fn rdma_core_registrations_are_hooked_where_their_chain_ends() {
        let image = image(true, &[("ibv_reg_mr", 1), ("ibv_reg_mr_iova", 2), ("ibv_reg_mr_iova2", 3)]);
        assert_eq!(names(&library(&image)), ["ibv_reg_mr_iova2"]);
    }

    #[test]
    fn a_library_from_before_iova2_is_hooked_at_what_it_has() {
        let image = image(true, &[("ibv_reg_mr", 1), ("ibv_dereg_mr", 2)]);
        assert_eq!(names(&library(&image)), ["ibv_reg_mr", "ibv_dereg_mr"]);
    }

    #[test]
    fn a_foreign_library_is_hooked_at_every_entry() {
        let image = image(false, &[("ibv_reg_mr", 1), ("ibv_reg_mr_iova", 2), ("ibv_reg_mr_iova2", 3)]);
        assert_eq!(names(&library(&image)), ["ibv_reg_mr_iova2", "ibv_reg_mr", "ibv_reg_mr_iova"]);
    }

    #[test]
    fn two_names_of_one_address_are_hooked_once() {
        let image = image(false, &[("ibv_reg_mr_iova", 7), ("ibv_reg_mr_iova2", 7), ("ibv_dereg_mr", 8)]);
        assert_eq!(names(&library(&image)), ["ibv_reg_mr_iova2", "ibv_dereg_mr"]);
    }

    #[test]
    fn calls_that_may_be_cancelled_are_seen_at_their_return_instructions() {
        let mut image = image(true, &[("ibv_get_cq_event", 10), ("ibv_dereg_mr", 20)]);
        let points = library(&image);
        let exit = |points: &[LibraryPoint], name| {
            points.iter().find(|point| point.hook.symbol == name).map(|point| point.exit.clone())
        };
        assert_eq!(exit(&points, "ibv_get_cq_event"), Some(Exit::Instructions(vec![17])));
        assert_eq!(exit(&points, "ibv_dereg_mr"), Some(Exit::ReturnAddress));
        if let Some(export) = image.exports.get_mut("ibv_get_cq_event") {
            export.exits.clear();
        }
        assert_eq!(exit(&library(&image), "ibv_get_cq_event"), Some(Exit::ReturnAddress));
    }

    #[test]
    fn a_library_without_verbs_gets_no_probe() {
        assert!(library(&image(false, &[("malloc", 1)])).is_empty());
    }

    #[test]
    fn this_machines_rdma_core_has_all_its_calls_hooked() {
        let data = std::fs::read("/usr/lib/x86_64-linux-gnu/libibverbs.so.1").expect("libibverbs");
        let image = Image::parse(&*data, &crate::hooks::PREFIXES, &crate::hooks::is_hooked).unwrap();
        let points = library(&image);
        for symbol in ["ibv_reg_mr_iova2", "ibv_cmd_create_qp_ex2", "ibv_cmd_create_cq_ex", "ibv_modify_qp"] {
            assert!(names(&points).contains(&symbol), "{symbol}");
        }
        assert!(!names(&points).contains(&"ibv_reg_mr"));
    }

    fn functions(list: &[(&str, Option<&[&str]>)]) -> KnownFunctions {
        let functions = list
            .iter()
            .map(|(name, parameters)| {
                let parameters = parameters.map(|names| names.iter().map(|n| (*n).to_owned()).collect());
                ((*name).to_owned(), parameters)
            })
            .collect();
        KnownFunctions { functions }
    }

    #[test]
    fn a_pin_reads_the_arguments_its_prototype_names() {
        let now = functions(&[("ib_umem_get", Some(&["device", "addr", "size", "access"]))]);
        let points = kernel(&now);
        assert_eq!((points[0].told.address_arg, points[0].told.size_arg), (Some(1), Some(2)));
        assert_eq!(points[0].blind, None);
    }

    #[test]
    fn a_reused_name_with_other_arguments_is_counted_but_not_read() {
        let later = functions(&[("ib_umem_get", Some(&["device", "desc"]))]);
        let points = kernel(&later);
        assert_eq!((points[0].told.address_arg, points[0].told.size_arg), (None, None));
        assert!(points[0].blind.as_ref().is_some_and(|why| why.contains("device, desc")));
        let unknown = functions(&[("ib_umem_get", None)]);
        assert!(kernel(&unknown)[0].blind.is_some());
    }

    #[test]
    fn every_drivers_registration_function_is_timed() {
        let functions =
            functions(&[("mlx5_ib_reg_user_mr", None), ("rxe_reg_user_mr", None), ("other", None)]);
        let points = kernel(&functions);
        assert_eq!(points.len(), 2);
        assert!(points.iter().all(|p| p.told.part == Part::Driver && p.told.call.is_none()));
    }

    #[test]
    fn a_kernel_without_rdma_gets_no_probe() {
        assert!(kernel(&KnownFunctions::default()).is_empty());
    }
}
