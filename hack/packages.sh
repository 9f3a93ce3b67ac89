#!/usr/bin/env bash
# Installs the missing Debian packages that tests and checks need in addition to Go, git and make.
# With --list, it prints their names.
set -o errexit -o nounset -o pipefail

missing=()
# protoc generates the protobuf code that make verify compares; a C compiler links the race
# detector.
command -v protoc >/dev/null || missing+=(protobuf-compiler)
command -v gcc >/dev/null || missing+=(gcc libc6-dev)
# On the real nodes of the end-to-end tests, runc starts containers, and kube-proxy writes its rules
# with nft.
command -v runc >/dev/null || missing+=(runc)
command -v nft >/dev/null || missing+=(nftables)
# The tests of the node agent run a real logind and systemd, on a separate bus.
command -v dbus-daemon >/dev/null || missing+=(dbus)
[[ -x /lib/systemd/systemd-logind ]] || missing+=(systemd)
# The tests for Windows use wine.
[[ -x /usr/lib/wine/wine64 ]] || missing+=(wine64)

if [[ "${1:-}" == --list ]]; then
	echo "${missing[*]:-}"
elif [[ ${#missing[@]} != 0 ]]; then
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -q
	apt-get install -q -y --no-install-recommends "${missing[@]}"
fi
