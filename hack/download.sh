#!/usr/bin/env bash
# Downloads the Go modules of all programs and tests, 16 at the same time. By default, Go downloads
# one for each processor, and compiles nothing until it has all.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
for module in "${MODULES[@]}"; do
	GOMAXPROCS=16 go -C "${ROOT}/${module}" list -deps -test ./... tool >/dev/null
done
