//! A kernel that is made up (`programs/uverbs.c`): it announces one device to libibverbs, whose real, stripped provider
//! library then makes contexts and objects as it would with the hardware. Needs root, and a kernel without RDMA.

use std::fs;

use tempfile::TempDir;

use super::compile;

/// A device that is only announced.
pub struct Model {
    /// Its provider.
    pub provider: &'static str,
    /// What the device is called.
    pub name: &'static str,
    /// Its vendor and product, as the kernel writes them.
    pub pci: &'static str,
    /// The version of the kernel driver's interface.
    pub abi: &'static str,
}

/// ConnectX-5.
pub const MLX5: Model = Model { provider: "mlx5", name: "mlx5_0", pci: "v000015B3d00001017", abi: "1" };

/// Puts the device node in place, for what follows alone: any device that can be opened will do.
const IN_PLACE: &str = "set -e; mount -t tmpfs tmpfs $0/dev; \
    cp -a /dev/null /dev/zero /dev/urandom $0/dev; ln -s /proc/self/fd $0/dev/fd; mkdir $0/dev/infiniband; \
    mknod $0/dev/infiniband/uverbs0 c 1 5; mount --bind $0/dev /dev; exec \"$@\"";

/// The made-up kernel with one device.
pub struct Announced {
    pub folder: TempDir,
    pub environment: Vec<(&'static str, String)>,
}

impl Announced {
    /// Announces it.
    pub fn new(model: &Model) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let put = |path: String, text: &str| {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            fs::write(path, text).expect("a file");
        };
        let device = format!("class/infiniband/{}", model.name);
        put("class/infiniband_verbs/abi_version".to_owned(), "6\n");
        put("class/infiniband_verbs/uverbs0/ibdev".to_owned(), &format!("{}\n", model.name));
        put("class/infiniband_verbs/uverbs0/dev".to_owned(), "1:5\n");
        put("class/infiniband_verbs/uverbs0/abi_version".to_owned(), &format!("{}\n", model.abi));
        put(format!("{device}/node_type"), "1: CA\n");
        put(format!("{device}/ports/1/gids/0"), "fe80:0000:0000:0000:0000:0000:0000:0001\n");
        put(format!("{device}/device/modalias"), &format!("pci:{}sv0sd0bc02sc00i00\n", model.pci));
        fs::create_dir(folder.path().join("dev")).expect("a folder");
        let preload = compile(folder.path(), "uverbs.c", "uverbs.so", &["-shared", "-fPIC", "-pthread"]);
        let environment = vec![
            ("LD_PRELOAD", preload.display().to_string()),
            ("SYSFS_PATH", folder.path().display().to_string()),
            ("UVERBS_PROVIDER", model.provider.to_owned()),
        ];
        Self { folder, environment }
    }

    /// Its folder.
    pub fn path(&self) -> &str {
        self.folder.path().to_str().expect("a path")
    }

    /// What to give `unshare`, before the program and its arguments.
    pub fn place(&self) -> [&str; 5] {
        ["-m", "sh", "-c", IN_PLACE, self.path()]
    }
}
