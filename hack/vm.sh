#!/usr/bin/env bash
# Runs a script of this tree as root in a virtual machine whose cgroups are of version 2, with all
# controllers. Many development machines, and those of .ci/run, have version 1 only.
#
#   hack/vm.sh [--systemd] SCRIPT [ARGUMENT...]    SCRIPT is a path below the root of the repository
#
# The machine has a read-only view of the files of this one, below a layer in memory: the script's
# writes are lost. It has loopback and no other network. QEMU emulates it without KVM: expect
# everything to take ten to twenty times as long. Needs Debian and root; QEMU and the kernel are
# Debian's.
#
# With --systemd, systemd is the first process, and the script is a service. The layer is on a disk,
# so that the script may reboot the machine: it runs again after the boot, until it ends with an
# exit code other than 99.
#
#   VM_MEMORY=8G  VM_PROCESSORS=2
#   VM_TIMEOUT=20m  limits the time from one boot to the next
#   VM_ARGUMENTS=systemd.journald.forward_to_console=1  more arguments for the kernel: this one
#   shows the journal in bin/vm/console.log, even while the machine goes down
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "${ROOT}"

usage() { echo "Error: $*" >&2; exit 2; }
systemd=""
[[ "${1:-}" != --systemd ]] || { systemd=1; shift; }
[[ $# -ge 1 ]] || usage "name the script to run, for example hack/vm/drain.sh"
[[ -x "$1" ]] || usage "$1: must be an executable file below ${ROOT}"
[[ "$(id -u)" == 0 ]] || usage "only root can share the files of this machine"
command -v apt-get >/dev/null || usage "the kernel and QEMU are packages of Debian: apt-get not found"

DIR="${ROOT}/bin/vm"
mkdir -p "${DIR}"

packages=()
command -v qemu-system-x86_64 >/dev/null || packages+=(qemu-system-x86)
[[ -x /bin/busybox ]] || packages+=(busybox-static)
command -v depmod >/dev/null || packages+=(kmod)
if [[ -n "${systemd}" ]]; then
	[[ -x /lib/systemd/systemd ]] || packages+=(systemd)
	command -v dbus-daemon >/dev/null || packages+=(dbus)
	command -v mke2fs >/dev/null || packages+=(e2fsprogs)
fi
if [[ ${#packages[@]} != 0 ]]; then
	apt-get update -q
	DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends "${packages[@]}"
fi

# Unpack the kernel without installing it: this machine keeps its own.
if [[ ! -e "${DIR}/kernel/ready" ]]; then
	echo "Fetching a kernel"
	rm -rf "${DIR}/kernel" && mkdir -p "${DIR}/kernel"
	kernel="$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-[0-9].*\)/\1/p' | head -n 1)"
	[[ -n "${kernel}" ]] || { echo "Error: linux-image-cloud-amd64 not found: run apt-get update" >&2; exit 1; }
	(cd "${DIR}/kernel" && apt-get download -q "${kernel}" 2>/dev/null && dpkg -x ./*.deb . && rm ./*.deb)
	depmod -b "${DIR}/kernel" "$(basename "${DIR}"/kernel/lib/modules/*)"
	touch "${DIR}/kernel/ready"
fi
version="$(basename "${DIR}"/kernel/lib/modules/*)"

# The initial file system: a shell, and the modules for mounting the shared one.
work="$(mktemp -d)"
files_pid=""
finish() {
	[[ -z "${files_pid}" ]] || kill "${files_pid}" 2>/dev/null || true
	rm -rf "${work}" "${DIR}/disk"
}
trap finish EXIT
mkdir -p "${work}"/first/{bin,dev,modules,new,proc,shared,sys,written}
cp /bin/busybox "${work}/first/bin/"
cp hack/vm/init.sh "${work}/first/init"
for module in virtio virtio_ring virtio_pci_legacy_dev virtio_pci_modern_dev virtio_pci virtio_blk fuse virtiofs overlay; do
	find "${DIR}/kernel/lib/modules" -name "${module}.ko" -exec cp {} "${work}/first/modules/" \;
done
(cd "${work}/first" && find . | busybox cpio -o -H newc 2>/dev/null | gzip -1) >"${work}/initrd.gz"

# The settings for hack/vm/start.sh. The file is in the repository, because the machine does not see
# mounts below the root of this one.
printf '%q ' "${ROOT}/$1" "${@:2}" >"${DIR}/command"
printf '%s\n' "${PATH}" >"${DIR}/path"

arguments="console=ttyS0 panic=-1 quiet loglevel=1 repository=${ROOT}"
options=()
if [[ -n "${systemd}" ]]; then
	rm -f "${DIR}/disk"
	mke2fs -q -t ext4 "${DIR}/disk" 16G >/dev/null
	options=(-drive "file=${DIR}/disk,format=raw,if=virtio,cache=writeback")
	arguments+=" haulout.systemd systemd.unit=multi-user.target systemd.firstboot=off systemd.show_status=off"
	# There are no logins.
	for unit in serial-getty@ttyS0.service console-getty.service getty@tty1.service getty-static.service; do
		arguments+=" systemd.mask=${unit}"
	done
fi

memory="${VM_MEMORY:-8G}"
# boot runs the machine until it powers off or reboots. Each boot has processes of its own:
# virtiofsd keeps each file open that the machine knows, and does not notice that a machine which
# reboots has forgotten them.
boot() {
	rm -f "${work}/files.sock"
	/usr/lib/qemu/virtiofsd --socket-path="${work}/files.sock" -o source=/ -o cache=always -o sandbox=chroot >"${DIR}/files.log" 2>&1 &
	files_pid=$!
	for _ in {1..100}; do [[ -S "${work}/files.sock" ]] && break; read -rt 0.1 <> <(:) || true; done
	timeout "${VM_TIMEOUT:-20m}" qemu-system-x86_64 -M q35 -accel tcg,thread=multi -cpu max -no-reboot \
		-smp "${VM_PROCESSORS:-2}" -m "${memory}" -nic none -nographic "${options[@]}" \
		-object memory-backend-memfd,id=memory,size="${memory}",share=on -numa node,memdev=memory \
		-kernel "${DIR}/kernel/boot/vmlinuz-${version}" -initrd "${work}/initrd.gz" \
		-append "${arguments} ${VM_ARGUMENTS:-}" \
		-chardev socket,id=files,path="${work}/files.sock" -device vhost-user-fs-pci,chardev=files,tag=root \
		</dev/null | stdbuf -oL tr -d '\r' | tee -a "${DIR}/console.log" | sed -un '/vm: started$/,$p'
	kill "${files_pid}" 2>/dev/null || true
	wait "${files_pid}" || true
	files_pid=""
}

: >"${DIR}/console.log"
code=""
# A machine whose kernel panics reboots, too. So there is a limit.
for _ in {1..10}; do
	boot
	code="$(sed -n 's/^vm: exit code //p' "${DIR}/console.log")"
	[[ -n "${systemd}" && -z "${code}" ]] || break
done
[[ -n "${code}" ]] || { echo "Error: the machine ended without an exit code; see ${DIR}/console.log" >&2; exit 1; }
exit "${code}"
