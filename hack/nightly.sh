#!/usr/bin/env bash
# Runs targets of the Makefile, all of them even if one fails, and ends with a table of what came of
# each. The output of a target is also in bin/nightly/TARGET.log.
#
#   hack/nightly.sh MAKE TARGET...
set -o errexit -o nounset -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
make="$1"
shift
# A test that this machine cannot run fails instead of being left out.
export CI=true
# Settings for single runs must not make the others smaller.
unset E2E_CLUSTER_DIR E2E_SEED E2E_SEEDS E2E_PACKAGES KUBE KUBE_SKIP RUN SKIP COUNT RACE

TEST_FAILURES="$(mktemp)"
export TEST_FAILURES
trap 'rm -f "${TEST_FAILURES}"' EXIT
mkdir -p bin/nightly
table="" failed=
for target in "$@"; do
	echo "=== ${target}"
	started="${SECONDS}" result=ok
	"${make}" --no-print-directory "${target}" 2>&1 | tee "bin/nightly/${target}.log" || result=FAILED failed=1
	table+="$(printf '%-16s  %-6s  %7d' "${target}" "${result}" "$((SECONDS - started))")"$'\n'
done
cat "${TEST_FAILURES}"
printf '\n%-16s  %-6s  %7s\n%s' TARGET RESULT SECONDS "${table}"
[[ -z "${failed}" ]]
