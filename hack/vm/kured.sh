#!/usr/bin/env bash
# Walks through the section "From kured" of docs/rollouts.md: runs the commands of the page, as they
# are there, on a node with systemd where Haulout's server and its worker are pods. The machine
# reboots twice: for the page's first rollout, in step 5, and for a rollout of the CronJob of step
# 7, an evening later. `make kured` runs
#
#   kured.sh build    step 1 of the page, on the machine of the user
#   kured.sh          the other steps, in a virtual machine with systemd
#   kured.sh check    fails if the page has other blocks of commands than this script knows
#
# What the reader of the page has, and this machine has not, is emulated:
#
#   kured               a DaemonSet that does nothing, with kured's name, flag, volume and rights;
#                       the file for which it would reboot the node, its lock, and its taint
#   docker, a registry  a folder with the archives, which are imported on the node
#   ssh, sudo           the commands run here
#   vi                  sed, which sets the image in reboots.yaml and removes the window
#   an image with kubectl and a shell    made of bin/kubectl and busybox
#   a StorageClass      one local volume
#
# Helm's way to remove kured (4.2) is not walked.
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
# The blocks of the section, as STEP.NUMBER.
readonly BLOCKS="1.1 2.1 2.2 2.3 3.1 4.1 4.2 4.3 4.4 4.5 5.1 6.1 7.1 7.2"
readonly ARCHIVES="${ROOT}/bin/vm/registry" SENTINEL=/var/run/reboot-required

# blocks [STEP.NUMBER] prints the names of all blocks of commands of the section, or the commands of
# one.
blocks() {
	awk -v wanted="${1:-}" '
		/^## / { inside = ($0 == "## From kured") }
		/^### / { step = $2 + 0; number = 0 }
		inside && /^```sh$/ { number++; name = step "." number; commands = 1; if (wanted == "") print name; next }
		/^```$/ { commands = 0 }
		commands && name == wanted
	' "${ROOT}/docs/rollouts.md"
}

# run BLOCK runs a block in a shell of its own, which ends at the first command that fails.
run() {
	local commands
	commands="$(blocks "$1")"
	[[ -n "${commands}" ]] || { echo "docs/rollouts.md has no block $1" >&2; return 1; }
	bash -eux -o pipefail -c "${commands}"
}

# walk BLOCK runs a block that must succeed, and prints how long that took.
walk() {
	local begun="${SECONDS}"
	run "$1" || fail "block $1 of the page has failed"
	echo "  block $1 of the page took $((SECONDS - begun)) seconds"
}

case "${1:-}" in
check)
	found="$(blocks | xargs)"
	[[ "${found}" == "${BLOCKS}" ]] || {
		echo "Error: \"From kured\" in docs/rollouts.md has the blocks ${found}; change hack/vm/kured.sh, which knows ${BLOCKS}" >&2
		exit 1
	}
	exit
	;;
