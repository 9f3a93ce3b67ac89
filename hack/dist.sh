#!/usr/bin/env bash
# Collects the files of a release in bin/dist: archives of the server, the node agent, the worker,
# the scheduler and the kubectl plugin, images, the chart, manifests, a list of the modules in each
# program (CycloneDX), and checksums. `make dist` has built all of them except the archives.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
: "${VERSION:?the version of the release}" "${PLATFORMS:?the platforms of the server}"
cyclonedx="$(cyclonedx_gomod)"
cd "${ROOT}"
out=bin/dist
rm -rf "${out}"
mkdir -p "${out}"

# The same files always give the same archive.
pack() { # ARCHIVE FOLDER NAME...
	local archive="$1" folder="$2"
	shift 2
	tar -C "${folder}" --sort=name --owner=0 --group=0 --numeric-owner --mtime=@0 -cf - "$@" | gzip -n >"${out}/${archive}"
}

# bill PROGRAM NAME writes the list of the modules in a program, as the Go linker recorded them.
bill() {
	"${cyclonedx}" bin -json -noserial -notimestamp -std -version "${VERSION}" -output "${out}/$2.cdx.json" "$1"
}

for program in haulout-apiserver haulout-node-agent haulout-worker haulout-scheduler; do
	for platform in ${PLATFORMS}; do
		name="${program}_${platform/\//_}"
		folder="$(mktemp -d)"
		cp LICENSE "bin/image/${platform}/${program}" "${folder}/"
		pack "${name}.tar.gz" "${folder}" .
		rm -rf "${folder}"
		bill "bin/image/${platform}/${program}" "${name}"
		gzip -n <"bin/image/${program}-${platform#*/}.tar" >"${out}/${name/"${program}"/"${program}-image"}.tar.gz"
	done
	pack "${program}-image.oci.tar.gz" "bin/image/${program}" .
done
# The node agent for Windows. Users build its image from a base image that only they may choose.
for arch in amd64 arm64; do
	name="haulout-node-agent_windows_${arch}"
	folder="$(mktemp -d)"
	GOOS=windows GOARCH="${arch}" CGO_ENABLED=0 go build -buildvcs=false -trimpath -ldflags "-s -w -X ${MODULE}/pkg/version.gitVersion=${VERSION}" \
		-o "${folder}/haulout-node-agent.exe" ./cmd/node-agent
	bill "${folder}/haulout-node-agent.exe" "${name}"
	cp LICENSE artifacts/node-agent/windows/{try.ps1,Dockerfile} "${folder}/"
	pack "${name}.tar.gz" "${folder}" .
	rm -rf "${folder}"
done
for archive in bin/krew/kubectl-maintenance_*.tar.gz; do
	cp "${archive}" "${out}/"
	name="$(basename "${archive}" .tar.gz)"
	folder="$(mktemp -d)"
	tar -C "${folder}" -xzf "${archive}"
	bill "$(echo "${folder}"/kubectl-maintenance*)" "${name}"
	rm -rf "${folder}"
done
# Without a URL of the archives, users cannot install the plugin with this manifest.
if [[ -n "${KREW_URI:-}" ]]; then
	cp bin/krew/maintenance.yaml "${out}/kubectl-maintenance.krew.yaml"
else
	echo "hack/dist.sh: KREW_URI is not set, so the release has no manifest for krew" >&2
fi
cp bin/chart/*.tgz "${out}/"
examples=(artifacts/examples/*.yaml)
pack haulout-manifests.tar.gz artifacts "${examples[@]#artifacts/}" base eviction-interception monitoring node-agent overlays scheduler second-scheduler worker-job worker-reboot worker-reboot-required
(cd "${out}" && sha256sum -- * >SHA256SUMS)
echo "Wrote ${out}:"
ls -l "${out}" | awk 'NR > 1 { printf "%12d %s\n", $5, $9 }'
