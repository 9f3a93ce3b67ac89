#!/usr/bin/env bash
# Downloads and builds the tools of the other scripts, which otherwise do this on demand.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
golangci_lint
kustomize
