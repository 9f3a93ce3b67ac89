#!/usr/bin/env bash
# What `make reboots` runs in a virtual machine with systemd: a node with cgroups of version 2, with
# the systemd driver in kubelet and runtime, and its control plane. The machine reboots three times:
#
#   1. kube-apiserver does not answer: the node agent ends the pods through CRI
#   2. kube-apiserver does not answer: the kubelet ends the pods, by KubeletBus
#   3. a drain has parked a static pod: it stays parked over the boot, and returns with its UID
#
# hack/vm.sh runs the script after each boot. The folder below has what an earlier run has left.
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
cd "${ROOT}"
export PATH="${ROOT}/bin:${ROOT}/bin/node:${PATH}" CLUSTER_DIR=/srv/cluster
export KUBECONFIG="${CLUSTER_DIR}/kubeconfig" CONTAINERD_ADDRESS=/run/containerd/containerd.sock
readonly STATE=/srv/state NODE=node ADDRESS=198.18.0.1
mkdir -p "${STATE}"

fail() {
	echo "Error: $*" >&2
	kubectl get nodemaintenances,pods --all-namespaces --output=wide || true
	journalctl --no-pager --boot --lines=60 --unit=haulout-node-agent --unit=haulout-node-agent-bus || true
	journalctl --no-pager --boot --lines=20 --unit=kubelet --unit=containerd --unit=cluster || true
	exit 1
}

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
agentWorks() { condition maintenance.haulout.dev/NodeAgentReady && [[ -n "$(ls /run/systemd/inhibit)" ]]; }

# control is the control plane as a service: what `cluster up` starts ends with it.
control() {
	cat >/etc/systemd/system/cluster.service <<-UNIT
		[Unit]
		Description=The control plane
		[Service]
		Type=oneshot
		RemainAfterExit=yes
		Environment=PATH=${PATH} HOME=/root CLUSTER_DIR=${CLUSTER_DIR} NODES=0 START_TIMEOUT=10m
		ExecStart=${ROOT}/bin/cluster up
		TimeoutStartSec=infinity
		TimeoutStopSec=10
		[Install]
		WantedBy=multi-user.target
	UNIT
	systemctl enable --quiet cluster.service
	systemctl start cluster.service || fail "the control plane does not start"
	kubectl apply --filename=artifacts/node-agent/rbac.yaml >/dev/null
}

# identity writes a kubeconfig with the certificate of the node, which an authority of the cluster
# has signed.
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

# kubeletSettings writes the configuration of the kubelet, with the further lines of the argument.
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
	printf '%s' "${1:-}" >>/var/lib/kubelet/config.yaml
}

# node makes the machine a node: containerd and kubelet as services.
node() {
	mkdir -p /etc/containerd /etc/cni/net.d
	cat >/etc/containerd/config.toml <<-TOML
		version = 3
		root = "/srv/containerd"
		[plugins."io.containerd.cri.v1.images".pinned_images]
		  sandbox = "localhost/pause:dev"
		[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
		  runtime_type = "io.containerd.runc.v2"
		  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
		    SystemdCgroup = true
		[plugins."io.containerd.cri.v1.runtime".cni]
		  bin_dirs = ["${ROOT}/bin/node"]
	TOML
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
	# A node has an address that others reach; this one has no others.
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
	for image in app pause; do
		ctr --namespace=k8s.io images import "bin/images/${image}-amd64.tar" >/dev/null || fail "image ${image} cannot be imported"
	done
	systemctl start kubelet.service
	eventually 300 "the node is Ready" condition Ready
}

readonly TABLE='shutdownGracePeriodByPodPriority:
- {priority: 0, shutdownGracePeriodSeconds: 60}
- {priority: 10000, shutdownGracePeriodSeconds: 60}
- {priority: 2000000000, shutdownGracePeriodSeconds: 60}
'

# agent installs the node agent with an engine, as an administrator does.
agent() {
	printf '%s\n' "apiVersion: nodeagent.haulout.dev/v1alpha1" "kind: NodeAgentConfiguration" "maxShutdownDelay: 15m" "apiGracePeriod: 20s" \
		"localEngine: $1" "${TABLE}" >"${STATE}/agent.yaml"
	haulout-node-agent install --config="${STATE}/agent.yaml" || fail "the agent cannot be installed"
	eventually 300 "the node agent is ready and holds its lock" agentWorks
}

running() { [[ "$(kubectl get pods --selector=order --output=jsonpath='{.items[*].status.phase}')" == "Running Running Running" ]]; }

# pods starts a pod for each entry of the table.
pods() {
	kubectl create priorityclass high --value=20000 >/dev/null 2>&1 || true
	for name in low high critical; do
		cat <<-YAML
			---
			apiVersion: v1
			kind: Pod
			metadata: {name: ${name}, labels: {order: ${name}}}
			spec:
			  priorityClassName: $(case "${name}" in low) ;; high) echo high ;; critical) echo system-cluster-critical ;; esac)
			  terminationGracePeriodSeconds: 20
			  containers: [{name: app, image: "localhost/app:dev", args: [serve, "2"], resources: {limits: {memory: 64Mi}}}]
		YAML
	done | kubectl apply --filename=- >/dev/null || fail "the pods cannot be created"
	eventually 300 "three pods run" running
	# The kubelet has asked systemd for the slices, and the runtime for the scopes.
	scopes="$(find /sys/fs/cgroup/kubepods.slice -name 'cri-containerd-*.scope' | wc -l)"
	[[ "${scopes}" -ge 6 ]] || fail "kubepods.slice has ${scopes} scopes, want those of three pods"
	grep -qx 67108864 -r /sys/fs/cgroup/kubepods.slice --include=memory.max || fail "no cgroup has the memory limit of the containers"
}