build)
	"$0" check
	cd "${ROOT}"
	rm -rf "${ARCHIVES}" && mkdir -p "${ARCHIVES}"
	export ARCHIVES
	fail() { echo "Error: $*" >&2; exit 1; }
	# docker stores the archives that are loaded, and pushes only the tag of one of them.
	docker() {
		local archive
		case "$1 $2" in
		"load --input") cp "$3" "${ARCHIVES}/" ;;
		push\ *)
			for archive in "${ARCHIVES}"/*.tar; do
				! tar --extract --to-stdout --file="${archive}" manifest.json | grep --quiet --fixed-strings "\"$2\"" || return 0
			done
			echo "An image with the tag $2 does not exist locally" >&2
			return 1
			;;
		*) echo "docker $*: unknown" >&2; return 1 ;;
		esac
	}
	export -f docker
	walk 1.1
	exit
	;;
"") ;;
*) echo "Error: $1: must be check, build, or nothing" >&2; exit 2 ;;
esac

source "${ROOT}/hack/vm/node.sh"

fail() {
	echo "Error: $*" >&2
	kubectl get nodes,pods,persistentvolumeclaims,jobs --all-namespaces --output=wide --request-timeout=30s || true
	kubectl get nodemaintenancerollouts,nodemaintenances,nodetasks --output=yaml --request-timeout=30s || true
	kubectl get apiservice v1alpha1.maintenance.haulout.dev --output=jsonpath='{.status}{"\n"}' --request-timeout=30s || true
	kubectl get events --all-namespaces --sort-by=.metadata.creationTimestamp --request-timeout=30s | tail --lines=60 || true
	tail --lines=40 /var/log/pods/haulout-*/*/*.log || true
	journalctl --no-pager --boot=-1 --lines=60 || true
	journalctl --no-pager --boot --lines=60 --unit=kubelet --unit=kube-proxy --unit=containerd --unit=cluster || true
	exit 1
}

# settings BLOCK... takes over what the reader has exported in the blocks.
settings() {
	local block
	for block in "$@"; do
		source <(blocks "${block}" | grep '^export ')
	done
}

# shows BLOCK PATTERN walks a block whose output must match.
shows() {
	walk "$1" | tee "${STATE}/output"
	grep --quiet --extended-regexp --regexp="$2" "${STATE}/output" || fail "block $1 of the page does not print \"$2\""
}

# kubectlImage writes the archive of an image with kubectl and a shell.
kubectlImage() {
	local folder="${STATE}/kubectl"
	mkdir -p "${folder}/layer/bin"
	cp /bin/busybox bin/kubectl "${folder}/layer/bin/"
	ln -sf busybox "${folder}/layer/bin/sh"
	tar --create --file="${folder}/layer.tar" --directory="${folder}/layer" bin
	printf '{"architecture":"amd64","os":"linux","config":{"Env":["PATH=/bin"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}' \
		"$(sha256sum <"${folder}/layer.tar" | cut --delimiter=' ' --fields=1)" >"${folder}/config.json"
	echo '[{"Config":"config.json","RepoTags":["localhost/kubectl:dev"],"Layers":["layer.tar"]}]' >"${folder}/manifest.json"
	tar --create --file="${STATE}/kubectl.tar" --directory="${folder}" manifest.json config.json layer.tar
}

# services lets pods, and programs of this machine, reach Services.
services() {
	cat >"${STATE}/kube-proxy.yaml" <<-YAML
		apiVersion: kubeproxy.config.k8s.io/v1alpha1
		kind: KubeProxyConfiguration
		mode: nftables
		clientConnection: {kubeconfig: "${KUBECONFIG}"}
		clusterCIDR: 198.18.0.0/16
		hostnameOverride: ${NODE}
		healthzBindAddress: 127.0.0.1:10256
		metricsBindAddress: 127.0.0.1:10249
		conntrack: {maxPerCore: 0, min: 0}
	YAML
	# Without a route to the addresses of Services, the kernel drops packets of this machine before
	# the rules of kube-proxy replace their address. The kubelet's service makes the interface.
	cat >/etc/systemd/system/kube-proxy.service <<-UNIT
		[Unit]
		Wants=kubelet.service
		After=kubelet.service
		[Service]
		Environment=PATH=${PATH}
		ExecStartPre=ip route replace 10.96.0.0/16 dev node0
		ExecStart=${ROOT}/bin/kube-proxy --config=${STATE}/kube-proxy.yaml
		Restart=always
		RestartSec=5
		[Install]
		WantedBy=multi-user.target
	UNIT
	systemctl daemon-reload
	systemctl enable --quiet --now kube-proxy.service
}

# volume creates a default StorageClass with one volume.
volume() {
	mkdir -p /srv/volume
	kubectl apply --filename=- <<-YAML || fail "the volume cannot be created"
		apiVersion: storage.k8s.io/v1
		kind: StorageClass
		metadata: {name: local, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
		provisioner: kubernetes.io/no-provisioner
		volumeBindingMode: WaitForFirstConsumer
		---
		apiVersion: v1
		kind: PersistentVolume
		metadata: {name: local}
		spec:
		  capacity: {storage: 8Gi}
		  accessModes: [ReadWriteOnce]
		  storageClassName: local
		  local: {path: /srv/volume}
		  nodeAffinity:
		    required:
		      nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: In, values: [${NODE}]}]}]
	YAML
}

# kured creates what there is of kured in a cluster where it is about to reboot the node.
kured() {
	local name=kured
	touch "${SENTINEL}"
	kubectl create serviceaccount "${name}" --namespace=kube-system
	kubectl create role "${name}" --namespace=kube-system --verb=update --resource=daemonsets.apps --resource-name="${name}"
	kubectl create rolebinding "${name}" --namespace=kube-system --role="${name}" --serviceaccount="kube-system:${name}"
	kubectl create clusterrole "${name}" --verb=get,patch --resource=nodes
	kubectl create clusterrolebinding "${name}" --clusterrole="${name}" --serviceaccount="kube-system:${name}"
	kubectl apply --filename=- <<-YAML
		apiVersion: apps/v1
		kind: DaemonSet
		metadata: {name: ${name}, namespace: kube-system}
		spec:
		  selector: {matchLabels: {name: ${name}}}
		  template:
		    metadata: {labels: {name: ${name}}}
		    spec:
		      serviceAccountName: ${name}
		      containers:
		      - name: ${name}
		        image: localhost/app:dev
		        args: [pause, --reboot-sentinel=/sentinel/reboot-required]
		        volumeMounts: [{name: sentinel, mountPath: /sentinel, readOnly: true}]
		      volumes: [{name: sentinel, hostPath: {path: /var/run, type: Directory}}]
	YAML
	kubectl rollout status --namespace=kube-system "daemonset/${name}" --timeout=5m
	kubectl annotate --namespace=kube-system "daemonset/${name}" \
		"weave.works/kured-node-lock={\"nodeID\":\"${NODE}\",\"metadata\":{\"unschedulable\":false},\"created\":\"2026-01-01T00:00:00Z\",\"TTL\":0}"
	kubectl taint node "${NODE}" weave.works/kured-node-reboot:PreferNoSchedule
}

noKured() {
	local kinds=daemonsets,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings
	[[ -z "$(kubectl get "${kinds}" --namespace=kube-system --output=name | grep '/kured$')" ]]
}

# untilDown ends this run when the machine goes down. It fails if the file STATE/ended exists
# before.
untilDown() {
	local limit=$((SECONDS + 900))
	trap 'exit 99' TERM
	until [[ "$(systemctl is-system-running)" == stopping ]]; do
		[[ ! -e "${STATE}/ended" ]] || fail "the commands have ended, and the machine does not reboot"
		((SECONDS < limit)) || fail "the machine does not reboot"
		read -rt 1 <> <(:) || true
	done
	exit 99
}

# tries runs step 5: its last command follows the rollout, and is killed when the machine reboots.
tries() {
	ssh() { [[ "$1" == "${NODE}" ]] && shift && "$@"; }
	sudo() { "$@"; }
	export -f ssh sudo
	export NODE node="${NODE}"
	boots >"${STATE}/boots"
	rm -f "${STATE}/ended"
	{ run 5.1 || true; touch "${STATE}/ended"; } &
	untilDown
}

# repeated prints the name of the rollout that the CronJob has created last.
repeated() { kubectl get nodemaintenancerollouts --selector=app=reboots --output=jsonpath='{.items[0].metadata.name}'; }

# evening starts the CronJob, which replaces the rollout that is complete. Then the operating system
# asks for a reboot again.
evening() {
	local former
	boots >"${STATE}/boots"
	former="$(repeated)"
	kubectl --namespace=haulout-system create job --from=cronjob/reboots evening
	kubectl --namespace=haulout-system wait job/evening --for=condition=Complete --timeout=5m || fail "the CronJob's Job does not end"
	[[ "$(repeated)" != "${former}" ]] || fail "the CronJob has created no rollout"
	touch "${SENTINEL}"
	untilDown
}

case "$(cat "${STATE}/step" 2>/dev/null || echo 1)" in
1)
	echo "--- A node, which kured is about to reboot"
	control HAULOUT=false \
		"APISERVER_FLAGS=--bind-address=0.0.0.0 --advertise-address=${ADDRESS} --endpoint-reconciler-type=lease --enable-aggregator-routing=true"
	identity
	kubectlImage
	node bin/images/{app,pause}-amd64.tar "${ARCHIVES}"/*.tar "${STATE}/kubectl.tar"
	services
	volume
	kured
	kubectl run app --image=localhost/app:dev -- serve 2
	kubectl wait pod/app --for=condition=Ready --timeout=5m || fail "the pod does not run"

	echo "--- Steps 1 to 5 of the page"
	settings 1.1 2.1
	shows 2.1 --reboot-sentinel=/sentinel/reboot-required
	walk 2.2
	walk 2.3
	shows 3.1 "^${NODE} +True"
	shows 4.1 "\"nodeID\":\"${NODE}\""
	kubectl annotate --namespace=kube-system daemonset/kured weave.works/kured-node-lock-
	! run 4.1 || fail "block 4.1 of the page prints a node, although kured has none"
	walk 4.3
	noKured || fail "something is left of kured"
	walk 4.4
	walk 4.5
	reboots tried tries
	;;
tried)
	echo "--- After the reboot of step 5"
	isUp
	rolled try
	[[ ! -e "${SENTINEL}" ]] || fail "${SENTINEL} exists after the boot"
	! kubectl get pod app >/dev/null 2>&1 || fail "the pod is still there, although the node was drained"
	follow="$(blocks 5.1 | tail --lines=1)"
	timeout 60 bash -eux -c "${follow}" || fail "the last command of step 5 does not end"

	echo "--- Steps 6 and 7 of the page"
	settings 1.1
	walk 6.1
	eventually 120 "no node asks for a reboot" isRolled reboots
	EDITOR="sed --in-place --expression=s|registry.example/kubectl:1|localhost/kubectl:dev| --expression=/windows:/d --expression=/{schedule:/d"
	export EDITOR
	walk 7.1
	shows 7.2 "^reboots-"
	eventually 120 "no node asks for a reboot" isRolled "$(repeated)"
	reboots evening evening
	;;
evening)
	echo "--- After the reboot by the rollout of the CronJob"
	isUp
	eventually 300 "the API is served" repeated
	rolled "$(repeated)"
	[[ ! -e "${SENTINEL}" ]] || fail "${SENTINEL} exists after the boot"
	echo "Replaced kured on a node with the commands of docs/rollouts.md, which has rebooted twice since when it asked for it."
	;;
esac
