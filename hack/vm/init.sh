#!/bin/busybox sh
# The first process of the machine of hack/vm.sh: it makes the shared files the root, below a layer
# in memory or on the disk, and continues with hack/vm/start.sh or systemd there.
b=/bin/busybox
$b mount -t proc proc /proc
$b mount -t sysfs sysfs /sys
$b mount -t devtmpfs dev /dev
for module in virtio_ring virtio virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk fuse virtiofs overlay; do
	$b insmod /modules/$module.ko
done
for word in $($b cat /proc/cmdline); do
	case $word in
	repository=*) repository=${word#repository=} ;;
	haulout.systemd) systemd=1 ;;
	esac
done
layer() { if [ -n "$systemd" ]; then $b mount -t ext4 /dev/vda /written; else $b mount -t tmpfs written /written; fi; }
$b mount -t virtiofs -o ro root /shared &&
	layer && $b mkdir -p /written/upper /written/work /written/srv &&
	$b mount -t overlay -o lowerdir=/shared,upperdir=/written/upper,workdir=/written/work root /new ||
	$b poweroff -f
$b mkdir -p /new/lib/modules
$b mount --bind "/shared$repository/bin/vm/kernel/lib/modules" /new/lib/modules
# containerd's layers cannot be on the root, which is an overlay itself.
$b mount --bind /written/srv /new/srv
for folder in proc sys dev; do
	$b mount --move /$folder /new/$folder
done
[ -n "$systemd" ] || exec $b switch_root /new "$repository/hack/vm/start.sh" "$repository"
# Remove traces of Docker and the enabled services of the shared machine, which do not apply to this
# one.
$b rm -f /new/.dockerenv
units=/new/etc/systemd/system
if [ ! -e $units/haulout-vm.service ]; then
	$b rm -rf $units
	$b mkdir -p $units/multi-user.target.wants
	$b cat >$units/haulout-vm.service <<END
[Unit]
Description=The script of hack/vm.sh
[Service]
Type=exec
ExecStart=$repository/hack/vm/start.sh $repository
StandardOutput=tty
StandardError=tty
TTYPath=/dev/console
END
	$b ln -s ../haulout-vm.service $units/multi-user.target.wants/haulout-vm.service
fi
exec $b switch_root /new /lib/systemd/systemd
