#!/usr/bin/env bash
# Runs make with the given arguments, downloads the modules that it needs at the same time, and
# prints how many minutes are left to build. `make demo` calls it.
#
#   hack/demo-build.sh MAKE ARGUMENT...
#
# One of the arguments has to give go build the flag -v, which prints each package that is compiled.
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"
cd "${ROOT}"

work="$(mktemp -d)"
weigher=""
finish() {
	[[ -z "${weigher}" ]] || kill -- "-${weigher}" 2>/dev/null || true
	rm -rf "${work}"
}
trap finish EXIT

# stale MODULE PACKAGE... prints the packages that Go has not compiled yet, each with one of its
# files. It downloads their modules, 16 at a time. By default that is one for each processor.
stale() {
	GOMAXPROCS=16 go -C "$1" list -deps \
		-f '{{if .Stale}}{{$p := .}}{{range .GoFiles}}{{$p.ImportPath}}{{"\t"}}{{$p.Dir}}/{{.}}{{"\n"}}{{end}}{{end}}' "${@:2}" | sed '/^$/d'
}

# weigh writes the packages to compile to a file, each with the bytes of its files: the time to
# compile a package is about in proportion to them. The packages are those of `make demo`.
weigh() {
	{
		stale test/cluster ./kube ./cmd/... sigs.k8s.io/kwok/cmd/kwok
		stale . ./cmd/{apiserver,kubectl-maintenance,worker}
	} | sort -u >"${work}/files"
	cut -f2 "${work}/files" | xargs -rd '\n' stat --format=%s | paste "${work}/files" - |
		awk -F '\t' '{ bytes[$1] += $3 } END { for (name in bytes) print name, bytes[name] }' >"${work}/listed"
	mv "${work}/listed" "${work}/weights"
}

# progress prints its input without the names of packages, and a line when the number of minutes
# changes. It prints none before the packages are known and a tenth of them is compiled.
progress() {
	local line name bytes minutes last="" since=0 total=0 built=0
	local -A left=() early=()
	while IFS= read -r line; do
		if [[ ! "${line}" =~ ^[[:alnum:]./_~-]+$ ]]; then
			printf '%s\n' "${line}"
			continue
		fi
		if ((total == 0)); then
			early["${line}"]=1
			[[ -e "${work}/weights" ]] || continue
			while read -r name bytes; do
				[[ -n "${early[${name}]:-}" ]] || left["${name}"]="${bytes}" total=$((total + bytes))
			done <"${work}/weights"
			since="${SECONDS}"
			continue
		fi
		built=$((built + ${left["${line}"]:-0}))
		left["${line}"]=0
		((built * 10 > total && SECONDS - since >= 20)) || continue
		minutes=$(((SECONDS - since) * (total - built) / built / 60 + 1))
		[[ "${minutes}" == "${last}" ]] || echo "${minutes} min left to build"
		last="${minutes}"
	done
}

# A module that cannot be downloaded is reported by the build. The job has a process group, so that
# all of it ends with this script.
set -o monitor
weigh >/dev/null 2>&1 &
weigher=$!
set +o monitor
"$@" 2>&1 | progress
