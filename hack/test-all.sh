#!/usr/bin/env bash
# Runs all tests for `make test`, and finally prints which ones this machine could not run.
#
#   hack/test-all.sh MAKE TARGET...
#
# If a target fails, the later ones still run, so that one run shows all failures.
set -o errexit -o nounset -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
make="$1"
shift

TEST_LEFT_OUT="$(mktemp)"
export TEST_LEFT_OUT
trap 'rm -f "${TEST_LEFT_OUT}"' EXIT
failed=()
for target in "$@"; do
	"${make}" --no-print-directory "${target}" || failed+=("${target}")
done
if [[ -s "${TEST_LEFT_OUT}" ]]; then
	echo "=== Left out: this machine lacks what these tests need"
	sed 's/^/  /' "${TEST_LEFT_OUT}"
	missing="$(hack/packages.sh --list)"
	[[ -z "${missing}" ]] || echo "As root, hack/packages.sh installs what is missing: ${missing}"
fi
[[ ${#failed[@]} == 0 ]] || { echo "Error: make ${failed[*]} failed" >&2; exit 1; }
