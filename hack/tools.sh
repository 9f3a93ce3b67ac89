#!/usr/bin/env bash
# Downloads and builds the tools of the other scripts, which otherwise do this on demand, and prints
# their paths. Arguments are the names of single tools.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
if [[ $# == 0 ]]; then
	set -- golangci_lint kustomize
fi
for name in "$@"; do
	"${name}"
done
