#!/usr/bin/env bash
# This script is run by `make reboots` in a virtual machine with systemd: a node with cgroups of
# version 2, with the systemd driver in kubelet and runtime, and its control plane. The machine
# reboots repeatedly. Each time it must be down within the table's time plus a minute:
#
#   1. kube-apiserver does not answer: the node agent ends the pods
#   2. the same, bypassing logind: systemctl start reboot.target
#   3. the same, with logind masked
#   4. the kubeconfig is gone, as after kubeadm reset
#   5. the configuration of the agent is broken
#   6. kube-apiserver does not answer, and containerd hangs
#   7. a drain has parked a static pod: it stays parked over the boot, and returns with its UID
#   8. kube-apiserver does not answer, the message bus hangs, and the runtime has CRI-O's socket
#   9. the machine is reset while a drain parks the static pod or a user brings it back, six times
#   10. the worker of a rollout reboots the node, which the agent's shutdown does not wait for
#   11. the same without the node agent
#
# hack/vm.sh runs the script after each boot. After the first reboot, `hack/vm.sh --systemd
# hack/vm/reboot.sh 9 3` continues with number 9 and resets the machine three times; `reboot.sh
# resets 3` begins with the resets, and `reboot.sh worker` with the worker.
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
source "${ROOT}/hack/vm/node.sh"
readonly RESETS="${2:-6}"

fail() {
	echo "Error: $*" >&2
	kubectl get nodemaintenances,evacuations,pods --all-namespaces --output=wide || true
	kubectl get node "${NODE}" --output=jsonpath='{.metadata.annotations}{"\n"}' || true
	ls -lAR /etc/kubernetes || true
	haulout-node-agent static list || true
	cat /etc/kubernetes/.nm-parked/index.json || true
	journalctl --no-pager --boot=-1 --lines=60 || true
	journalctl --no-pager --boot=-1 --lines=30 --unit=haulout-node-agent || true
	journalctl --no-pager --boot --lines=60 --unit=haulout-node-agent || true
	journalctl --no-pager --boot --lines=20 --unit=containerd --unit=cluster || true
	journalctl --no-pager --boot --lines=80 --unit=kubelet || true
	exit 1
}

# published: the agent has published its kept static pods in this boot, and the server accepts the
# list.
published() { kubectl get node "${NODE}" --output=yaml | grep -q "kept-static-pods.*$(cat /proc/sys/kernel/random/boot_id)"; }
agentWorks() { condition maintenance.haulout.dev/NodeAgentReady && published && [[ -n "$(ls /run/systemd/inhibit)" ]]; }

readonly TABLE='shutdownGracePeriodByPodPriority:
- {priority: 0, shutdownGracePeriodSeconds: 60}
- {priority: 10000, shutdownGracePeriodSeconds: 60}
- {priority: 2000000000, shutdownGracePeriodSeconds: 60}
'

readonly TABLE_SECONDS=180 AGENT_CONFIG=/etc/haulout-node-agent/config.yaml

# agent installs the node agent in the way an administrator does.
agent() {
	kubectl apply --filename=artifacts/node-agent/rbac.yaml >/dev/null
	printf '%s\n' "apiVersion: nodeagent.haulout.dev/v1alpha1" "kind: NodeAgentConfiguration" "maxShutdownDelay: 15m" "apiGracePeriod: 20s" \
		"${TABLE}" >"${STATE}/agent.yaml"
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
			  # A boot may take longer than Kubernetes leaves pods on a node that is not ready.
			  tolerations:
			  - {key: node.kubernetes.io/not-ready, operator: Exists, effect: NoExecute}
			  - {key: node.kubernetes.io/unreachable, operator: Exists, effect: NoExecute}
			  containers: [{name: app, image: "localhost/app:dev", args: [serve, "2"], resources: {limits: {memory: 64Mi}}}]
		YAML
	done | kubectl apply --filename=- >/dev/null || fail "the pods cannot be created"
	eventually 300 "three pods run" running
	# The kubelet has asked systemd for the slices, and the runtime for the scopes.
	scopes="$(find /sys/fs/cgroup/kubepods.slice -name 'cri-containerd-*.scope' | wc -l)"
	[[ "${scopes}" -ge 6 ]] || fail "kubepods.slice has ${scopes} scopes, want those of three pods"
	grep -qx 67108864 -r /sys/fs/cgroup/kubepods.slice --include=memory.max || fail "no cgroup has the memory limit of the containers"
}

