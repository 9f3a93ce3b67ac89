#!/usr/bin/env bash
# Prints which tests a run of .ci/run leaves to `make nightly`, as a pattern for `go test -skip`:
# some that take long, and all random searches but one, which is drawn by the commit. It says which
# one and why on the other stream.
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
# Each has a cluster of its own, with a cluster of etcd beside it.
long=(TestMoveToAnEtcdCluster TestSideBySide)

for name in "${searches[@]}" "${long[@]}"; do
	grep -rqE --include='*_test.go' "^func ${name}\(" test || { echo "hack/draw.sh: no test has the name ${name}" >&2; exit 1; }
done
commit="$(git rev-parse HEAD)"
number="$((16#${commit:0:8} % ${#searches[@]}))"
drawn="${searches[number]}"
skipped=("${long[@]}")
for name in "${searches[@]}"; do
	[[ "${name}" == "${drawn}" ]] || skipped+=("${name}")
done
{
	echo "One of ${#searches[@]} random searches runs, ${drawn}: commit ${commit:0:8} modulo ${#searches[@]} is ${number}"
	echo "Left to make nightly: ${skipped[*]}"
} >&2
# \z in place of $, which make would expand.
(IFS='|'; echo "^(${skipped[*]})\\z")
