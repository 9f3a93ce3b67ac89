#!/usr/bin/env bash
# Says which Go files hack/update-format.sh would change.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
lint="$(golangci_lint)"
cd "${ROOT}"
if ! "${lint}" fmt --diff; then
	echo 'Not formatted: run hack/update-format.sh (make fmt)' >&2
	exit 1
fi