signal() { kill "-$1" "$(pgrep --exact kube-apiserver)"; }

# wentDown fails unless the machine was down in time, by the last line of its journal.
wentDown() {
	local last took
	last="$(journalctl --no-pager --boot=-1 --lines=1 --output=short-unix | sed 's/[.].*//')"
	took=$((last - $(cat "${STATE}/requested")))
	echo "  the machine was down after ${took} seconds"
	((took <= TABLE_SECONDS + 60)) || fail "the machine was down after ${took} seconds, more than the table's ${TABLE_SECONDS} and 60"
}

agentSays() { systemctl show --property=StatusText haulout-node-agent.service | grep -q "$1"; }
safeModeShown() { [[ "$(kubectl get node "${NODE}" --output=jsonpath='{.status.conditions[?(@.type=="maintenance.haulout.dev/NodeAgentRunning")].reason}')" == SafeMode ]]; }
noLock() { ! systemd-inhibit --list --no-legend | grep -q haulout-node-agent; }

# serves waits for the cluster, the node and its agent after a boot.
serves() {
	isUp
	eventually 300 "the node agent is ready and holds its lock" agentWorks
}

# booted does so after a shutdown, which must have ended in time.
booted() {
	wentDown
	serves
}

# stopped prints the pods in the order in which their containers exited after SIGTERM, before the
# boot.
stopped() { grep ' exit$' "${LOGS_BEFORE}"/default_{low,high,critical}_*/app/0.log | sed -E 's|.*/default_([a-z]+)_[^:]*:(\S+) .*|\2 \1|' | sort | sed 's/.* //' | xargs; }

inOrder() {
	local order
	order="$(stopped)" || true # what follows says why
	if [[ "${order}" != "low high critical" ]]; then
		tail --lines=5 "${LOGS_BEFORE}"/default_*/app/*.log || true
		journalctl --no-pager --boot=-1 --lines=60 --unit=haulout-node-agent --output=cat || true
		fail "the pods exited in the order: ${order}"
	fi
	echo "  the pods exited after SIGTERM in the order: ${order}"
	grep -h ' exit$' "${LOGS_BEFORE}"/default_*/app/0.log | sort
	journalctl --no-pager --boot=-1 --unit=haulout-node-agent --output=cat --grep='enters a phase' || true
	kubectl delete pods --selector=order --timeout=5m >/dev/null
}

# crioSocket has the runtime listen where CRI-O does, which only the kubelet's configuration tells.
crioSocket() {
	CONTAINERD_ADDRESS=/run/crio/crio.sock
	echo "${CONTAINERD_ADDRESS}" >"${STATE}/socket"
	runtimeSettings
	kubeletSettings
	systemctl restart containerd.service
	eventually 120 "the runtime serves at ${CONTAINERD_ADDRESS}" ctr version
	systemctl restart kubelet.service
	eventually 300 "the node is Ready" condition Ready
	eventually 300 "the node agent is ready and holds its lock" agentWorks
}

# placeStatic has the kubelet run a static pod, and records its UID.
placeStatic() {
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
}

static() { kubectl get pod "static-${NODE}" --output=jsonpath='{.status.phase} {.metadata.annotations.kubernetes\.io/config\.hash}'; }
staticRuns() { [[ "$(static)" == Running\ * ]]; }
# agrees ends the maintenance that a reset has left, drains the node and brings it back: folder,
# index and kubelet agree each time.
agrees() {
	kubectl maintenance complete parked >/dev/null 2>&1 || true
	eventually 300 "the static pod runs" staticRuns
	[[ "$(static)" == "$(cat "${STATE}/static")" ]] || fail "the static pod was $(cat "${STATE}/static"), and is $(static)"
	eventually 60 "nothing is parked" nothingParked
	eventually 120 "the node is schedulable" schedulable
}

