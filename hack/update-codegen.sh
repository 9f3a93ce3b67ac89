#!/usr/bin/env bash
# Regenerates all code: protobuf, deepcopy, defaults, conversion, validation, OpenAPI, clientset,
# listers, informers and apply configurations; for the configuration file of the node agent,
# deepcopy and defaults. The generators come through Go modules; protoc is Debian's
# protobuf-compiler.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "${ROOT}"
CODE_GENERATOR_VERSION="$(code_generator_version)"

export GOBIN="${ROOT}/bin/codegen"
mkdir -p "${GOBIN}"
export PATH="${GOBIN}:${PATH}"

"${ROOT}/hack/update-protobuf.sh"

CODEGEN_DIR="$(module_dir k8s.io/code-generator "${CODE_GENERATOR_VERSION}")"
# shellcheck source=/dev/null
source "${CODEGEN_DIR}/kube_codegen.sh"
KUBE_CODEGEN_READONLY_PKGS+=(
	k8s.io/api/core/v1
	k8s.io/api/authentication/v1
)

# validation-gen v0.37 stumbles over meta/v1 when it is read-only (it looks for hand-written
# functions in the wrong package), so our types mark fields of its types as opaque and it is left
# out here; their values are checked by hand-written validation.
types_pkgs=("${KUBE_CODEGEN_READONLY_PKGS[@]}")
KUBE_CODEGEN_READONLY_PKGS=("${types_pkgs[@]/#k8s.io\/apimachinery\/pkg\/apis\/meta\/v1/time}")
kube::codegen::gen_helpers --boilerplate hack/boilerplate.go.txt pkg/apis

KUBE_CODEGEN_READONLY_PKGS=("${types_pkgs[@]}")
kube::codegen::gen_helpers --boilerplate hack/boilerplate.go.txt pkg/agent/config
kube::codegen::gen_openapi \
	--output-dir pkg/generated/openapi \
	--output-pkg "${MODULE}/pkg/generated/openapi" \
	--output-model-name-file zz_generated.model_name.go \
	--extra-pkgs k8s.io/api/core/v1 \
	--extra-pkgs k8s.io/apimachinery/pkg/util/intstr \
	--extra-pkgs k8s.io/api/authentication/v1 \
	--report-filename hack/openapi-violations.list \
	${UPDATE_API_VIOLATIONS:+--update-report} \
	--boilerplate hack/boilerplate.go.txt \
	pkg/apis

# Write to a file first: a failure in a process substitution would be ignored.
models="$(mktemp)"
trap 'rm -f "${models}"' EXIT
go run "${MODULE}/pkg/generated/openapi/cmd/models-schema" >"${models}"
kube::codegen::gen_client \
	--with-watch \
	--with-applyconfig \
	--applyconfig-openapi-schema "${models}" \
	--prefers-protobuf \
	--plural-exceptions "" \
	--output-dir pkg/generated \
	--output-pkg "${MODULE}/pkg/generated" \
	--boilerplate hack/boilerplate.go.txt \
	pkg/apis

# hack/verify-codegen.sh generates nothing while this is the hash of the tree.
codegen_hash >"${ROOT}/hack/codegen.stamp"
