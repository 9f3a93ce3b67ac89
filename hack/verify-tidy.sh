#!/usr/bin/env bash
# Checks whether `go mod tidy` would change a go.mod or go.sum, and whether the root module and
# test/cluster use the same versions of what both build. test/monitoring builds hardly anything of
# it.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
failed=
for module in "${MODULES[@]}"; do
	cd "${ROOT}/${module}"
	go mod tidy -diff || { echo "${module}/go.mod is not tidy: run hack/update-tidy.sh (make update)" >&2; failed=1; }
done

# versions prints the modules that the packages below the working directory are built from.
versions() {
	go list -deps -f '{{with .Module}}{{.Path}} {{with .Replace}}{{.Version}}{{else}}{{.Version}}{{end}}{{end}}' ./... | sort -u
}
differing="$(join <(cd "${ROOT}" && versions) <(cd "${ROOT}/test/cluster" && versions) | awk 'NF == 3 && $2 != $3')"
if [[ -n "${differing}" ]]; then
	printf 'Each of these, and all that imports it, is compiled once for the root module and once for test/cluster; give both one version:\n%s\n' "${differing}" >&2
	failed=1
fi
[[ -z "${failed}" ]]
