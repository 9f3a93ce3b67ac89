#!/usr/bin/env bash
# This script is run by `make cgroup2` in a virtual machine: two real nodes on cgroups of version 2,
# a drain of one node, its power failure and the end of the cluster. `make node-binaries` has built
# the programs.
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
cd "${ROOT}"
export PATH="${ROOT}/bin:${PATH}" CLUSTER_DIR=/srv/cluster
export KUBECONFIG="${CLUSTER_DIR}/kubeconfig"

fail() { echo "Error: $*" >&2; exit 1; }
[[ -e /sys/fs/cgroup/cgroup.controllers ]] || fail "/sys/fs/cgroup is not of version 2"
before="$(find /sys/fs/cgroup -type d | sort)"

REAL_NODES=2 NODES=0 START_TIMEOUT=10m cluster up
kubectl apply -f - <<'YAML'
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 60
      topologySpreadConstraints:
      - {maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: ScheduleAnyway, labelSelector: {matchLabels: {app: web}}}
      containers:
      - name: app
        image: localhost/app:dev
        args: [serve, "2"]
        resources: {limits: {cpu: 500m, memory: 64Mi}}
        readinessProbe: {httpGet: {port: 8080}}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: web}
spec: {minAvailable: 2, selector: {matchLabels: {app: web}}}
YAML
kubectl rollout status deployment web --timeout=5m
kubectl get pods -o wide
[[ -n "$(kubectl get pods -l app=web --field-selector=spec.nodeName=real-2 -o name)" ]] || fail "no pod is on real-2"
# The limit of a container is in the cgroup that the kubelet made for it.
grep -q 67108864 -r /sys/fs/cgroup --include=memory.max || fail "no cgroup has the memory limit of the container"

kubectl maintenance start real-2 --name=cgroup2 --wait --timeout=10m
kubectl get pods -o wide
[[ -z "$(kubectl get pods -l app=web --field-selector=spec.nodeName=real-2 -o name)" ]] || fail "a pod is left on real-2"
kubectl maintenance complete cgroup2
for _ in {1..120}; do
	[[ -n "$(kubectl get node real-2 -o jsonpath='{.spec.unschedulable}')" ]] || break
	read -rt 1 <> <(:) || true
done
[[ -z "$(kubectl get node real-2 -o jsonpath='{.spec.unschedulable}')" ]] || fail "real-2 is still cordoned"

cluster down
[[ "$(find /sys/fs/cgroup -type d | sort)" == "${before}" ]] || fail "cgroups are left: $(find /sys/fs/cgroup -type d)"
echo "Drained a node on cgroups of version 2, and no cgroup is left."
