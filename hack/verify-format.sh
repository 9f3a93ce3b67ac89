#!/usr/bin/env bash
# Prints which Go files hack/update-format.sh would change, and which comments (including those of
# scripts and manifests) are wider than 100 columns, where a tab counts as four.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
lint="$(golangci_lint)"
cd "${ROOT}"
if ! "${lint}" fmt --diff; then
	echo 'Not formatted: run hack/update-format.sh (make fmt)' >&2
	exit 1
fi

# wide prints the comments of the named files that are wider than 100 columns.
wide() { # MARK FILE...
	awk -v mark="$1" '
		$0 ~ "^[ \t]*" mark " " && !/^[ \t]*(\/\/|#) *https?:/ {
			spaces = $0
			gsub(/[^\t]/, "", spaces)
			if (length($0) + 3 * length(spaces) > 100) print FILENAME ":" FNR
		}' "${@:2}"
}
mapfile -d '' -t go_files < <(hand_written_go)
mapfile -d '' -t other_files < <(git ls-files -z --cached --others --exclude-standard \
	Makefile .ci/run '*.sh' '*.yaml' ':!charts/haulout/files')
if found="$(wide // "${go_files[@]}"; wide '#' "${other_files[@]}")" && [[ -n "${found}" ]]; then
	printf '%s\n' "${found}" >&2
	echo 'These comments are wider than 100 columns' >&2
	exit 1
fi
