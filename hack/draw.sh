#!/usr/bin/env bash
# Prints what a run of .ci/run leaves to `make nightly`. What it runs is drawn by the commit. It
# says what and why on the other stream.
#
#   hack/draw.sh         a pattern for `go test -skip`: some tests that take long, all random
#                        searches but one, all slow tests but one, and a third of the tests on
#                        real nodes
#   hack/draw.sh race    RACE for make: a fifth of the packages
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "${ROOT}"

# Each leaves to chance what it does, and finds the more the more often it runs.
searches=(
	TestLeaderIsKilled
	TestNothingDiffersAfterManyDrains
	TestOverlappingMaintenances
	TestProtocol
	TestRandomFaults
	TestRandomFaultsOfEtcdCluster
	TestRolloutsOutliveKills
	TestStorm
)
# Each takes from twenty seconds to two minutes, most of them while no other test can run.
slow=(
	TestEvacuationsThatFillANamespace
	TestEvictionsPassWithoutALeader
	TestNamespaceIsDeletedWhenTheServerIsBack
	TestServerLeavesItsNodeLastAndDoesNotComeBack
	TestThousandsOfNodes
)
# Each third takes two to five minutes, and each test has a cluster of its own.
real=(
	TestNodeAgent
	TestNodes
	'TestReplicas TestServerAsAPod'
)
# Each has a cluster of its own, with a cluster of etcd beside it.
long=(TestMoveToAnEtcdCluster TestSideBySide)

commit="$(git rev-parse HEAD)"
# What is drawn from one list does not depend on what is drawn from another.
number() { # LIST
	local digest
	digest="$(printf '%s %s' "$1" "${commit}" | sha256sum)"
	echo "$((16#${digest:0:8}))"
}
if [[ "${1:-}" == race ]]; then
	fifth="$(($(number race) % 5 + 1))/5"
	echo "The race detector runs in a fifth of the packages, ${fifth}, drawn by the commit ${commit:0:8}" >&2
	echo "${fifth}"
	exit
fi
# shellcheck disable=SC2048 # the tests of a third are words
for name in "${searches[@]}" "${slow[@]}" "${long[@]}" ${real[*]}; do
	grep -rqE --include='*_test.go' "^func ${name}\(" test || { echo "hack/draw.sh: no test has the name ${name}" >&2; exit 1; }
done
skipped=("${long[@]}") drawn=()
draw() { # LIST NAMES...
	local names list="$1"
	shift
	drawn+=("${@:$(number "${list}") % $# + 1:1}")
	for names in "$@"; do
		# shellcheck disable=SC2206 # the tests of a third are words
		[[ "${names}" == "${drawn[-1]}" ]] || skipped+=(${names})
	done
}
draw searches "${searches[@]}"
draw slow "${slow[@]}"
draw real "${real[@]}"
{
	echo "One of ${#searches[@]} random searches, one of ${#slow[@]} slow tests and a third of the tests on real nodes run, drawn by the commit ${commit:0:8}:"
	echo "${drawn[*]}"
	echo "Left to make nightly: ${skipped[*]}"
} >&2
# \z in place of $, which make would expand.
(IFS='|'; echo "^(${skipped[*]})\\z")
