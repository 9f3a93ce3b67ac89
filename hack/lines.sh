#!/usr/bin/env bash
# Prints the number of hand-written lines of Go in this repository: production code, and tests
# including everything below a test/.
set -o errexit -o nounset -o pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

production=() tests=()
while IFS= read -r file; do
	[[ -e "${file}" ]] || continue
	if grep -q '^// Code generated .* DO NOT EDIT\.$' "${file}"; then
		continue
	elif [[ "${file}" == *_test.go || "/${file}" == */test/* ]]; then
		tests+=("${file}")
	else
		production+=("${file}")
	fi
done < <(git ls-files '*.go')
echo "production: $(cat "${production[@]}" | wc -l) lines in ${#production[@]} files"
echo "tests:      $(cat "${tests[@]}" | wc -l) lines in ${#tests[@]} files"
