#!/usr/bin/env bash
# Generates generated.proto, generated.pb.go and related files of the versioned API types.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "${ROOT}"
CODE_GENERATOR_VERSION="$(code_generator_version)"
GOGO_PROTOBUF_VERSION="$(pinned GOGO_PROTOBUF_VERSION)"
GOIMPORTS_VERSION="$(pinned GOIMPORTS_VERSION)"

if ! command -v protoc >/dev/null; then
	echo "protoc is needed to generate the protobuf code: install Debian's package protobuf-compiler" >&2
	exit 1
fi

export GOBIN="${ROOT}/bin/codegen"
mkdir -p "${GOBIN}"
go install "k8s.io/code-generator/cmd/go-to-protobuf@${CODE_GENERATOR_VERSION}"
go install "k8s.io/code-generator/cmd/go-to-protobuf/protoc-gen-gogo@${CODE_GENERATOR_VERSION}"
go install "golang.org/x/tools/cmd/goimports@${GOIMPORTS_VERSION}"
export PATH="${GOBIN}:${PATH}"

# The generator finds packages and .proto files by import path below a single folder, so this script
# builds that folder from the module cache.
SCRATCH="$(mktemp -d)"
cleanup() {
	chmod -R u+w "${SCRATCH}"
	rm -rf "${SCRATCH}"
}
trap cleanup EXIT
lay_out() { # MODULE VERSION
	mkdir -p "${SCRATCH}/$(dirname "$1")"
	cp -r "$(module_dir "$1" "$2")" "${SCRATCH}/$1"
	chmod -R u+w "${SCRATCH}/$1"
}
lay_out k8s.io/api "${CODE_GENERATOR_VERSION}"
lay_out k8s.io/apimachinery "${CODE_GENERATOR_VERSION}"
lay_out github.com/gogo/protobuf "${GOGO_PROTOBUF_VERSION}"
# Only these .proto files are needed: the generator's own, and google/protobuf/descriptor.proto,
# which Debian's protobuf-compiler does not contain.
find "${SCRATCH}/github.com" -type f ! -name '*.proto' -delete
mkdir -p "${SCRATCH}/$(dirname "${MODULE}")"
ln -s "${ROOT}" "${SCRATCH}/${MODULE}"

cd "${SCRATCH}"
readonly_packages=(
	-k8s.io/apimachinery/pkg/util/intstr
	-k8s.io/apimachinery/pkg/api/resource
	-k8s.io/apimachinery/pkg/runtime/schema
	-k8s.io/apimachinery/pkg/runtime
	-k8s.io/apimachinery/pkg/apis/meta/v1
	-k8s.io/api/core/v1
	-k8s.io/api/authentication/v1
)
(
	IFS=,
	cd "${SCRATCH}/${MODULE}" # the packages are resolved by the module found here
	go-to-protobuf \
		--go-header-file "${ROOT}/hack/boilerplate.go.txt" \
		--output-dir "${SCRATCH}" \
		--proto-import "${SCRATCH}" \
		--proto-import "${SCRATCH}/github.com/gogo/protobuf/protobuf" \
		--apimachinery-packages "${readonly_packages[*]}" \
		--packages "${MODULE}/pkg/apis/maintenance/v1alpha1"
)
