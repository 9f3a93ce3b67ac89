#!/usr/bin/env bash
# Checks whether `go mod tidy` would change a go.mod or go.sum, whether the modules below that
# import Kubernetes use the same versions of what they have in common with the root module, and
# whether scheduler uses the same Kubernetes.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
failed=
for module in "${MODULES[@]}"; do
	cd "${ROOT}/${module}"
	go mod tidy -diff || { echo "${module}/go.mod is not tidy: run hack/update-tidy.sh (make update)" >&2; failed=1; }
done

# versions prints the modules of the packages and tests below the working directory.
versions() {
	go list -deps -test -f '{{with .Module}}{{.Path}} {{with .Replace}}{{.Version}}{{else}}{{.Version}}{{end}}{{end}}' ./... | sort -u
}
for module in hack/chart test/cluster test/monitoring; do
	differing="$(join <(cd "${ROOT}" && versions) <(cd "${ROOT}/${module}" && versions) | awk 'NF == 3 && $2 != $3')"
	if [[ -n "${differing}" ]]; then
		printf 'Each of these, and all that imports it, is compiled once for the root module and once for %s; give both one version:\n%s\n' "${module}" "${differing}" >&2
		failed=1
	fi
done

# haulout-scheduler wraps kube-scheduler's own code, and the tests run it on the control plane of
# test/cluster, so all of them use one version of Kubernetes. k8s.io/api v0.37.1 belongs to
# Kubernetes v1.37.1.
kubernetes="$(for module in . test/cluster scheduler; do
	sed -nE 's#^\t(k8s\.io/(kubernetes|api|apimachinery|client-go)) v[01]\.([^ ]+).*#\3#p' "${ROOT}/${module}/go.mod" | sed "s#^#${module} #"
done | sort -u)"
if [[ "$(awk '{ print $2 }' <<<"${kubernetes}" | sort -u | wc -l)" != 1 || "$(wc -l <<<"${kubernetes}")" != 3 ]]; then
	printf 'These go.mod files must have one version of Kubernetes:\n%s\n' "${kubernetes}" >&2
	failed=1
fi
[[ -z "${failed}" ]]
