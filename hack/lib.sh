# Shared by the scripts of this folder; meant to be sourced.
set -o errexit -o nounset -o pipefail
shopt -s inherit_errexit # a failure within $(...) counts

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
MODULE="haulout.dev/haulout"
# The Go modules of this repository, as folders. Those in test/cluster/kube have no code: they name
# the older versions of Kubernetes.
MODULES=(. hack/chart hack/image scheduler test/cluster test/gitops test/monitoring test/realnodes)
# Otherwise each build in a checkout of another user would fail with an error about version control.
export GOFLAGS="${GOFLAGS:+${GOFLAGS} }-buildvcs=false"

# pinned NAME prints a version from the Makefile, which has all of them.
pinned() {
	local version
	version="$(sed -n "s/^$1 := //p" "${ROOT}/Makefile")"
	[[ -n "${version}" ]] || { echo "the Makefile has no $1" >&2; return 1; }
	echo "${version}"
}

# code_generator_version prints the version of the generators, which equals that of the Kubernetes
# libraries.
code_generator_version() {
	(cd "${ROOT}" && go list -m -f '{{.Version}}' k8s.io/apimachinery)
}

# codegen_hash prints a hash of the types, of the versions of the generators, and of all files
# that hack/update-codegen.sh generates.
codegen_hash() {
	cd "${ROOT}"
	{
		code_generator_version
		go list -m k8s.io/api k8s.io/kube-openapi
		pinned GOGO_PROTOBUF_VERSION
		pinned GOIMPORTS_VERSION
		# A tag in a folder without generated code.
		grep -rhE --include='*.go' '^[[:space:]]*// ?\+(k8s:|genclient|groupName)' pkg | LC_ALL=C sort
		{
			ls hack/lib.sh hack/update-codegen.sh hack/update-protobuf.sh hack/boilerplate.go.txt hack/openapi-violations.list
			find pkg/generated/openapi/cmd -type f
			grep -rl --include='*.go' '^// Code generated .* DO NOT EDIT\.$' pkg | xargs dirname | sort -u |
				xargs -I{} find {} -maxdepth 1 -type f ! -name '*_test.go'
		} | LC_ALL=C sort | xargs sha256sum
	} | sha256sum
}

# module_dir PATH VERSION prints the folder of a module in the module cache. It downloads the module
# if necessary.
module_dir() {
	go mod download -json "$1@$2" | sed -n 's/^[[:space:]]*"Dir": "\(.*\)",\{0,1\}$/\1/p'
}

# tool NAME PACKAGE VERSION prints the path of a program. It builds the program first unless
# bin/tools has that version, built by this Go.
tool() {
	local folder
	folder="${ROOT}/bin/tools/$1-$3-$(go env GOVERSION)"
	if [[ ! -x "${folder}/$1" ]]; then
		echo "Building $1 $3" >&2
		GOBIN="${folder}" go install -ldflags '-s -w' "$2@$3" >&2
	fi
	echo "${folder}/$1"
}

# golangci_lint prints the path of golangci-lint with kube-api-linter, which is a plugin of it. A
# program of its own for the plugin would compile golangci-lint once more, in another version.
golangci_lint() {
	local version plugin folder source
	version="$(pinned GOLANGCI_LINT_VERSION)"
	plugin="$(pinned KUBE_API_LINTER_VERSION)"
	folder="${ROOT}/bin/tools/golangci-lint-${version}-${plugin##*-}-$(go env GOVERSION)"
	if [[ ! -x "${folder}/golangci-lint" ]]; then
		echo "Building golangci-lint ${version} with kube-api-linter ${plugin}" >&2
		source="$(mktemp -d)"
		cat >"${source}/go.mod" <<-END
			module lint
			go 1.26.0
			require github.com/golangci/golangci-lint/v2 ${version}
			require sigs.k8s.io/kube-api-linter ${plugin}
		END
		cat >"${source}/main.go" <<-END
			package main

			import (
				"os"

				"github.com/golangci/golangci-lint/v2/pkg/commands"
				_ "sigs.k8s.io/kube-api-linter"
			)

			func main() {
				if commands.Execute(commands.BuildInfo{Version: "${version#v}"}) != nil {
					os.Exit(3)
				}
			}
		END
		(cd "${source}" && GOFLAGS="${GOFLAGS} -mod=mod" go build -ldflags '-s -w' -o "${folder}/golangci-lint" .) >&2
		rm -rf "${source}"
	fi
	echo "${folder}/golangci-lint"
}

kustomize() {
	tool kustomize sigs.k8s.io/kustomize/kustomize/v5 "$(pinned KUSTOMIZE_VERSION)"
}

cyclonedx_gomod() {
	tool cyclonedx-gomod github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod "$(pinned CYCLONEDX_GOMOD_VERSION)"
}

helm() {
	tool helm helm.sh/helm/v4/cmd/helm "$(pinned HELM_VERSION)"
}

helm3() {
	tool helm helm.sh/helm/v3/cmd/helm "$(pinned HELM_3_VERSION)"
}

# hand_written_go prints the hand-written Go files, each followed by a NUL. A file that is removed,
# but not yet in the index, is none; xargs then returns 123.
hand_written_go() {
	git -C "${ROOT}" ls-files -z --cached --others --exclude-standard '*.go' |
		(cd "${ROOT}" && xargs -0 grep -LZs '^// Code generated .* DO NOT EDIT\.$' || [[ $? == 123 ]])
}

# has_boilerplate FILE checks whether a Go file begins with the licence header. gofmt moves a build
# constraint before it. It starts no program, since each file needs it.
has_boilerplate() {
	local header lines
	mapfile header <"${ROOT}/hack/boilerplate.go.txt"
	mapfile -n $((${#header[@]} + 2)) lines <"$1"
	[[ "${lines[0]:-}" != '//go:build '* ]] || lines=("${lines[@]:2}")
	[[ "${lines[*]:0:${#header[@]}}" == "${header[*]}" ]]
}
