#!/usr/bin/env bash
# Runs `go test` in the working directory, with the given arguments. In contrast to `go test`, it
# fails if no test ran, for example because a pattern matches nothing. Without -v, it shows the
# output of failed packages. It repeats the failures and their causes at the end, since a failed
# test may log the whole state of a cluster.
#
#   hack/test.sh ARGUMENT...
#   hack/test.sh COMMON... : ARGUMENT... : ARGUMENT...   one `go test` after the other
#
# It appends to these files, if the variables are set:
#   TEST_FAILURES  the failures
#   TEST_TIMES     the seconds, the package and the name of each test
#   TEST_LEFT_OUT  the tests that this machine could not run, and what it lacks
set -o errexit -o nounset -o pipefail
export GOFLAGS="${GOFLAGS:+${GOFLAGS} }-buildvcs=false"

# The race detector is written in C. With it, each test program gets one processor, and as many
# programs run in parallel as there are processors. The reason is a bug: in Go 1.26, two goroutines
# of a synctest bubble that receive from expired timers, such as time.After(0), share a context of
# the race detector, and on two processors the program ends with SIGSEGV. The race detector uses the
# order of accesses and also finds races on one processor.
if [[ " $* " == *' -race '* ]]; then
	export CGO_ENABLED=1 GOMAXPROCS=1
	set -- -p "$(nproc)" "$@"
fi

LOG="$(mktemp)"
trap 'rm -f "${LOG}"' EXIT

# The first log lines of the failed tests, and the last ten of each. If a package failed without a
# failed test, because its process was killed or crashed: the report of the runtime, or else its
# last lines.
failures() {
	echo "=== What failed"
	awk '
		/^(ok|[?]) +\t/ { printed = named = 0; broke = "" }
		/^FAIL\t/ {
			first = broke != "" ? broke : printed > 20 ? printed - 20 : 0
			for (i = first; !named && i < printed && i < first + 20; i++) print "  " line[i]
			print; printed = named = 0; broke = ""; next
		}
		/^(fatal error:|FATAL:|SIG[A-Z]+:|==[0-9]+==)/ { if (broke == "") broke = printed + 0 }
		/^(FAIL|exit status [0-9]+)$/ { if (named) next }
		{ line[printed++] = substr($0, 1, 600) }
		/^=== (RUN|NAME|CONT)/ { test = $3 }
		/^ *--- FAIL:/ { test = $3; failed[++count] = test; named = 1 }
		/^ +[A-Za-z0-9_]+\.go:[0-9]+: cluster: / { next }
		/^ +[A-Za-z0-9_]+\.go:[0-9]+: / { lines[test, logged[test]++] = substr($0, 1, 600) }
		/^panic:|WARNING: DATA RACE/ { print }
		END {
			for (i = 1; i <= count; i++) {
				print "--- FAIL: " failed[i]
				n = logged[failed[i]]
				for (j = (n > 10 ? n - 10 : 0); j < n; j++) print lines[failed[i], j]
			}
		}' "${LOG}"
}

# The output of a failed package, or with -v of every package.
shown() {
	if [[ " $* " == *' -v '* ]]; then
		cat
	else
		awk '
			/^(ok|[?]) +\t/ { print; count = 0; next }
			/^FAIL\t/ { for (i = 0; i < count; i++) print line[i]; print; count = 0; next }
			{ line[count++] = $0 }
			END { for (i = 0; i < count; i++) print line[i] }'
	fi
}

# The times of the tests, and the skipped tests.
times() {
	awk '
		/^--- (PASS|FAIL|SKIP): / { gsub(/[()s]/, "", $4); line[count++] = $4 " %s " $3 }
		/^(ok|FAIL) *\t/ { for (i = 0; i < count; i++) printf line[i] "\n", $2; count = 0 }' "${LOG}"
}

leftOut() {
	awk '
		/^NO TEST/ { print }
		/^ +[A-Za-z0-9_]+\.go:[0-9]+: / { sub(/^ +[^ ]+ /, ""); why = $0 }
		/^ *--- SKIP: / { print $3 ": " why }' "${LOG}"
}

# Tests are vetted by make lint or make gitops. Here it would take a pass over all they are compiled
# from, for each way in which they are compiled.
tests() {
	local failed='' argument common=() group=()
	for argument in "$@" :; do
		if [[ "${argument}" != : ]]; then
			group+=("${argument}")
		elif [[ " $* " == *' : '* && ${#common[@]} == 0 ]]; then
			common=("${group[@]}") group=()
		else
			go test -v -vet=off "${common[@]}" "${group[@]}" || failed=1
			group=()
		fi
	done
	[[ -z "${failed}" ]]
}

result=0
tests "$@" 2>&1 | tee "${LOG}" | shown "$@" || result=1
times >>"${TEST_TIMES:-/dev/null}"
leftOut >>"${TEST_LEFT_OUT:-/dev/null}"
if [[ "${result}" != 0 ]]; then
	failures | tee -a "${TEST_FAILURES:-/dev/null}"
	exit 1
fi
ran="$(grep '^ok ' "${LOG}" | grep -cv -e '\[no tests to run\]' -e '\[no test files\]' || true)"
if [[ "${ran}" == 0 ]]; then
	echo "No test ran: go test $*" >&2
	exit 1
fi
echo "Tests of ${ran} packages passed in ${SECONDS}s"
