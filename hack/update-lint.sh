#!/usr/bin/env bash
# Applies the automatic fixes of the linters.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
lint="$(golangci_lint)"
for module in "${MODULES[@]}"; do
	cd "${ROOT}/${module}"
	"${lint}" run --config "${ROOT}/.golangci.yaml" --fix ./...
done
