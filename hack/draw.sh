#!/usr/bin/env bash
# Prints which tests a run of .ci/run leaves to `make nightly`, as a pattern for `go test -skip`:
# some that take long, all random searches but one, and all slow tests but one. These two are drawn
# by the commit. It says which ones and why on the other stream.
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
# Each has a cluster of its own, with a cluster of etcd beside it.
long=(TestMoveToAnEtcdCluster TestSideBySide)

for name in "${searches[@]}" "${slow[@]}" "${long[@]}"; do
	grep -rqE --include='*_test.go' "^func ${name}\(" test || { echo "hack/draw.sh: no test has the name ${name}" >&2; exit 1; }
done
commit="$(git rev-parse HEAD)"
number="$((16#${commit:0:8}))"
skipped=("${long[@]}") drawn=()
draw() { # NAME...
	local name
	drawn+=("${@:number % $# + 1:1}")
	for name in "$@"; do
		[[ "${name}" == "${drawn[-1]}" ]] || skipped+=("${name}")
	done
}
draw "${searches[@]}"
draw "${slow[@]}"
{
	echo "One of ${#searches[@]} random searches and one of ${#slow[@]} slow tests run, ${drawn[0]} and ${drawn[1]}, by the commit ${commit:0:8}"
	echo "Left to make nightly: ${skipped[*]}"
} >&2
# \z in place of $, which make would expand.
(IFS='|'; echo "^(${skipped[*]})\\z")
