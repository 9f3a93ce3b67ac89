#!/usr/bin/env bash
# Adds the licence header of hack/boilerplate.go.txt to each hand-written Go file that lacks it.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "${ROOT}"
hand_written_go | while IFS= read -r -d '' file; do
	if ! has_boilerplate "${file}"; then
		{ cat hack/boilerplate.go.txt; echo; cat "${file}"; } >"${file}.new"
		mv "${file}.new" "${file}"
	fi
done
