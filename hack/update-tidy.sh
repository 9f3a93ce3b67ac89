#!/usr/bin/env bash
# Runs `go mod tidy` in all modules.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
for module in "${MODULES[@]}"; do
	cd "${ROOT}/${module}"
	go mod tidy
done
