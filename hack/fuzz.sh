#!/usr/bin/env bash
# Searches for input that breaks a parser: runs each fuzz target of the packages for a while.
#
#   hack/fuzz.sh TIME [PACKAGE...]
#
# Without a package, it runs the targets of all packages.
#
# A target fails if it has written an input that breaks it, or for any reason other than the end of
# its time: before Go 1.27, a target sometimes fails with `context deadline exceeded` at the end of
# its time without a finding (golang.org/issue/75804).
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "${ROOT}"

duration="$1"
shift
if [[ $# == 0 ]]; then
	mapfile -t folders < <(git grep -l '^func Fuzz' -- '*_test.go' | xargs -n 1 dirname | sort -u)
	set -- "${folders[@]/#/./}"
fi
log="$(mktemp)"
trap 'rm -f "${log}"' EXIT
ran=0 failed=""
for package in "$@"; do
	targets="$(go test "${package}" -list='^Fuzz')"
	targets="$(grep '^Fuzz' <<<"${targets}")" || {
		echo "${package} has no fuzz target" >&2
		exit 1
	}
	for target in ${targets}; do
		ran=$((ran + 1))
		# Limit the minimization of new findings to a second: the default is a minute, in which
		# nothing else is tried.
		if go test "${package}" -run='^$' -fuzz="^${target}\$" -fuzztime="${duration}" -fuzzminimizetime=1s 2>&1 | tee "${log}"; then
			continue
		fi
		if ! grep -qE 'Failing input written|panic:|hung or terminated|build failed|setup failed' "${log}" &&
			grep -A1 "^--- FAIL: ${target}" "${log}" | tail -n 1 | grep -qE '^ *context deadline exceeded$'; then
			echo "${target}: its time was over, nothing was found"
			continue
		fi
		failed=1
		{ echo "--- FAIL: ${target} in ${package}"; grep -vE '^fuzz: (elapsed|minimizing)' "${log}" | head -n 20; } >>"${TEST_FAILURES:-/dev/null}"
	done
done
if [[ "${ran}" == 0 ]]; then
	echo "No fuzz target was found in $*" >&2
	exit 1
fi
[[ -z "${failed}" ]] && echo "${ran} fuzz targets passed"
