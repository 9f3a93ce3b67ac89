#!/usr/bin/env bash
# Fetches and builds the tools of the other scripts, which otherwise each does by itself.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
golangci_lint
kustomize
