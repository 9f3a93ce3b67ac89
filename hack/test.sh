#!/usr/bin/env bash
# Runs `go test` in the working directory, with the given arguments. Unlike it, this fails when no
# test ran: go test is content with a pattern that matches nothing. What failed, and why, is said
# once more at the end, since a test that fails may show the whole state of a cluster; and added to
# the file TEST_FAILURES, if that is set.
set -o errexit -o nounset -o pipefail
export GOFLAGS="${GOFLAGS:+${GOFLAGS} }-buildvcs=false"

# The race detector is written in C.
[[ " $* " != *' -race '* ]] || export CGO_ENABLED=1

LOG="$(mktemp)"
trap 'rm -f "${LOG}"' EXIT

# The first lines of what the failed tests have logged, the last ten of each.
failures() {
	echo "=== What failed"
	awk '
		/^=== (RUN|NAME|CONT)/ { test = $3 }
		/^ *--- FAIL:/ { test = $3; failed[++count] = test }
		/^ +[A-Za-z0-9_]+\.go:[0-9]+: cluster: / { next }
		/^ +[A-Za-z0-9_]+\.go:[0-9]+: / { lines[test, logged[test]++] = substr($0, 1, 600) }
		/^(panic:|FAIL\t)|WARNING: DATA RACE/ { print }
		END {
			for (i = 1; i <= count; i++) {
				print "--- FAIL: " failed[i]
				n = logged[failed[i]]
				for (j = (n > 10 ? n - 10 : 0); j < n; j++) print lines[failed[i], j]
			}
		}' "${LOG}"
}

if ! go test "$@" 2>&1 | tee "${LOG}"; then
	failures | tee -a "${TEST_FAILURES:-/dev/null}"
	exit 1
fi
ran="$(grep '^ok ' "${LOG}" | grep -cv -e '\[no tests to run\]' -e '\[no test files\]' || true)"
if [[ "${ran}" == 0 ]]; then
	echo "No test ran: go test $*" >&2
	exit 1
fi
echo "Tests of ${ran} packages passed"
