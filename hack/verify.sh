#!/usr/bin/env bash
# Runs each hack/verify-*.sh, or only the named ones (`hack/verify.sh format tidy`), and finally
# prints the time of each.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
checks=("$@")
if [[ $# == 0 ]]; then
	for script in "${ROOT}"/hack/verify-*.sh; do
		script="${script##*/verify-}"
		checks+=("${script%.sh}")
	done
fi
summary=()
failed=
for check in "${checks[@]}"; do
	echo "--- verify ${check}"
	started="${SECONDS}"
	result=ok
	"${ROOT}/hack/verify-${check}.sh" || result=FAILED failed=1
	summary+=("$(printf '%-6s  %-12s  %ds' "${result}" "${check}" "$((SECONDS - started))")")
done
echo '---'
printf '%s\n' "${summary[@]}"
[[ -z "${failed}" ]]
