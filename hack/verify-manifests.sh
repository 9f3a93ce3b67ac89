#!/usr/bin/env bash
# Builds each kustomization of artifacts/ and checks the result with hack/manifests; also checks the
# examples and the rights of Prometheus.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
kustomize="$(kustomize)"
cd "${ROOT}"
SCRATCH="$(mktemp -d)"
trap 'rm -rf "${SCRATCH}"' EXIT
go build -o "${SCRATCH}/manifests" ./hack/manifests

failed=
for folder in artifacts/base artifacts/eviction-interception artifacts/scheduler artifacts/second-scheduler artifacts/node-agent artifacts/node-agent/windows artifacts/worker-* artifacts/overlays/*; do
	echo -n "${folder}: "
	"${kustomize}" build "${folder}" | "${SCRATCH}/manifests" || failed=1
done
while IFS= read -r -d '' example; do
	echo -n "${example}: "
	"${SCRATCH}/manifests" <"${example}" || failed=1
done < <(git ls-files -z --cached --others --exclude-standard 'artifacts/examples/*.yaml' artifacts/monitoring/rbac.yaml)

[[ -z "${failed}" ]]
