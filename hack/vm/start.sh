#!/usr/bin/env bash
# The second process of the machine of hack/vm.sh: it mounts what the command needs, runs it and
# powers off.
set -o nounset
repository="$1"
PATH="$(<"${repository}/bin/vm/path")"
export PATH HOME=/root TERM=dumb TMPDIR=/srv/tmp

mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tmpfs run /run
# containerd's layers cannot lie on the layer in memory, which is an overlay itself.
mount -t tmpfs srv /srv
mkdir -p /dev/pts /dev/shm /srv/tmp
mount -t devpts devpts /dev/pts
mount -t tmpfs shm /dev/shm
mount --make-rshared /
ip link set lo up
for module in bridge br_netfilter veth nf_tables nft_chain_nat nft_masq nft_fib nft_ct nft_nat nft_numgen nft_redir nft_limit nf_conntrack; do
	modprobe "${module}" 2>/dev/null # some are parts of others in some kernels
done

echo "vm: started"
bash -c "$(<"${repository}/bin/vm/command")" 2>&1
echo "vm: exit code $?"
echo o >/proc/sysrq-trigger
while :; do read -rt 1 <> <(:); done
