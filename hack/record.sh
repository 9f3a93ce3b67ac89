#!/usr/bin/env bash
# Records `kubectl maintenance status --watch` of a real drain, and renders docs/watch.svg, the
# picture in README. It needs the cluster that `KEEP=1 make demo` leaves.
#
#   CLUSTER_DIR=FOLDER folder of that cluster
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "${ROOT}"

readonly NAME=kernel-update RESOURCE=nodemaintenances.maintenance.haulout.dev
DIR="$(realpath -m "${CLUSTER_DIR:-.cluster-demo}")"
[[ -e "${DIR}/kubeconfig" ]] || { echo "hack/record.sh: ${DIR} has no cluster: start it with KEEP=1 make demo" >&2; exit 2; }
export KUBECONFIG="${DIR}/kubeconfig" PATH="${ROOT}/bin:${PATH}" TERM=xterm LANG=C.UTF-8
unset NO_COLOR LC_ALL LC_CTYPE

work="$(mktemp -d)"
trap 'kubectl delete "${RESOURCE}" "${NAME}" --ignore-not-found --wait=false >/dev/null; rm -rf "${work}"' EXIT
go build -o "${work}/recording" ./hack/recording

# The demo has drained the first six nodes.
kubectl maintenance start node-006 node-007 node-008 node-009 --name="${NAME}" --reason='new kernel' >/dev/null
{
	# The watch ends when the maintenance is complete. Readers want to see it drained before.
	kubectl wait "${RESOURCE}" "${NAME}" --for=condition=Drained --timeout=4m
	sleep 3
	kubectl maintenance complete "${NAME}" --wait=false
} >"${work}/log" 2>&1 &
"${work}/recording" record "${work}/watch.cast" kubectl maintenance status "${NAME}" --watch ||
	{ cat "${work}/log" >&2; exit 1; }
wait $! || { cat "${work}/log" >&2; exit 1; }
"${work}/recording" render "${work}/watch.cast" docs/watch.svg \
	--title='A drain of four nodes in a terminal: the progress of all pods, waves and nodes, until the nodes are drained'
ls -l docs/watch.svg
