#!/usr/bin/env bash
# Writes the pages of docs/ that come from the code: metrics.md and events.md.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "${ROOT}"
SCRATCH="$(mktemp -d)"
trap 'rm -rf "${SCRATCH}"' EXIT
go build -o "${SCRATCH}/docs" ./hack/docs
for page in metrics events; do
	"${SCRATCH}/docs" "${page}" >"${SCRATCH}/${page}.md"
	mv "${SCRATCH}/${page}.md" "docs/${page}.md"
done