nothingParked() { [[ -e /etc/kubernetes/manifests/static.yaml ]] && haulout-node-agent static list | grep --quiet "^No static pods .* are parked"; }

# parksUntilReset drains the node and brings it back until the kernel resets the machine, at a
# random moment and without a write of what is in memory.
parksUntilReset() {
	[[ -e "${STATE}/static" ]] || placeStatic
	echo "reset-$1" >"${STATE}/step"
	cat /proc/sys/kernel/random/boot_id >"${STATE}/boot"
	sync
	local after=$((RANDOM % 40)).$((RANDOM % 10))
	echo "  the machine is reset after ${after} seconds"
	(sleep "${after}"; echo b >/proc/sysrq-trigger) &
	while :; do
		kubectl delete nodemaintenance parked --ignore-not-found >/dev/null
		kubectl maintenance start "${NODE}" --name=parked --yes --wait --timeout=10m >/dev/null || fail "the node is not drained"
		kubectl maintenance complete parked >/dev/null
		eventually 300 "the static pod runs again" staticRuns
	done
}

# installWorker has the worker of rollouts reboot the node. There is no kube-proxy, so the pod gets
# the address of kube-apiserver.
installWorker() {
	local server
	server="$(kubectl config view --minify --output=jsonpath='{.clusters[0].cluster.server}')"
	server="${server#https://}"
	kubectl kustomize artifacts/worker-reboot | sed 's#image: haulout-worker$#image: localhost/haulout-worker:dev#' | kubectl apply --filename=- >/dev/null
	kubectl set env --namespace=haulout-worker-reboot daemonset/haulout-worker-reboot \
		"KUBERNETES_SERVICE_HOST=${server%:*}" "KUBERNETES_SERVICE_PORT=${server##*:}" >/dev/null
	kubectl rollout status --namespace=haulout-worker-reboot daemonset/haulout-worker-reboot --timeout=5m || fail "the worker does not run"
}

# parkedForWorker: the static pod is parked, and the node is offered to the worker or is its.
parkedForWorker() { [[ ! -e /etc/kubernetes/manifests/static.yaml ]] && kubectl get nodetask "${NODE}" >/dev/null 2>&1; }

# roll creates a rollout whose worker reboots the node. With the agent, it waits until the drain has
# parked the static pod: the machine goes down only after all pods have ended.
roll() {
	boots >"${STATE}/boots"
	kubectl create --filename=- >/dev/null <<-YAML || fail "the rollout cannot be created"
		apiVersion: maintenance.haulout.dev/v1alpha1
		kind: NodeMaintenanceRollout
		metadata: {name: $1}
		spec:
		  stage: Roll
		  nodeSelector: {nodeSelectorTerms: [{matchFields: [{key: metadata.name, operator: In, values: [${NODE}]}]}]}
		  template: {task: {worker: reboot.maintenance.haulout.dev}}
	YAML
	[[ "$1" == without-agent ]] || eventually 300 "the drain of the rollout has parked the static pod" parkedForWorker
	touch "${STATE}/$1"
	sync
}

completed() { [[ "$(kubectl get nodemaintenances --output=jsonpath='{.items[?(@.spec.reason=="node shutdown")].spec.stage}')" =~ ^(Complete\ ?)+$ ]]; }

step="$(cat "${STATE}/step" 2>/dev/null || echo 1)"
case "${step}" in
1)
	echo "--- A node with the systemd driver on cgroups of version 2"
	systemctl --version | head -n 1
	[[ -e /sys/fs/cgroup/cgroup.controllers ]] || fail "/sys/fs/cgroup is not of version 2"
	control
	identity
	node bin/images/{app,pause,haulout-worker}-amd64.tar
	agent
	case "${1:-}" in
	resets) parksUntilReset 1 ;;
	worker)
		placeStatic
		installWorker
		reboots worker roll with-agent
		;;
	esac
	pods
	signal STOP
	reboots "${1:-2}"
	;;
