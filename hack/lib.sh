# Shared by the scripts of this folder; meant to be sourced.
set -o errexit -o nounset -o pipefail
shopt -s inherit_errexit # a failure within $(...) counts

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
MODULE="haulout.dev/haulout"
# The Go modules of this repository, as folders.
MODULES=(. hack/chart hack/image scheduler test/cluster test/monitoring test/realnodes)
# A checkout that belongs to another user would stop each build with an error about its version
# control.
export GOFLAGS="${GOFLAGS:+${GOFLAGS} }-buildvcs=false"

# pinned NAME prints a version from the Makefile, where all of them stand.
pinned() {
	local version
	version="$(sed -n "s/^$1 := //p" "${ROOT}/Makefile")"
	[[ -n "${version}" ]] || { echo "the Makefile has no $1" >&2; return 1; }
	echo "${version}"
}

# code_generator_version prints the version of the generators, which is that of the Kubernetes
# libraries.
code_generator_version() {
	(cd "${ROOT}" && go list -m -f '{{.Version}}' k8s.io/apimachinery)
}

# module_dir PATH VERSION prints the folder of a module in the module cache, fetching it first if
# need be.
module_dir() {
	go mod download -json "$1@$2" | sed -n 's/^[[:space:]]*"Dir": "\(.*\)",\{0,1\}$/\1/p'
}

# tool NAME PACKAGE VERSION prints the path of a program. It is built first if bin/tools doesn't
# have that version, built by this Go.
tool() {
	local folder
	folder="${ROOT}/bin/tools/$1-$3-$(go env GOVERSION)"
	if [[ ! -x "${folder}/$1" ]]; then
		echo "Building $1 $3" >&2
		GOBIN="${folder}" go install -ldflags '-s -w' "$2@$3" >&2
	fi
	echo "${folder}/$1"
}

golangci_lint() {
	tool golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint "$(pinned GOLANGCI_LINT_VERSION)"
}

kube_api_linter() {
	tool golangci-lint-kube-api-linter sigs.k8s.io/kube-api-linter/cmd/golangci-lint-kube-api-linter "$(pinned KUBE_API_LINTER_VERSION)"
}

kustomize() {
	tool kustomize sigs.k8s.io/kustomize/kustomize/v5 "$(pinned KUSTOMIZE_VERSION)"
}

cyclonedx_gomod() {
	tool cyclonedx-gomod github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod "$(pinned CYCLONEDX_GOMOD_VERSION)"
}

# hand_written_go prints the Go files that no program has written, each followed by a NUL.
hand_written_go() {
	local file
	while IFS= read -r -d '' file; do
		[[ -f "${file}" ]] || continue # removed, but not yet in the index
		grep -q -m1 '^// Code generated .* DO NOT EDIT\.$' "${file}" || printf '%s\0' "${file}"
	done < <(git -C "${ROOT}" ls-files -z --cached --others --exclude-standard '*.go')
}

# has_boilerplate FILE checks whether a Go file begins with the licence header. gofmt moves a build
# constraint before it.
has_boilerplate() {
	local header="${ROOT}/hack/boilerplate.go.txt"
	cmp --silent --bytes="$(stat --format=%s "${header}")" "${header}" <(sed '1{/^\/\/go:build /{N;d}}' "$1")
}
