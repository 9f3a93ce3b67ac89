#!/usr/bin/env bash
# Runs the command in the machine of hack/vm.sh and powers off. It is the first process there, after
# hack/vm/init.sh, and mounts what the command needs; or a service of systemd, which has done that.
set -o nounset
repository="$1"
PATH="$(<"${repository}/bin/vm/path")"
export PATH HOME=/root TERM=dumb TMPDIR=/srv/tmp

mkdir -p /srv/tmp
if [[ $$ == 1 ]]; then
	mount -t cgroup2 cgroup2 /sys/fs/cgroup
	mount -t tmpfs run /run
	mkdir -p /dev/pts /dev/shm
	mount -t devpts devpts /dev/pts
	mount -t tmpfs shm /dev/shm
	mount --make-rshared /
	ip link set lo up
fi
for module in bridge br_netfilter veth nf_tables nft_chain_nat nft_masq nft_fib nft_ct nft_nat nft_numgen nft_redir nft_limit nf_conntrack; do
	modprobe "${module}" 2>/dev/null # some are parts of others in some kernels
done

echo "vm: started"
bash -c "$(<"${repository}/bin/vm/command")" 2>&1
code=$?
if [[ $$ != 1 && "${code}" == 99 ]]; then
	echo "vm: reboots"
	exit
fi
echo "vm: exit code ${code}"
sync
echo o >/proc/sysrq-trigger
while :; do read -rt 1 <> <(:); done