2)
	echo "--- After the first boot: a shutdown around logind"
	booted
	inOrder
	pods
	signal STOP
	reboots 3 systemctl --no-block start reboot.target
	;;
3)
	echo "--- After the second boot: a shutdown without logind"
	booted
	inOrder
	pods
	systemctl mask --runtime --now systemd-logind.service
	signal STOP
	reboots 4 systemctl reboot
	;;
4)
	echo "--- After the third boot: no kubeconfig"
	booted
	inOrder
	mv /etc/kubernetes/kubelet.conf "${STATE}/kubelet.conf"
	systemctl restart haulout-node-agent.service
	eventually 60 "the agent is in safe mode" agentSays "not joined a cluster"
	eventually 60 "the agent holds no lock" noLock
	reboots 5
	;;
5)
	echo "--- After the fourth boot: a broken configuration"
	[[ ! -e "${STATE}/kubelet.conf" ]] || mv "${STATE}/kubelet.conf" /etc/kubernetes/kubelet.conf # number 4 may have been left out
	booted
	echo "maxShutdownDelay: 25h" >>"${AGENT_CONFIG}"
	systemctl restart haulout-node-agent.service
	eventually 60 "the agent is in safe mode" agentSays "cannot be loaded"
	eventually 60 "the agent holds no lock" noLock
	eventually 120 "the node says so" safeModeShown
	reboots 6
	;;
6)
	echo "--- After the fifth boot: a runtime that hangs"
	cp "${STATE}/agent.yaml" "${AGENT_CONFIG}"
	booted
	pods
	signal STOP
	pkill -STOP --exact containerd
	reboots 7
	;;
7)
	echo "--- After the sixth boot: a static pod is parked"
	booted
	kubectl delete pods --selector=order --timeout=5m >/dev/null
	placeStatic
	kubectl maintenance start "${NODE}" --name=parked --yes --wait --timeout=10m || fail "the node is not drained"
	[[ ! -e /etc/kubernetes/manifests/static.yaml ]] || fail "the manifest of the static pod is in its place"
	haulout-node-agent static list
	reboots 8
	;;
8)
	echo "--- After the last boot: the static pod returns"
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
	crioSocket
	pods
	signal STOP
	pkill -STOP --exact dbus-daemon
	reboots 9 systemctl --no-block start reboot.target
	;;
9)
	echo "--- After the boot with a bus that hung: resets"
	booted
	inOrder
	parksUntilReset 1
	;;
reset-*)
	echo "--- After reset ${step#reset-} of ${RESETS}"
	serves
	agrees
	if [[ "${step#reset-}" -lt "${RESETS}" ]]; then
		parksUntilReset "$((${step#reset-} + 1))"
	fi
	installWorker
	reboots worker roll with-agent
	;;
worker)
	echo "--- After the reboot by a worker"
	booted
	rolled with-agent
	[[ -e "${STATE}/with-agent" ]] || fail "the machine went down before the static pod was parked"
	eventually 300 "the static pod runs" staticRuns
	[[ "$(static)" == "$(cat "${STATE}/static")" ]] || fail "the static pod was $(cat "${STATE}/static"), and is $(static)"
	haulout-node-agent uninstall || fail "the agent cannot be uninstalled"
	reboots worker-alone roll without-agent
	;;
worker-alone)
	echo "--- After the reboot by a worker without the node agent"
	wentDown
	isUp
	rolled without-agent
	if [[ -z "${1:-}" ]]; then
		echo "Rebooted a node with the systemd driver on cgroups of version 2 in all ways, with a static pod, reset it ${RESETS} times, and let a worker reboot it."
	else
		echo "Did the part that begins with $1, on a node with the systemd driver on cgroups of version 2."
	fi
	;;
esac
