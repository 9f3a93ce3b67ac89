#!/usr/bin/env bash
# Drains four simulated nodes of a separate cluster, puts them back, then rolls a task over six
# nodes, one of which fails, and checks the results that kubectl shows. `make demo` builds the
# programs and runs this script.
#
#   KEEP=1             leave the cluster up
#   NODES=20           number of nodes, at least 15: the server lets a rollout take out a fifth
#   CLUSTER_DIR=FOLDER folder of the cluster; it must not contain a cluster
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "${ROOT}"

readonly DRAINED=4 LABEL=pool=blue NAME=kernel-update
# The rollout of test/demo/rollout.yaml, its nodes, how many may be out and in how many zones, and
# the node that fails.
readonly ROLLOUT=firmware ROLLED=6 OUT=3 ZONES=2 FAILS=node-002
KEEP="${KEEP:-0}" NODES="${NODES:-20}"

usage() { echo "Error: $*" >&2; exit 2; }
[[ $# == 0 || "$*" == check ]] ||
	usage "the demo takes the argument check, which reads its settings only, or none"
[[ "${KEEP}" =~ ^(0|1|true|false)$ ]] || usage "KEEP=${KEEP}: must be one of 1, true, 0, false"
[[ "${NODES}" =~ ^[0-9]{1,5}$ && "${NODES}" -ge $((5 * OUT)) ]] ||
	usage "NODES=${NODES}: must be a whole number of at least $((5 * OUT))"
if [[ -n "${CLUSTER_DIR:-}" && -e "${CLUSTER_DIR}/state.json" ]]; then
	usage "CLUSTER_DIR=${CLUSTER_DIR}: must not hold a cluster; stop it first with \`make cluster-down\`"
fi
[[ $# == 0 ]] || exit 0
DIR="$(realpath -m "${CLUSTER_DIR:-.cluster-demo}")"
# The cluster is set up by flags, not by the user's variables, which are meant for another cluster.
unset CLUSTER_DIR
export KUBECONFIG="${DIR}/kubeconfig" PATH="${ROOT}/bin:${PATH}"

bold="" plain=""
if [[ -t 1 && -z "${NO_COLOR:-}" ]]; then bold=$'\e[1m' plain=$'\e[0m'; fi
title() { printf '\n%s%s%s\n' "${bold}" "$*" "${plain}"; }
# shown COMMAND... prints a command as a user would type it, and runs it.
shown() { printf '%s$ %s%s\n' "${bold}" "$*" "${plain}"; "$@"; }

# workloads_ready waits until each workload has all its pods, and they are ready.
workloads_ready() {
	local namespace workload
	for namespace in shop kube-system; do
		for workload in $(kubectl -n "${namespace}" get deployments,statefulsets,daemonsets -o name); do
			kubectl -n "${namespace}" rollout status "${workload}" --timeout=2m >/dev/null || return 1
		done
	done
}

started="" watching=()
budgets="$(mktemp)" outs="$(mktemp)" followed="$(mktemp)" worker_log="$(mktemp)"
finish() {
	local status=$?
	trap - EXIT
	[[ ${#watching[@]} == 0 ]] || kill "${watching[@]}" 2>/dev/null || true
	if ((status != 0)); then
		title "The demo failed (exit code ${status}). What haulout-apiserver complained about:"
		grep -hE '^[WEF][0-9]{4}' "${DIR}/logs/haulout-apiserver.log" "${worker_log}" 2>/dev/null | tail -n 10 || true
	fi
	rm -f "${budgets}" "${outs}" "${followed}" "${worker_log}"
	if [[ -n "${started}" && ! "${KEEP}" =~ ^(1|true)$ ]]; then
		title "Stop everything"
		shown cluster down --cluster-dir="${DIR}" --keep-data=0 || status=1
	elif [[ -n "${started}" ]]; then
		title "The cluster is left up (KEEP=${KEEP})"
		printf '  export KUBECONFIG=%q PATH=%q:$PATH\n  make cluster-down CLUSTER_DIR=%q\n' "${KUBECONFIG}" "${ROOT}/bin" "${DIR}"
	fi
	((status != 0)) || title "Done after ${SECONDS} s"
	exit "${status}"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# check TEXT COMMAND... reports whether an expectation is met.
failed=0
check() {
	local text="$1"
	shift
	if "$@"; then echo "  ok      ${text}"; else echo "  FAILED  ${text}"; failed=1; fi
}

title "1. Start a cluster: a real control plane, ${NODES} simulated nodes, and Haulout"
[[ ! -e "${DIR}/state.json" ]] || cluster down --cluster-dir="${DIR}" --keep-data=0
started=1
# The server of a development cluster lets all nodes be out; this one has the default of a server.
shown cluster up --cluster-dir="${DIR}" --nodes="${NODES}" --haulout=true --haulout-flags=--max-unavailable-nodes=20% --pod-stages=general | sed '/^$/,$d'

title "2. Run about 300 pods on it: a shop, and what a cluster itself needs"
mapfile -t nodes < <(kubectl get nodes -o name | head -n "${DRAINED}")
shown kubectl label "${nodes[@]}" "${LABEL}" | tail -n 1
shown kubectl apply -f test/demo/workloads.yaml | tail -n 3
workloads_ready
kubectl -n shop wait pods -l app=debug --for=condition=Ready --timeout=1m >/dev/null
shown kubectl get deployments,statefulsets,daemonsets,poddisruptionbudgets -A

title "3. Take ${DRAINED} nodes out of service"
# Record every change of a budget, beginning with its present state.
kubectl get poddisruptionbudgets -A --watch --no-headers -o custom-columns=:.metadata.namespace,:.metadata.name,:.status.currentHealthy,:.status.desiredHealthy \
	>"${budgets}" &
watching+=($!)
shown kubectl maintenance start -l "${LABEL}" --name="${NAME}" --reason="new kernel for the blue pool" --wait --timeout=4m || test $? = 6    # 6: pods of a DaemonSet are kept

title "4. Look at what has happened"
shown kubectl get nodemaintenances
shown kubectl maintenance history "${NAME}"
shown kubectl get nodes -l "${LABEL}"
staying="$(kubectl get pods -A -o jsonpath='{range .items[*]}{.spec.nodeName} {.metadata.ownerReferences[0].kind} {.metadata.name}{"\n"}{end}' |
	grep -E "^($(IFS='|'; echo "${nodes[*]#node/}")) " | grep -v ' DaemonSet ' || true)"
cordoned="$(kubectl get nodes -o jsonpath='{range .items[?(@.spec.unschedulable)]}{.metadata.name}{"\n"}{end}' | wc -l)"

title "5. Return the nodes to service"
shown kubectl maintenance complete "${NAME}"
shown kubectl get nodes -l "${LABEL}"
shown kubectl delete nodemaintenance "${NAME}"
closed="$(kubectl get nodes -o jsonpath='{range .items[?(@.spec.unschedulable)]}{.metadata.name} {end}')"
marked="$(kubectl get nodes -o jsonpath='{.items[*].metadata.annotations}' | grep -o 'maintenance\.haulout\.dev/[a-z-]*' || true)"

title "6. Roll new firmware over ${ROLLED} nodes in three zones; the firmware of ${FAILS} fails"
echo 'The nodes are simulated: the pods of the Jobs run no script. On real nodes they do.'
rollout_started="${SECONDS}"
# only_failed reports whether no unit but the failed one is left, and returned whether all nodes are
# schedulable.
only_failed() { [[ "$(kubectl get "nodemaintenancerollouts.maintenance.haulout.dev/${ROLLOUT}" -o jsonpath='{.status.current[*].unit}')" == "${FAILS}" ]]; }
returned() { [[ -z "$(kubectl get nodes -o jsonpath='{.items[*].spec.unschedulable}')" ]]; }
within_a_minute() { for _ in {1..60}; do if "$@"; then return; fi; sleep 1; done; return 1; }
haulout-worker job --kubeconfig="${KUBECONFIG}" --namespace=haulout-workers >"${worker_log}" 2>&1 &
watching+=($!)
mapfile -t rolled < <(kubectl get nodes -o name | head -n "${ROLLED}")
shown kubectl label "${rolled[@]}" "${LABEL}" --overwrite | tail -n 1
# Record which nodes are unschedulable, and in which zone.
kubectl get nodes -l "${LABEL}" --watch --no-headers -o custom-columns=':.metadata.name,:.spec.unschedulable,:.metadata.labels.topology\.kubernetes\.io/zone' \
	>"${outs}" &
watching+=($!)
shown kubectl apply -f test/demo/rollout.yaml
# Through tee, so that it writes lines and redraws none.
kubectl maintenance rollout status "${ROLLOUT}" --watch > >(tee "${followed}") &
status_watch=$!
watching+=("${status_watch}")
# With one failure more than maxFailed, which is 0, no further unit starts: those that run finish.
# After a timeout the demo goes on, so that the status shows what the rollout waits for.
shown kubectl wait "nodemaintenancerollouts.maintenance.haulout.dev/${ROLLOUT}" --for=jsonpath='{.status.nodes.failed}'=1 --timeout=3m || true
ended=0
within_a_minute only_failed || ended=$?
kill "${status_watch}" 2>/dev/null && wait "${status_watch}" 2>/dev/null || true
status_code=0
shown kubectl maintenance rollout status "${ROLLOUT}" || status_code=$?
stopped_because="$(kubectl get "nodemaintenancerollouts.maintenance.haulout.dev/${ROLLOUT}" -o jsonpath='{.status.conditions[?(@.type=="Progressing")].reason}')"
shown kubectl get nodes -l "${LABEL}"
out_at_end="$(kubectl get nodes -o jsonpath='{range .items[?(@.spec.unschedulable)]}{.metadata.name} {end}')"
done_nodes="$(kubectl get "nodemaintenancerollouts.maintenance.haulout.dev/${ROLLOUT}" -o jsonpath='{.status.nodes.done}')"

rollout_took=$((SECONDS - rollout_started)) return_started="${SECONDS}"

title "7. Give up: the failed node returns to service, too"
shown kubectl delete "nodemaintenancerollouts.maintenance.haulout.dev/${ROLLOUT}"
within_a_minute returned || failed=1
return_took=$((SECONDS - return_started))
shown kubectl get nodes -l "${LABEL}"

title "What was checked"
# For each budget: the required number of healthy pods, from its first line, and the minimum that it
# had.
lowest="$(awk '{ b = $1 "/" $2 } !(b in need) { need[b] = $4; low[b] = $3 } $3 < low[b] { low[b] = $3 }
	END { for (b in need) print b, need[b], low[b] }' "${budgets}" | sort)"
echo "${lowest}" | awk '{ printf "          budget %s needs %d healthy pods and never had fewer than %d\n", $1, $2, $3 }'
check "no budget was broken" awk '$3 < $2 { broken = 1 } END { exit broken || NR == 0 }' <<<"${lowest}"
check "only pods of DaemonSets stayed on the drained nodes${staying:+, but also ${staying//$'\n'/, }}" test -z "${staying}"
check "${cordoned} nodes were cordoned, and no others" test "${cordoned}" == "${DRAINED}"
check "all nodes are schedulable again${closed:+, but not ${closed}}" test -z "${closed}"
check "nothing of the maintenance is left on a node${marked:+, but ${marked//$'\n'/, }}" test -z "${marked}"
# Of the rollout: the most nodes, and zones of nodes, that were out at the same time.
read -r most zones < <(awk '
	{ if ($2 == "true") { node[$1] = $3 } else { delete node[$1] }
	  n = 0; z = 0; split("", zone)
	  for (name in node) { n++; if (!(node[name] in zone)) { zone[node[name]] = 1; z++ } }
	  if (n > most) most = n
	  if (z > zones) zones = z }
	END { print most + 0, zones + 0 }' "${outs}")
# The times are printed and not checked: the demo must not fail because a machine is slow. The waits
# above have timeouts, after which a check fails.
echo "          the rollout of step 6 took ${rollout_took} s, and the return of step 7 ${return_took} s"
check "the rollout ended, with ${FAILS} alone left" test "${ended}" == 0
check "it was halted, and rollout status ended with 3, because a user must act: ${stopped_because}, ${status_code}" \
	test "${stopped_because} ${status_code}" == "Halted 3"
check "at most ${OUT} nodes in ${ZONES} zones were out at the same time: ${most}, in ${zones} zones" \
	test "${most}" -ge 2 -a "${most}" -le "${OUT}" -a "${zones}" -le "${ZONES}"
check "status --watch has shown the rollout" grep -q "${ROLLOUT}: Rolling" "${followed}"
check "${done_nodes} of ${ROLLED} nodes were done, and ${FAILS} alone stayed out of service" \
	test "${done_nodes} ${out_at_end}" == "$((ROLLED - 1)) ${FAILS} "
check "all nodes are schedulable again after the rollout" returned
check "all workloads have as many ready pods as before" workloads_ready
exit "${failed}"
