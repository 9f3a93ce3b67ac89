#!/usr/bin/env bash
# Runs the end-to-end tests on versions of Kubernetes, all of them even if one fails, and ends with
# the rows of the table in README. The output for a version is also in bin/kube-VERSION.log.
#
#   hack/kube.sh MAKE VERSION...
set -o errexit -o nounset -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
make="$1"
shift
# A test that this machine cannot run fails instead of being left out.
export CI=true
unset KUBE E2E_CLUSTER_DIR

# count LOG RESULT prints how many tests have a result, without the parts of a test.
count() { grep -c "^--- $2: " "$1" || true; }

# release VERSION prints the patch release that was built.
release() {
	case "$1" in
	1.37) sed -n 's/^KUBE_VERSION := v//p' Makefile ;;
	*) sed -nE 's/^\tk8s.io\/kubernetes v([^ ]+).*/\1/p' "test/cluster/kube/$1/go.mod" ;;
	esac
}

mkdir -p bin
table="" failed=
for version in "$@"; do
	echo "=== Kubernetes ${version}"
	log="bin/kube-${version}.log" started="${SECONDS}" result=passed
	"${make}" --no-print-directory e2e KUBE="${version}" E2E_PACKAGES=': -p=1 ./test/e2e : ./test/e2e/realnodes' 2>&1 |
		tee "${log}" || result=FAILED failed=1
	table+="| ${version} | ${result} | $(release "${version}"), $(date -u +%F), $(count "${log}" PASS) tests passed, $(count "${log}" FAIL) failed, "
	table+="$(count "${log}" SKIP) skipped, $((SECONDS - started)) s |"$'\n'
done
printf '\n| Kubernetes | result | run |\n|---|---|---|\n%s' "${table}"
[[ -z "${failed}" ]]
