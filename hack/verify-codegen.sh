#!/usr/bin/env bash
# Generates all code in a copy of the tree and prints the differences from this tree, which it does
# not change. Without --full, it does so only if the types, the generators or the generated code
# differ from hack/codegen.stamp, which hack/update-codegen.sh writes.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "${ROOT}"

hash="$(codegen_hash)"
if [[ "${1:-}" != --full && "${hash}" == "$(cat hack/codegen.stamp 2>/dev/null)" ]]; then
	echo 'Nothing has changed since the code was generated (hack/codegen.stamp)'
	exit 0
fi

SCRATCH="$(mktemp -d)"
trap 'rm -rf "${SCRATCH}"' EXIT
mkdir -p "${SCRATCH}/committed" "${SCRATCH}/generated/bin"
git ls-files -z --cached --others --exclude-standard |
	while IFS= read -r -d '' file; do [[ ! -f "${file}" ]] || printf '%s\0' "${file}"; done |
	tar --create --null --files-from - | tar --extract --directory "${SCRATCH}/committed"
cp -r "${SCRATCH}/committed/." "${SCRATCH}/generated/"
# Avoid linking the generators twice.
mkdir -p bin/codegen
ln -s "${ROOT}/bin/codegen" "${SCRATCH}/generated/bin/codegen"

if ! "${SCRATCH}/generated/hack/update-codegen.sh" >"${SCRATCH}/log" 2>&1; then
	cat "${SCRATCH}/log" >&2
	exit 1
fi
rm -rf "${SCRATCH}/generated/bin"
cd "${SCRATCH}"
if ! diff -Naur --exclude=codegen.stamp committed generated; then
	echo 'The generated code is not what its sources say: run hack/update-codegen.sh (make update)' >&2
	exit 1
fi
if [[ "${hash}" != "$(cat committed/hack/codegen.stamp 2>/dev/null)" ]]; then
	echo 'The code is as generated, and hack/codegen.stamp is old: hack/update-codegen.sh (make update) writes it, which saves the next check a minute'
fi
