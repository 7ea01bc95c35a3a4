#!/bin/sh
# First process of the guest: loads the modules that reach the host's files and make a soft-RoCE device possible, lays
# a writable overlay over those files, and hands over to the agent there. What it prints goes to the kernel console,
# which `cargo xtask vm run` shows when the boot fails.
# On the kernel command line: agent=PATH of xtask, kmods=PATH of the kernel's lib/modules, out=1 with a shared folder.
export PATH=/bin
fail() {
    echo "vm: $*"
    sleep 1
    poweroff -f
}
mount -t proc proc /proc
mount -t devtmpfs dev /dev
while read -r module; do
    insmod "/modules/$module" || fail "cannot load $module"
done < /order

mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro host /host || fail "cannot reach the host's files"
mount -t tmpfs -o size=75% upper /upper
mkdir /upper/files /upper/work
mount -t overlay -o lowerdir=/host,upperdir=/upper/files,workdir=/upper/work root /root || fail "cannot lay the overlay"

mount -t proc proc /root/proc
mount -t sysfs sys /root/sys
mount -t devtmpfs dev /root/dev
mkdir -p /root/dev/pts /root/dev/shm
mount -t devpts -o gid=5,mode=620,ptmxmode=666 pts /root/dev/pts
mount -t tmpfs shm /root/dev/shm
mount -t tmpfs -o mode=755 run /root/run
mkdir -p /root/run/lock
mount -t debugfs debug /root/sys/kernel/debug
mount -t tracefs trace /root/sys/kernel/tracing
mount -t bpf bpf /root/sys/fs/bpf
mount -t cgroup2 cgroup /root/sys/fs/cgroup
mkdir -p /root/lib/modules
mount -o bind "/host$kmods" /root/lib/modules
if [ -n "$out" ]; then
    mkdir -p /root/mnt/out
    mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=none out /root/mnt/out || fail "cannot reach the --out folder"
fi
hostname guest
ip link set lo up

# The limits of a host set up for RDMA: registrations are not cut short, and descriptors as systemd grants them.
cat > /root/run/vm-init <<'NEXT'
#!/bin/sh
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
ulimit -l unlimited
ulimit -Hn 524288
"$agent" vm-agent || echo "vm: the agent failed with status $?"
echo o > /proc/sysrq-trigger
sleep 10
NEXT
chmod 755 /root/run/vm-init
exec switch_root /root /bin/sh /run/vm-init
