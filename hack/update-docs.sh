#!/usr/bin/env bash
# Generates the pages of docs/ that come from the code: metrics, events and the API reference.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "${ROOT}"
go run ./hack/docs docs
