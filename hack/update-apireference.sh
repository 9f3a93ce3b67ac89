#!/usr/bin/env bash
# Writes docs/api-reference.md from the OpenAPI of the API types.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "${ROOT}"
go run ./hack/apireference >docs/api-reference.md.new
mv docs/api-reference.md.new docs/api-reference.md
