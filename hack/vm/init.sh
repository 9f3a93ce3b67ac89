#!/bin/busybox sh
# The first process of the machine of hack/vm.sh: it makes the shared files the root, below a layer
# in memory, and goes on with hack/vm/start.sh there.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs dev /dev
for module in virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci fuse virtiofs overlay; do
	$b insmod /modules/$module.ko
done
for word in $($b cat /proc/cmdline); do
	case $word in repository=*) repository=${word#repository=} ;; esac
done
$b mount -t virtiofs -o ro root /shared &&
	$b mount -t tmpfs written /written && $b mkdir /written/upper /written/work &&
	$b mount -t overlay -o lowerdir=/shared,upperdir=/written/upper,workdir=/written/work root /new ||
	$b poweroff -f
$b mkdir -p /new/lib/modules
$b mount --bind "/shared$repository/bin/vm/kernel/lib/modules" /new/lib/modules
for folder in proc sys dev; do
	$b mount --move /$folder /new/$folder
done
exec $b switch_root /new "$repository/hack/vm/start.sh" "$repository"
