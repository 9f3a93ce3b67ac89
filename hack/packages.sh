#!/usr/bin/env bash
# Installs the packages of Debian that tests and checks need beside Go, git and make, and that this
# machine lacks. With --list, it prints their names.
set -o errexit -o nounset -o pipefail

missing=()
# protoc generates the protobuf code that make verify compares; the race detector is linked by a C
# compiler.
command -v protoc >/dev/null || missing+=(protobuf-compiler)
command -v gcc >/dev/null || missing+=(gcc libc6-dev)
# The real nodes of the end-to-end tests start containers with runc, and kube-proxy writes its rules
# with nft.
command -v runc >/dev/null || missing+=(runc)
command -v nft >/dev/null || missing+=(nftables)
# The node agent is tested with the real logind and systemd, on a bus of their own.
command -v dbus-daemon >/dev/null || missing+=(dbus)
[[ -x /lib/systemd/systemd-logind ]] || missing+=(systemd)
# It is tested on Windows with wine.
[[ -x /usr/lib/wine/wine64 ]] || missing+=(wine64)

if [[ "${1:-}" == --list ]]; then
	echo "${missing[*]:-}"
elif [[ ${#missing[@]} != 0 ]]; then
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -q
	apt-get install -q -y --no-install-recommends "${missing[@]}"
fi
