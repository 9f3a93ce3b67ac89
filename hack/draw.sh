#!/usr/bin/env bash
# Prints what a run of .ci/run leaves to `make nightly`. What it runs is drawn by the commit. It
# says what and why on the other stream.
#
#   hack/draw.sh         a pattern for `go test -skip`: some tests that take long, all random
#                        searches and slow tests but one, and four of the five parts of the tests
#                        on real nodes and of the pages
#   hack/draw.sh race    RACE for make: a tenth of the packages
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "${ROOT}"

# The random searches leave to chance what they do, and find the more the more often they run. Each
# of the others takes from twenty seconds to two minutes, most of them while no other test can run.
slow=(
	TestLeaderIsKilled
	TestNothingDiffersAfterManyDrains
	TestOverlappingMaintenances
	TestProtocol
	TestRandomFaults
	TestRandomFaultsOfEtcdCluster
	TestRolloutsOutliveKills
	TestStorm
	TestEvacuationsThatFillANamespace
	TestEvictionsPassWithoutALeader
	TestNamespaceIsDeletedWhenTheServerIsBack
	TestServerLeavesItsNodeLastAndDoesNotComeBack
	TestThousandsOfNodes
)
# Each part takes two to three minutes, and each test has a cluster of its own.
real=(
	TestNodeAgent
	TestNodeAgentInTrouble
	TestNodes
	TestPagesRun
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
	tenth="$(($(number race) % 10 + 1))/10"
	echo "The race detector runs in a tenth of the packages, ${tenth}, drawn by the commit ${commit:0:8}" >&2
	echo "${tenth}"
	exit
fi
# shellcheck disable=SC2048 # the tests of a part are words
for name in "${slow[@]}" "${long[@]}" ${real[*]}; do
	grep -rqE --include='*_test.go' "^func ${name}\(" test || { echo "hack/draw.sh: no test has the name ${name}" >&2; exit 1; }
done
skipped=("${long[@]}") drawn=()
draw() { # LIST NAMES...
	local names list="$1"
	shift
	drawn+=("${@:$(number "${list}") % $# + 1:1}")
	for names in "$@"; do
		# shellcheck disable=SC2206 # the tests of a part are words
		[[ "${names}" == "${drawn[-1]}" ]] || skipped+=(${names})
	done
}
draw slow "${slow[@]}"
draw real "${real[@]}"
{
	echo "One of ${#slow[@]} random searches and slow tests and one of ${#real[@]} parts on real nodes and of the pages run, drawn by the commit ${commit:0:8}:"
	echo "${drawn[*]}"
	echo "Left to make nightly: ${skipped[*]}"
} >&2
# \z in place of $, which make would expand.
(IFS='|'; echo "^(${skipped[*]})\\z")
