#!/usr/bin/env bash
# Checks that the generated pages of docs/ are up to date, see hack/update-docs.sh, and that all
# pages follow the rules of test/docs.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "${ROOT}"
SCRATCH="$(mktemp -d)"
trap 'rm -rf "${SCRATCH}"' EXIT
go run ./hack/docs "${SCRATCH}"
failed=
for page in "${SCRATCH}"/*.md; do
	page="${page##*/}"
	diff -u "docs/${page}" "${SCRATCH}/${page}" || { echo "docs/${page} is not up to date: run hack/update-docs.sh (make update)" >&2; failed=1; }
done
go test -vet=off ./test/docs || failed=1
[[ -z "${failed}" ]]
