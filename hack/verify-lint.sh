#!/usr/bin/env bash
# Runs golangci-lint on all modules but test/gitops, including tests, kube-api-linter on the API
# types, go vet on the code that is only compiled for Windows, and a syntax check of the shell
# scripts. With arguments, it runs golangci-lint on these modules only.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
# The linters, and the compiler that builds them, spend less time on garbage, and take more memory.
export GOGC=200
lint="$(golangci_lint)"
failed=
lint_modules() {
	local module
	for module in "$@"; do
		cd "${ROOT}/${module}"
		"${lint}" run --config "${ROOT}/.golangci.yaml" ./... || failed=1
	done
	cd "${ROOT}"
}
if [[ $# != 0 ]]; then
	lint_modules "$@"
	[[ -z "${failed}" ]]
	exit
fi
cd "${ROOT}"
while IFS= read -r -d '' script; do
	bash -n "${script}" || failed=1
done < <(git ls-files -z --cached --others --exclude-standard '*.sh' .ci)
"${lint}" config verify || failed=1
for module in "${MODULES[@]}"; do
	# The linters compile and read the libraries of Flux, which takes minutes: make gitops does it.
	[[ "${module}" == test/gitops ]] || lint_modules "${module}"
done
"${lint}" run --config "${ROOT}/.golangci-api.yaml" ./pkg/apis/maintenance/v1alpha1/... || failed=1
GOOS=windows CGO_ENABLED=0 go vet ./cmd/node-agent ./pkg/agent/... ./pkg/cmd/nodeagent/... ./test/e2e/windowsagent/helper || failed=1
[[ -z "${failed}" ]]
