# Shared by the scripts of this folder; meant to be sourced. Versions come from the Makefile's block through the environment, with the same
# defaults here so that a script also works on its own.
set -o errexit -o nounset -o pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"
CODE_GENERATOR_VERSION="$(cd "${ROOT}" && go list -m -f '{{.Version}}' k8s.io/apimachinery)"
GOGO_PROTOBUF_VERSION="${GOGO_PROTOBUF_VERSION:-v1.3.2}"
GOIMPORTS_VERSION="${GOIMPORTS_VERSION:-v0.38.0}"
MODULE="haulout.dev/haulout"

# module_dir PATH VERSION prints the folder of a module in the module cache, fetching it first if need be.
module_dir() {
	go mod download -json "$1@$2" | sed -n 's/^[[:space:]]*"Dir": "\(.*\)",\{0,1\}$/\1/p'
}
