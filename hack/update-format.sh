#!/usr/bin/env bash
# Formats the Go files according to .golangci.yaml: gofmt, and imports in three groups (standard
# library, others, ours).
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
lint="$(golangci_lint)"
cd "${ROOT}"
"${lint}" fmt
