#!/usr/bin/env bash
# Runs the end-to-end tests on versions of Kubernetes, all of them even if one fails, and ends with
# the table of README. The output for a version is also in bin/kube-VERSION.log.
#
#   hack/kube.sh MAKE VERSION...
set -o errexit -o nounset -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
make="$1"
shift
# A test that this machine cannot run fails instead of being left out.
export CI=true
unset KUBE E2E_CLUSTER_DIR

# release VERSION prints the patch release that is built.
release() {
	if [[ -e "test/cluster/kube/$1" ]]; then
		sed -nE 's/^\tk8s.io\/kubernetes v([^ ]+).*/\1/p' "test/cluster/kube/$1/go.mod"
	else
		sed -n 's/^KUBE_VERSION := v//p' Makefile
	fi
}

mkdir -p bin
versions="| Kubernetes |" line="|---|" results="| tests passed |" failed=
for version in "$@"; do
	echo "=== Kubernetes ${version}"
	log="bin/kube-${version}.log"
	if "${make}" --no-print-directory e2e KUBE="${version}" 2>&1 | tee "${log}"; then
		# Without the parts of a test, whose lines are indented.
		result="$(grep -c '^--- PASS: ' "${log}" || true), $(grep -c '^--- SKIP: ' "${log}" || true) skipped, $(date -u +%F)"
	else
		result=FAILED failed=1
	fi
	versions+=" $(release "${version}") |" line+="---|" results+=" ${result} |"
done
printf '\n%s\n%s\n%s\n' "${versions}" "${line}" "${results}"
[[ -z "${failed}" ]]
