# Makes the emulated machine of hack/vm.sh a node with its control plane, as services of systemd.
# Meant to be sourced after hack/lib.sh, by scripts that have a function `fail MESSAGE...`. Such a
# script runs again after each boot: the folder STATE stores the state between runs.
cd "${ROOT}"
export PATH="${ROOT}/bin:${ROOT}/bin/node:${PATH}" CLUSTER_DIR=/srv/cluster
export KUBECONFIG="${CLUSTER_DIR}/kubeconfig"
readonly STATE=/srv/state NODE=node ADDRESS=198.18.0.1 LOGS_BEFORE=/var/log/pods-before
mkdir -p "${STATE}"
CONTAINERD_ADDRESS="$(cat "${STATE}/socket" 2>/dev/null || echo /run/containerd/containerd.sock)"
export CONTAINERD_ADDRESS

# eventually SECONDS WHAT COMMAND...
eventually() {
	local limit=$((SECONDS + $1)) what="$2"
	shift 2
	until "$@" >/dev/null 2>&1; do
		((SECONDS < limit)) || fail "it never came to pass that ${what}"
		read -rt 1 <> <(:) || true
	done
	echo "  ${what}"
}

condition() { [[ "$(kubectl get node "${NODE}" -o jsonpath="{.status.conditions[?(@.type=='$1')].status}")" == True ]]; }
schedulable() { [[ -z "$(kubectl get node "${NODE}" --output=jsonpath='{.spec.unschedulable}')" ]]; }

