#!/usr/bin/env bash
# Runs `go test` in the working directory, with the given arguments. Unlike it, this fails when no test ran: go test is content with a
# pattern that matches nothing.
set -o errexit -o nounset -o pipefail
export GOFLAGS="${GOFLAGS:+${GOFLAGS} }-buildvcs=false"

LOG="$(mktemp)"
trap 'rm -f "${LOG}"' EXIT
go test "$@" 2>&1 | tee "${LOG}"
ran="$(grep '^ok ' "${LOG}" | grep -cv -e '\[no tests to run\]' -e '\[no test files\]' || true)"
if [[ "${ran}" == 0 ]]; then
	echo "No test ran: go test $*" >&2
	exit 1
fi
echo "Tests of ${ran} packages passed"
