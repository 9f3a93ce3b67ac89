#!/usr/bin/env bash
# Prints which hand-written Go files lack the licence header of hack/boilerplate.go.txt.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "${ROOT}"
lacking="$(hand_written_go | while IFS= read -r -d '' file; do has_boilerplate "${file}" || echo "${file}"; done)"
if [[ -n "${lacking}" ]]; then
	printf 'These lack the licence header; run hack/update-boilerplate.sh (make update):\n%s\n' "${lacking}" >&2
	exit 1
fi