# control [VARIABLE=VALUE...] is the control plane as a service, with more variables of `cluster
# up`. When the service ends, all its processes end.
control() {
	local variables=""
	[[ $# == 0 ]] || variables="$(printf 'Environment="%s"\n' "$@")"
	cat >/etc/systemd/system/cluster.service <<-UNIT
		[Unit]
		Description=The control plane
		[Service]
		Type=oneshot
		RemainAfterExit=yes
		Environment=PATH=${PATH} HOME=/root CLUSTER_DIR=${CLUSTER_DIR} NODES=0 START_TIMEOUT=10m ETCD_FLAGS=--unsafe-no-fsync=false
		${variables}
		ExecStart=${ROOT}/bin/cluster up
		TimeoutStartSec=infinity
		TimeoutStopSec=10
		[Install]
		WantedBy=multi-user.target
	UNIT
	systemctl enable --quiet cluster.service
	systemctl start cluster.service || fail "the control plane does not start"
}

# identity writes a kubeconfig with the certificate of the node, signed by an authority of the
# cluster.
identity() {
	local pki="${CLUSTER_DIR}/pki" server
	server="$(kubectl config view --minify --output=jsonpath='{.clusters[0].cluster.server}')"
	mkdir -p /etc/kubernetes/manifests /var/lib/kubelet/pki
	openssl req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout "${STATE}/node.key" -out "${STATE}/node.csr" \
		-subj "/O=system:nodes/CN=system:node:${NODE}" 2>/dev/null
	openssl x509 -req -in "${STATE}/node.csr" -CA "${pki}/ca.crt" -CAkey "${pki}/ca.key" -CAcreateserial -CAserial "${STATE}/serial" \
		-days 2 -out "${STATE}/node.crt" -extfile <(echo "extendedKeyUsage = clientAuth") 2>/dev/null
	KUBECONFIG=/etc/kubernetes/kubelet.conf kubectl config set-cluster c --server="${server}" --certificate-authority="${pki}/ca.crt" --embed-certs >/dev/null
	KUBECONFIG=/etc/kubernetes/kubelet.conf kubectl config set-credentials node --client-certificate="${STATE}/node.crt" --client-key="${STATE}/node.key" --embed-certs >/dev/null
	KUBECONFIG=/etc/kubernetes/kubelet.conf kubectl config set-context c --cluster=c --user=node >/dev/null
	KUBECONFIG=/etc/kubernetes/kubelet.conf kubectl config use-context c >/dev/null
}

# kubeletSettings writes the configuration of the kubelet.
kubeletSettings() {
	cat >/var/lib/kubelet/config.yaml <<-YAML
		apiVersion: kubelet.config.k8s.io/v1beta1
		kind: KubeletConfiguration
		containerRuntimeEndpoint: unix://${CONTAINERD_ADDRESS}
		staticPodPath: /etc/kubernetes/manifests
		cgroupDriver: systemd
		authentication: {x509: {clientCAFile: "${CLUSTER_DIR}/pki/ca.crt"}, anonymous: {enabled: false}, webhook: {enabled: true}}
		authorization: {mode: Webhook}
		resolvConf: ""
		failSwapOn: false
		makeIPTablesUtilChains: false
		localStorageCapacityIsolation: false
		evictionHard: {memory.available: "0%", nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%"}
		imageGCHighThresholdPercent: 100
		nodeStatusUpdateFrequency: 5s
	YAML
}

# runtimeSettings writes the configuration of containerd.
runtimeSettings() {
	cat >/etc/containerd/config.toml <<-TOML
		version = 3
		root = "/srv/containerd"
		[grpc]
		  address = "${CONTAINERD_ADDRESS}"
		[plugins."io.containerd.cri.v1.images".pinned_images]
		  sandbox = "localhost/pause:dev"
		[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
		  runtime_type = "io.containerd.runc.v2"
		  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
		    SystemdCgroup = true
		[plugins."io.containerd.cri.v1.runtime".cni]
		  bin_dirs = ["${ROOT}/bin/node"]
	TOML
}

# node ARCHIVE... makes the machine a node that has the images in the archives: containerd and
# kubelet as services.
node() {
	mkdir -p /etc/containerd /etc/cni/net.d
	runtimeSettings
	cat >/etc/cni/net.d/10-pods.conflist <<-'JSON'
		{"cniVersion": "1.0.0", "name": "pods", "plugins": [
		  {"type": "bridge", "bridge": "cni0", "isGateway": true,
		   "ipam": {"type": "host-local", "ranges": [[{"subnet": "198.18.1.0/24"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}
	JSON
	kubeletSettings
	cat >/etc/systemd/system/containerd.service <<-UNIT
		[Service]
		Environment=PATH=${PATH}
		ExecStart=${ROOT}/bin/node/containerd
		Delegate=yes
		KillMode=process
		Restart=always
		[Install]
		WantedBy=multi-user.target
	UNIT
	# A node needs an address that others can reach; this machine has no others.
	cat >/etc/systemd/system/kubelet.service <<-UNIT
		[Unit]
		Wants=containerd.service
		After=containerd.service
		[Service]
		Environment=PATH=${PATH}
		ExecStartPre=-ip link add node0 type bridge
		ExecStartPre=-ip address add ${ADDRESS}/24 dev node0
		ExecStartPre=ip link set node0 up
		ExecStart=${ROOT}/bin/kubelet --config=/var/lib/kubelet/config.yaml --kubeconfig=/etc/kubernetes/kubelet.conf --hostname-override=${NODE} --node-ip=${ADDRESS} --v=2
		KillMode=process
		Restart=always
		RestartSec=2
		[Install]
		WantedBy=multi-user.target
	UNIT
	systemctl daemon-reload
	systemctl enable --quiet containerd.service kubelet.service
	systemctl start containerd.service
	eventually 120 "containerd serves" ctr version
	for archive in "$@"; do
		ctr --namespace=k8s.io images import "${archive}" >/dev/null || fail "the image in ${archive} cannot be imported"
	done
	systemctl start kubelet.service
	eventually 300 "the node is Ready" condition Ready
}

# reboots STEP [COMMAND...] asks for a reboot and ends this run.
reboots() {
	echo "$1" >"${STATE}/step"
	shift
	cat /proc/sys/kernel/random/boot_id >"${STATE}/boot"
	date +%s >"${STATE}/requested"
	# After the boot, the kubelet may remove the logs of the containers that have ended before it.
	rm -rf "${LOGS_BEFORE}"
	[[ ! -d /var/log/pods ]] || cp -al /var/log/pods "${LOGS_BEFORE}"
	sync
	[[ $# -gt 0 ]] || set -- systemctl reboot
	echo "  the machine reboots: $*"
	"$@"
	exit 99
}

# isUp waits for the cluster and the node after a boot.
isUp() {
	[[ "$(cat "${STATE}/boot")" != "$(cat /proc/sys/kernel/random/boot_id)" ]] || fail "the machine has not booted"
	eventually 600 "the control plane is up again" systemctl is-active cluster.service
	eventually 300 "the node is Ready" condition Ready
}

boots() { journalctl --no-pager --list-boots | grep -c .; }
isRolled() { [[ "$(kubectl get nodemaintenancerollouts "$1" --output=jsonpath='{.status.conditions[?(@.type=="Complete")].status}')" == True ]]; }
# rolled ROLLOUT waits until the node has returned from a rollout, one boot after those in
# STATE/boots.
rolled() {
	eventually 600 "the rollout is complete" isRolled "$1"
	eventually 120 "the node is schedulable" schedulable
	[[ "$(boots)" == $(($(cat "${STATE}/boots") + 1)) ]] || fail "there were $(boots) boots, want one after the first $(cat "${STATE}/boots")"
}
