#!/usr/bin/env bash
# Builds the kubectl plugin for each of PLATFORMS into archives in bin/krew, and a manifest with
# their checksums for krew, the package manager of kubectl plugins. KREW_URI is the URL of the
# folder in which users find the archives. Without it the manifest only works with an archive that
# is on the same machine: krew requires a URL, but no release is published.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
: "${VERSION:?the version of the plugin}" "${PLATFORMS:=linux/amd64 linux/arm64 darwin/amd64 darwin/arm64 windows/amd64}" "${KREW_URI:=https://not-published.invalid}"
cd "${ROOT}"
out=bin/krew
rm -rf "${out}"
mkdir -p "${out}"
# krew takes semantic versions only.
version="${VERSION}"
[[ "${version}" =~ ^v[0-9]+\.[0-9]+\.[0-9]+ ]] || version="v0.0.0-${VERSION}"

platforms=
for platform in ${PLATFORMS}; do
	os="${platform%/*}" arch="${platform#*/}" program=kubectl-maintenance
	[[ "${os}" != windows ]] || program+=.exe
	folder="${out}/${os}_${arch}"
	mkdir "${folder}"
	CGO_ENABLED=0 GOOS="${os}" GOARCH="${arch}" go build -buildvcs=false -trimpath \
		-ldflags "-s -w -X haulout.dev/haulout/pkg/version.gitVersion=${VERSION}" -o "${folder}/${program}" ./cmd/kubectl-maintenance
	cp LICENSE artifacts/krew/kubectl_complete-maintenance "${folder}/"
	archive="kubectl-maintenance_${os}_${arch}.tar.gz"
	tar -C "${folder}" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -czf "${out}/${archive}" .
	rm -rf "${folder}"
	sum="$(sha256sum "${out}/${archive}")"
	platforms+="  - selector: {matchLabels: {os: ${os}, arch: ${arch}}}
    uri: ${KREW_URI}/${archive}
    sha256: ${sum%% *}
    bin: ${program}
"
done
{
	sed -e "s/@VERSION@/${version}/" artifacts/krew/maintenance.yaml.in
	printf '%s' "${platforms}"
} >"${out}/maintenance.yaml"
echo "Wrote ${out}/maintenance.yaml and its archives; try one: kubectl krew install --manifest=${out}/maintenance.yaml --archive=${out}/kubectl-maintenance_$(go env GOOS)_$(go env GOARCH).tar.gz"