containers() { kubectl get pods --selector=order --output=jsonpath='{.items[*].status.containerStatuses[0].containerID}'; }
signal() { kill "-$1" "$(pgrep --exact kube-apiserver)"; }

# reboots asks for a reboot and ends this run.
reboots() {
	echo "$1" >"${STATE}/step"
	cat /proc/sys/kernel/random/boot_id >"${STATE}/boot"
	echo "  the machine reboots"
	systemctl reboot
	exit 99
}

# booted waits for the cluster and the node after a boot.
booted() {
	[[ "$(cat "${STATE}/boot")" != "$(cat /proc/sys/kernel/random/boot_id)" ]] || fail "the machine has not booted"
	eventually 600 "the control plane is up again" systemctl is-active cluster.service
	eventually 300 "the node is Ready" condition Ready
	eventually 300 "the node agent is ready and holds its lock" agentWorks
}

# stopped prints the pods in the order in which their containers exited after SIGTERM, before the
# boot.
stopped() { grep ' exit$' /var/log/pods/default_*/app/0.log | sed -E 's|.*/default_([a-z]+)_[^:]*:(\S+) .*|\2 \1|' | sort | sed 's/.* //' | xargs; }

inOrder() {
	local order
	order="$(stopped)"
	[[ "${order}" == "low high critical" ]] || fail "the pods exited in the order: ${order}"
	echo "  the pods exited after SIGTERM in the order: ${order}"
	grep -h ' exit$' /var/log/pods/default_*/app/0.log | sort
	journalctl --no-pager --boot=-1 --unit=haulout-node-agent --output=cat --grep='enters a phase' || true
	kubectl delete pods --selector=order --timeout=5m >/dev/null
}

static() { kubectl get pod "static-${NODE}" --output=jsonpath='{.status.phase} {.metadata.annotations.kubernetes\.io/config\.hash}'; }
staticRuns() { [[ "$(static)" == Running\ * ]]; }
schedulable() { [[ -z "$(kubectl get node "${NODE}" --output=jsonpath='{.spec.unschedulable}')" ]]; }
completed() { [[ "$(kubectl get nodemaintenances --output=jsonpath='{.items[?(@.spec.reason=="node shutdown")].spec.stage}')" =~ ^(Complete\ ?)+$ ]]; }

step="$(cat "${STATE}/step" 2>/dev/null || echo 1)"
case "${step}" in
1)
	echo "--- A node with the systemd driver on cgroups of version 2, and the engine CRI"
	systemctl --version | head -n 1
	[[ -e /sys/fs/cgroup/cgroup.controllers ]] || fail "/sys/fs/cgroup is not of version 2"
	control
	identity
	node
	agent CRI
	pods
	signal STOP
	reboots 2
	;;
2)
	echo "--- After the first boot: the engine KubeletBus"
	booted
	inOrder
	pods
	before="$(containers)"
	kubeletSettings "${TABLE}"
	agent KubeletBus
	# That has restarted the kubelet, and no container.
	eventually 300 "the node is Ready" condition Ready
	[[ "$(containers)" == "${before}" ]] || fail "containers were started again: ${before} and $(containers)"
	grep -qz DBUS_SYSTEM_BUS_ADDRESS "/proc/$(pgrep --exact kubelet)/environ" || fail "the kubelet is not on the bus of the agent"
	# Slices for new pods are made through it.
	kubectl delete pods --selector=order --timeout=5m >/dev/null
	pods
	signal STOP
	reboots 3
	;;
3)
	echo "--- After the second boot: a static pod is parked"
	booted
	inOrder
	journalctl --no-pager --boot=-1 --unit=kubelet --output=cat --grep='Shutdown manager' || fail "the kubelet has not ended the pods itself"
	cat >/etc/kubernetes/manifests/static.yaml <<-YAML
		apiVersion: v1
		kind: Pod
		metadata: {name: static, namespace: default}
		spec:
		  terminationGracePeriodSeconds: 20
		  containers: [{name: app, image: "localhost/app:dev", imagePullPolicy: Never, args: [serve, "2"]}]
	YAML
	eventually 300 "the static pod runs" staticRuns
	static >"${STATE}/static"
	kubectl maintenance start "${NODE}" --name=parked --yes --wait --timeout=10m || fail "the node is not drained"
	[[ ! -e /etc/kubernetes/manifests/static.yaml ]] || fail "the manifest of the static pod is in its place"
	haulout-node-agent static list
	reboots 4
	;;
4)
	echo "--- After the third boot: the static pod returns"
	booted
	haulout-node-agent static list
	[[ "$(haulout-node-agent static list)" == *" true "* ]] || fail "the list of parked pods says that the pod runs"
	[[ ! -e /etc/kubernetes/manifests/static.yaml ]] || fail "the manifest of the static pod is in its place after the boot"
	! kubectl get pod "static-${NODE}" >/dev/null 2>&1 || fail "the static pod runs after the boot"
	eventually 120 "the maintenances of the shutdowns are complete" completed
	! schedulable || fail "the node is schedulable, although a maintenance drains it"
	kubectl maintenance complete parked
	eventually 300 "the static pod runs again" staticRuns
	[[ "$(static)" == "$(cat "${STATE}/static")" ]] || fail "the static pod was $(cat "${STATE}/static"), and is $(static)"
	eventually 120 "the node is schedulable" schedulable
	echo "Rebooted a node with the systemd driver on cgroups of version 2, with both engines and a static pod."
	;;
esac
