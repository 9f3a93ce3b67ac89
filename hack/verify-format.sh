#!/usr/bin/env bash
# Says which Go files hack/update-format.sh would change, and which of their comments are wider than
# 100 columns, where a tab counts as four.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
lint="$(golangci_lint)"
cd "${ROOT}"
if ! "${lint}" fmt --diff; then
	echo 'Not formatted: run hack/update-format.sh (make fmt)' >&2
	exit 1
fi

if wide="$(hand_written_go | (cd "${ROOT}" && xargs -0 awk '
	/^\t*\/\/ / && !/^\t*\/\/ *https?:/ {
		tabs = match($0, /[^\t]/) - 1
		if (length($0) + 3 * tabs > 100) print FILENAME ":" FNR
	}'))" && [[ -n "${wide}" ]]; then
	printf '%s\n' "${wide}" >&2
	echo 'These comments are wider than 100 columns' >&2
	exit 1
fi
