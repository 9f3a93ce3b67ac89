#!/usr/bin/env bash
# Says whether docs/api-reference.md is what hack/update-apireference.sh would write.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "${ROOT}"
if ! diff -u docs/api-reference.md <(go run ./hack/apireference); then
	echo 'The API reference is out of date: run hack/update-apireference.sh' >&2
	exit 1
fi
