#!/usr/bin/env bash
# Runs golangci-lint over all modules, tests included, and has bash read the shell scripts.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
lint="$(golangci_lint)"
failed=
cd "${ROOT}"
while IFS= read -r -d '' script; do
	bash -n "${script}" || failed=1
done < <(git ls-files -z --cached --others --exclude-standard '*.sh' .ci)
"${lint}" config verify || failed=1
for module in "${MODULES[@]}"; do
	cd "${ROOT}/${module}"
	"${lint}" run --config "${ROOT}/.golangci.yaml" ./... || failed=1
done
[[ -z "${failed}" ]]
