# Everything here works on a machine that has Go, git and make. `make` alone lists the targets.

# --- Versions of everything that is built or installed from elsewhere -----------------------------

# The development cluster. k8s.io/*, etcd and kwok are pinned in test/cluster/go.mod; this is what
# the binaries of Kubernetes call themselves. test/cluster/kube has a go.mod for each older version
# of Kubernetes.
KUBE_VERSION := v1.37.1

# The tools of verify and update, which hack/lib.sh fetches through Go modules into bin/tools. None
# of them is in go.mod, where it would decide on the versions of our own libraries. The code
# generators have the version of k8s.io/apimachinery.
GOLANGCI_LINT_VERSION := v2.15.0
KUBE_API_LINTER_VERSION := v0.0.0-20260716143926-092fe0c72997
KUSTOMIZE_VERSION := v5.8.1
CYCLONEDX_GOMOD_VERSION := v1.10.0
# The program helm, which a test runs on real nodes.
HELM_VERSION := v4.3.1
HELM_3_VERSION := v3.22.0
GOIMPORTS_VERSION := v0.38.0
GOGO_PROTOBUF_VERSION := v1.3.2

# --- What a user may set, on the command line or in the environment -------------------------------

# The minor version of Kubernetes that the development cluster runs.
KUBE_VERSIONS := 1.34 1.35 1.36 1.37
KUBE ?= 1.37

# The variables of the development cluster (NODES, CLUSTER_DIR, HAULOUT, FEATURE_GATES, ...) are
# read from the environment by bin/cluster; make passes on those of its command line. `bin/cluster
# up --help` explains each.

# Without -trimpath, which a release adds: it would keep the compiled packages of our programs, of
# the control plane and of the tests apart in Go's cache, and building the same libraries twice
# costs minutes.
GO_BUILD_FLAGS ?= -buildvcs=false

# The compiler collects garbage less often, which saves up to a quarter of its processor time and
# takes half as much memory again. GOGC in the environment is meant for haulout-apiserver.
GO := GOGC=400 go

# Without C the programs are static, so that they run in an image without a file system.
# hack/test.sh turns C on for the race detector.
export CGO_ENABLED ?= 0

# Without debug information (DWARF) the compiler takes an eighth less time. `go test` by hand
# compiles everything once more, unless GOFLAGS is the same there.
ifeq ($(findstring -gcflags,$(shell go env GOFLAGS)),)
export GOFLAGS := $(strip $(shell go env GOFLAGS) -gcflags=all=-dwarf=false)
endif

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)

# --------------------------------------------------------------------------------------------------

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
# Two calls of `go build` at the same time would compile twice what they share.
.NOTPARALLEL:

BIN := bin
STAMPS := $(BIN)/.stamps
# What a compiler of another version has built is built again.
GO_VERSION := $(shell go env GOVERSION)

.PHONY: help
help: ## List the targets
	@echo 'Usage: make <target> [VARIABLE=value ...]'
	@awk 'BEGIN { FS = ":.*## " } /^##@ / { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z][a-z0-9-]*:.*## / { printf "  %-18s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

##@ Build

# No program has symbols or DWARF, which take time to link: profiles and stack traces do not need
# them, and a debugger builds its own program.
LDFLAGS := -s -w -X haulout.dev/haulout/pkg/version.gitVersion=$(VERSION)

.PHONY: build
build: server plugin node-agent worker ## Build bin/haulout-apiserver, bin/haulout-node-agent, bin/haulout-worker and bin/kubectl-maintenance

.PHONY: server
server: ## Build bin/haulout-apiserver
	$(GO) build $(GO_BUILD_FLAGS) -ldflags '$(LDFLAGS)' -o $(BIN)/haulout-apiserver ./cmd/apiserver

.PHONY: node-agent
node-agent: ## Build bin/haulout-node-agent, which runs on the nodes
	$(GO) build $(GO_BUILD_FLAGS) -ldflags '$(LDFLAGS)' -o $(BIN)/haulout-node-agent ./cmd/node-agent

.PHONY: worker
worker: ## Build bin/haulout-worker, which reboots nodes or runs Jobs on them
	$(GO) build $(GO_BUILD_FLAGS) -ldflags '$(LDFLAGS)' -o $(BIN)/haulout-worker ./cmd/worker

# The tests of the node agent on Windows run under wine.
.PHONY: windows-agent
windows-agent: ## Build the node agent for Windows, and what its tests need, in bin/windows
	GOOS=windows GOARCH=amd64 $(GO) build $(GO_BUILD_FLAGS) -ldflags '$(LDFLAGS)' -o $(BIN)/windows/haulout-node-agent.exe ./cmd/node-agent
	GOOS=windows GOARCH=amd64 $(GO) build $(GO_BUILD_FLAGS) -o $(BIN)/windows/helper.exe ./test/e2e/windowsagent/helper
	GOOS=windows GOARCH=amd64 $(GO) test -c $(GO_BUILD_FLAGS) -o $(BIN)/windows/windows.test.exe ./pkg/agent/windows

.PHONY: plugin
plugin: ## Build the kubectl plugin, bin/kubectl-maintenance, with its shell completion
	$(GO) build $(GO_BUILD_FLAGS) -ldflags '$(LDFLAGS)' -o $(BIN)/kubectl-maintenance ./cmd/kubectl-maintenance
	install -m 755 artifacts/krew/kubectl_complete-maintenance $(BIN)/kubectl_complete-maintenance

.PHONY: krew
krew: ## Build archives of the plugin and a manifest for krew in bin/krew (PLATFORMS='linux/amd64', KREW_URI=https://...)
	VERSION='$(VERSION)' hack/krew.sh

# `make image` makes the image of a release; the development cluster needs that of this machine
# only.
PLATFORMS ?= linux/amd64 linux/arm64
IMAGE ?= localhost/haulout-apiserver:$(subst +,-,$(VERSION))
AGENT_IMAGE ?= localhost/haulout-node-agent:$(subst +,-,$(VERSION))
WORKER_IMAGE ?= localhost/haulout-worker:$(subst +,-,$(VERSION))
SCHEDULER_IMAGE ?= localhost/haulout-scheduler:$(subst +,-,$(VERSION))
IMAGE_TOOL := $(BIN)/image-tool
IMAGE_LABELS = --label=org.opencontainers.image.title=$(1) --label=org.opencontainers.image.version=$(VERSION) \
	--label=org.opencontainers.image.licenses=Apache-2.0 --label=org.opencontainers.image.revision=$(shell git rev-parse HEAD 2>/dev/null)

$(IMAGE_TOOL): $(wildcard hack/image/*.go) hack/image/go.mod hack/image/go.sum
	cd hack/image && $(GO) build $(GO_BUILD_FLAGS) -o ../../$@ .

# make_image PROGRAM, MODULE (a folder), FOLDER in its cmd, TAG, LINKER FLAGS
define make_image
	@for platform in $(PLATFORMS); do \
		echo "Building $(1) for $$platform"; \
		GOOS=$${platform%/*} GOARCH=$${platform#*/} CGO_ENABLED=0 $(GO) -C $(2) build $(GO_BUILD_FLAGS) -trimpath -ldflags '$(5)' \
			-o '$(abspath $(BIN))'/image/$$platform/$(1) ./cmd/$(3); \
	done
	$(IMAGE_TOOL) --tag='$(4)' --layout=$(BIN)/image/$(1) --archives=$(BIN)/image $(call IMAGE_LABELS,$(1)) \
		--created="$$(git log -1 --format=%cI 2>/dev/null || echo 1970-01-01T00:00:00Z)" \
		$(foreach platform,$(PLATFORMS),--program=$(platform)=$(BIN)/image/$(platform)/$(1))
endef

.PHONY: image
image: image-apiserver image-node-agent image-worker image-scheduler ## Make all images in bin/image, or one: image-apiserver (IMAGE=name:tag), image-node-agent (AGENT_IMAGE), image-worker (WORKER_IMAGE), image-scheduler (SCHEDULER_IMAGE; compiles much of Kubernetes); PLATFORMS='linux/amd64'; needs no container engine

.PHONY: image-apiserver image-node-agent image-worker image-scheduler
image-apiserver: $(IMAGE_TOOL)
	$(call make_image,haulout-apiserver,.,apiserver,$(IMAGE),$(LDFLAGS))

image-node-agent: $(IMAGE_TOOL)
	$(call make_image,haulout-node-agent,.,node-agent,$(AGENT_IMAGE),$(LDFLAGS))

image-worker: $(IMAGE_TOOL)
	$(call make_image,haulout-worker,.,worker,$(WORKER_IMAGE),$(LDFLAGS))

image-scheduler: $(IMAGE_TOOL)
	$(call make_image,haulout-scheduler,scheduler,haulout-scheduler,$(SCHEDULER_IMAGE),$(KUBE_LDFLAGS))

CHART_TOOL := $(BIN)/chart-tool

$(CHART_TOOL): $(wildcard hack/chart/*.go) hack/chart/go.mod hack/chart/go.sum
	cd hack/chart && $(GO) build $(GO_BUILD_FLAGS) -o ../../$@ .

.PHONY: chart
chart: $(CHART_TOOL) ## Package the Helm chart in bin/chart (VERSION=v0.1.0)
	@rm -rf $(BIN)/chart
	@$(CHART_TOOL) --version='$(VERSION)' --app-version='$(subst +,-,$(VERSION))' --out=$(BIN)/chart

.PHONY: dist
dist: image krew chart ## Make a release in bin/dist: archives, images, chart, manifests, lists of modules, checksums (VERSION=v0.1.0, KREW_URI=https://...)
	@VERSION='$(VERSION)' PLATFORMS='$(PLATFORMS)' hack/dist.sh

.PHONY: clean
clean: ## Remove everything that was built
	rm -rf $(BIN)

##@ Development cluster

CLUSTER_MODULE := test/cluster
KUBE_BINARIES := kube-apiserver kube-controller-manager kube-scheduler
CLUSTER_BINARIES := etcd kwok cluster kwok-stages
KWOK_PACKAGE := sigs.k8s.io/kwok/cmd/kwok
CLUSTER_SOURCES := $(shell find $(CLUSTER_MODULE) -name '*.go' -o -name '*.yaml') $(CLUSTER_MODULE)/go.mod $(CLUSTER_MODULE)/go.sum

# The programs of Kubernetes 1.37 are in bin, those of an older version, which has a module of its
# own, in bin/kube-VERSION. The targets that are refused below use those in bin, or all of them.
ifeq ($(KUBE),1.37)
KUBE_MODULE := $(CLUSTER_MODULE)
KUBE_BIN := $(BIN)
KUBE_RELEASE := $(KUBE_VERSION)
KUBE_PROGRAMS := ./cmd/kubectl ./cmd/cluster $(KWOK_PACKAGE)
else ifneq ($(filter $(KUBE),$(KUBE_VERSIONS)),)
KUBE_MODULE := $(CLUSTER_MODULE)/kube/$(KUBE)
KUBE_BIN := $(BIN)/kube-$(KUBE)
KUBE_RELEASE := $(shell sed -nE 's/^\tk8s.io\/kubernetes (v[^ ]+).*/\1/p' $(KUBE_MODULE)/go.mod)
KUBE_PROGRAMS := k8s.io/kubernetes/cmd/kubectl
ifneq ($(filter bench cgroup2 demo kube kubeadm kured nightly reboots rollouts scheduler,$(MAKECMDGOALS)),)
$(error KUBE=$(KUBE): make $(MAKECMDGOALS) runs without KUBE only)
endif
else
$(error KUBE=$(KUBE): must be one of $(KUBE_VERSIONS))
endif

# kube_ldflags VERSION. The version has two homes: clients report that of client-go.
KUBE_VERSION_PACKAGES := k8s.io/component-base/version k8s.io/client-go/pkg/version
kube_ldflags = $(strip -s -w $(foreach package,$(KUBE_VERSION_PACKAGES),\
	-X $(package).gitVersion=$(1) -X $(package).gitTreeState=clean \
	-X $(package).gitMajor=$(patsubst v%,%,$(word 1,$(subst ., ,$(1)))) -X $(package).gitMinor=$(word 2,$(subst ., ,$(1)))))
KUBE_LDFLAGS := $(call kube_ldflags,$(KUBE_VERSION))

KUBE_STAMP := $(STAMPS)/kube-$(KUBE_RELEASE)-$(GO_VERSION)
ETCD_STAMP := $(STAMPS)/etcd-$(GO_VERSION)
KWOK_STAMP := $(STAMPS)/kwok-$(GO_VERSION)
CLUSTER_STAMP := $(STAMPS)/cluster-$(GO_VERSION)

# missing FILES prints those that do not exist: a stamp does not show that a binary has been removed
# since.
missing = $(filter-out $(wildcard $(1)),$(1))
ifneq ($(call missing,$(addprefix $(KUBE_BIN)/,$(KUBE_BINARIES) kubectl)),)
$(KUBE_STAMP): missing
endif
ifneq ($(call missing,$(addprefix $(BIN)/,$(CLUSTER_BINARIES))),)
$(ETCD_STAMP) $(KWOK_STAMP) $(CLUSTER_STAMP): missing
endif
.PHONY: missing
missing:

# The control plane is one program with three names. Each version of Kubernetes builds it from the
# same folder, with its own go.mod. For 1.37, the call also builds kwok and bin/cluster, which share
# its modules: Go compiles one program while it links another. Their own rules then find them up to
# date, because all have the same linker flags.
$(KUBE_STAMP): $(KUBE_MODULE)/go.mod $(KUBE_MODULE)/go.sum $(wildcard $(CLUSTER_MODULE)/kube/*.go $(KUBE_MODULE)/cmd/kubectl/*.go)
	@echo 'Building the control plane $(KUBE_RELEASE) and kubectl (about seven minutes the first time)'
	@mkdir -p $(STAMPS) $(KUBE_BIN)
	$(GO) -C $(CLUSTER_MODULE) build -modfile='$(abspath $(KUBE_MODULE))/go.mod' $(GO_BUILD_FLAGS) -ldflags '$(call kube_ldflags,$(KUBE_RELEASE))' -o '$(abspath $(KUBE_BIN))'/ ./kube $(KUBE_PROGRAMS)
	@cd $(KUBE_BIN) && for name in $(KUBE_BINARIES); do ln -f kube $$name; done
	@touch $@

$(ETCD_STAMP): $(CLUSTER_MODULE)/go.mod $(CLUSTER_MODULE)/go.sum $(wildcard $(CLUSTER_MODULE)/cmd/etcd/*.go)
	@echo 'Building etcd'
	@mkdir -p $(STAMPS)
	$(GO) -C $(CLUSTER_MODULE) build $(GO_BUILD_FLAGS) -ldflags '-s -w' -o '$(abspath $(BIN))'/ ./cmd/etcd
	@touch $@

# kwok is a tool of the module: by itself it would compile another version of the Kubernetes
# libraries. Its stages are part of its module but not of its binary.
$(KWOK_STAMP): $(CLUSTER_MODULE)/go.mod $(CLUSTER_MODULE)/go.sum
	@echo 'Building kwok'
	@mkdir -p $(STAMPS)
	cd $(CLUSTER_MODULE) && $(GO) build $(GO_BUILD_FLAGS) -ldflags '$(KUBE_LDFLAGS)' -o ../../$(BIN)/ $(KWOK_PACKAGE)
	@stages="$$(go -C $(CLUSTER_MODULE) list -m -f '{{.Dir}}' sigs.k8s.io/kwok)"/kustomize/stage; \
	rm -rf $(BIN)/kwok-stages; \
	for folder in node/fast node/heartbeat-with-lease pod/fast pod/general; do \
		mkdir -p $(BIN)/kwok-stages/$$folder; \
		for file in "$$stages"/$$folder/*.yaml; do \
			case $$file in */kustomization.yaml) ;; *) install -m 644 "$$file" $(BIN)/kwok-stages/$$folder/ ;; esac; \
		done; \
	done
	@touch $@

$(CLUSTER_STAMP): $(CLUSTER_SOURCES)
	@mkdir -p $(STAMPS)
	cd $(CLUSTER_MODULE) && $(GO) build $(GO_BUILD_FLAGS) -ldflags '$(KUBE_LDFLAGS)' -o ../../$(BIN)/ ./cmd/cluster
	@touch $@

.PHONY: cluster-binaries
cluster-binaries: $(ETCD_STAMP) $(KUBE_STAMP) $(KWOK_STAMP) $(CLUSTER_STAMP) ## Build the programs of the development cluster

# --- Real nodes: kubelet and kube-proxy from the module of the control plane, the rest from its own

REALNODES_MODULE := test/realnodes
NODE_PROGRAMS := $(BIN)/node
IMAGES := $(BIN)/images
NODE_STAMP := $(STAMPS)/node-$(KUBE_RELEASE)-$(GO_VERSION)
CONTAINERD_PACKAGE := github.com/containerd/containerd/v2
CNI_PACKAGE := github.com/containernetworking/plugins/plugins

NODE_BINARIES := $(addprefix $(NODE_PROGRAMS)/,containerd containerd-shim-runc-v2 ctr bridge loopback host-local) $(KUBE_BIN)/kubelet $(KUBE_BIN)/kube-proxy
ifneq ($(call missing,$(NODE_BINARIES)),)
$(NODE_STAMP): missing
endif

$(NODE_STAMP): $(KUBE_MODULE)/go.mod $(KUBE_MODULE)/go.sum $(REALNODES_MODULE)/go.mod $(REALNODES_MODULE)/go.sum
	@echo 'Building kubelet, kube-proxy, containerd and CNI plugins (about three minutes the first time)'
	@mkdir -p $(STAMPS) $(NODE_PROGRAMS) $(KUBE_BIN)
	$(GO) -C $(KUBE_MODULE) build $(GO_BUILD_FLAGS) -ldflags '$(call kube_ldflags,$(KUBE_RELEASE))' -o '$(abspath $(KUBE_BIN))'/ \
		k8s.io/kubernetes/cmd/kubelet k8s.io/kubernetes/cmd/kube-proxy
	cd $(REALNODES_MODULE) && $(GO) build $(GO_BUILD_FLAGS) -tags no_btrfs,no_devmapper,no_zfs,no_systemd -ldflags '-s -w' -o ../../$(NODE_PROGRAMS)/ \
		$(addprefix $(CONTAINERD_PACKAGE)/cmd/,containerd containerd-shim-runc-v2 ctr) \
		$(addprefix $(CNI_PACKAGE)/,main/bridge main/loopback ipam/host-local)
	@touch $@

# The images that every real node has: the sandbox of pods, the application of the tests, etcd, our
# server and our scheduler, which does not run on an older Kubernetes.
ifeq ($(KUBE),1.37)
NODE_SCHEDULER := scheduler
endif
.PHONY: node-binaries
node-binaries: $(NODE_STAMP) $(ETCD_STAMP) $(IMAGE_TOOL) build $(NODE_SCHEDULER) ## Build the programs and images of real nodes
	@mkdir -p $(IMAGES)
	cd $(REALNODES_MODULE) && $(GO) build $(GO_BUILD_FLAGS) -ldflags '-s -w' -o ../../$(NODE_PROGRAMS)/ ./app
	@platform=linux/$$(go env GOARCH); rm -f $(IMAGES)/*.tar; \
	$(IMAGE_TOOL) --tag=localhost/pause:dev --archives=$(IMAGES) --program=$$platform=$(NODE_PROGRAMS)/app --command=pause; \
	$(IMAGE_TOOL) --tag=localhost/app:dev --archives=$(IMAGES) --program=$$platform=$(NODE_PROGRAMS)/app; \
	$(IMAGE_TOOL) --tag=localhost/etcd:dev --archives=$(IMAGES) --program=$$platform=$(BIN)/etcd; \
	$(IMAGE_TOOL) --tag=localhost/haulout-apiserver:dev --archives=$(IMAGES) --program=$$platform=$(BIN)/haulout-apiserver; \
	$(IMAGE_TOOL) --tag=localhost/haulout-worker:dev --archives=$(IMAGES) --program=$$platform=$(BIN)/haulout-worker; \
	$(if $(NODE_SCHEDULER),$(IMAGE_TOOL) --tag=localhost/haulout-scheduler:dev --archives=$(IMAGES) --program=$$platform=$(BIN)/haulout-scheduler)

ifneq ($(filter-out 0,$(REAL_NODES)),)
REAL_NODES_NEED := node-binaries
endif

# haulout-scheduler shares the modules of the control plane, and so what is compiled of them.

.PHONY: scheduler
scheduler: ## Build bin/haulout-scheduler: kube-scheduler with the plugin that keeps budgets when it preempts
	cd scheduler && $(GO) build $(GO_BUILD_FLAGS) -ldflags '$(KUBE_LDFLAGS)' -o ../$(BIN)/ ./cmd/haulout-scheduler

ifeq ($(SCHEDULER),haulout)
SCHEDULER_NEEDS := scheduler
endif

# Users who run the server by hand build it by hand; the cluster must start although the tree does
# not compile.
ifeq ($(filter false external,$(HAULOUT)),)
CLUSTER_NEEDS := build
endif

# A mistake in a variable should show before minutes of building.
.PHONY: cluster-check
cluster-check: $(CLUSTER_STAMP)
	@$(BIN)/cluster check

.PHONY: cluster-up
cluster-up: cluster-check cluster-binaries $(CLUSTER_NEEDS) $(REAL_NODES_NEED) $(SCHEDULER_NEEDS) ## Start the development cluster, or what of it does not run
	@$(BIN)/cluster up

.PHONY: cluster-down
cluster-down: $(CLUSTER_STAMP) ## Stop the development cluster and remove its data (KEEP_DATA=1 keeps it)
	@$(BIN)/cluster down

.PHONY: cluster-status
cluster-status: $(CLUSTER_STAMP) ## Show the processes of the development cluster
	@$(BIN)/cluster status

# The programs of a control plane as kubeadm runs them: images with the names and tags of its
# manifests, whose process is root.
KUBEADM_IMAGES := $(BIN)/images-kubeadm
KUBEADM_ETCD_TAG := 3.7.0-0

.PHONY: kubeadm
kubeadm: cluster-binaries node-binaries ## Drain and reboot control planes that kubeadm has made of real nodes (six minutes; needs root and haproxy)
	cd $(CLUSTER_MODULE) && $(GO) build $(GO_BUILD_FLAGS) -ldflags '$(KUBE_LDFLAGS)' -o ../../$(BIN)/ k8s.io/kubernetes/cmd/kubeadm
	@rm -rf $(KUBEADM_IMAGES); platform=linux/$$(go env GOARCH); \
	for program in $(KUBE_BINARIES); do \
		$(IMAGE_TOOL) --tag=localhost/$$program:$(KUBE_VERSION) --user=0:0 --archives=$(KUBEADM_IMAGES) --program=$$platform=$(BIN)/$$program; \
	done; \
	$(IMAGE_TOOL) --tag=localhost/etcd:$(KUBEADM_ETCD_TAG) --user=0:0 --archives=$(KUBEADM_IMAGES) --program=$$platform=$(BIN)/etcd
	hack/test.sh -v -count='$(COUNT)' -tags=kubeadm -run='$(or $(RUN),^TestKubeadm$$)' -timeout='$(E2E_TIMEOUT)' ./test/e2e/realnodes

.PHONY: helm
helm: cluster-binaries node-binaries $(CHART_TOOL) ## Install, upgrade and uninstall the chart on real nodes with Helm 4 and 3, also in the middle of a drain (ten minutes; needs root)
	HELM="$$(hack/tools.sh helm)" HELM_3="$$(hack/tools.sh helm3)" \
		hack/test.sh -v -count='$(COUNT)' -tags=helm -run='$(or $(RUN),^TestHelm$$)' -timeout='$(E2E_TIMEOUT)' ./test/e2e/realnodes

# Not part of test: the machine is emulated, and that takes minutes.
.PHONY: cgroup2
cgroup2: cluster-binaries node-binaries ## Drain a real node on cgroups of version 2, in an emulated machine (ten minutes; needs Debian and root)
	@hack/vm.sh hack/vm/drain.sh

.PHONY: reboots
reboots: cluster-binaries node-binaries ## Reboot a node with the node agent, systemd and its cgroup driver, in an emulated machine (half an hour; needs Debian and root)
	@VM_TIMEOUT="$${VM_TIMEOUT:-1h}" hack/vm.sh --systemd hack/vm/reboot.sh

.PHONY: kured
kured: cluster-binaries node-binaries ## Replace kured with the commands of docs/rollouts.md, in an emulated machine that reboots (half an hour; needs Debian and root)
	@hack/vm/kured.sh build
	@VM_TIMEOUT="$${VM_TIMEOUT:-1h}" hack/vm.sh --systemd hack/vm/kured.sh

##@ Demo

# A mistake in a variable should show before minutes of building.
.PHONY: demo-check
demo-check:
	@hack/demo.sh check
	@if [[ -e $(KUBE_STAMP) ]]; then echo 'This takes about 100 seconds, and as long as it takes to build what has changed.'; \
	else echo 'This takes eleven to twelve minutes on two processors, nearly all to download and build what it needs; the next time 100 seconds.'; fi

.PHONY: demo
demo: demo-check ## Drain four of twenty nodes and put them back, and roll a task over six, on a cluster of its own (KEEP=1 leaves it up)
	@hack/demo-build.sh '$(MAKE)' --no-print-directory GO_BUILD_FLAGS='$(GO_BUILD_FLAGS) -v' cluster-binaries server plugin worker
	@hack/demo.sh

.PHONY: recording
recording: ## Record the picture in README, docs/watch.svg, on the cluster that KEEP=1 make demo has left
	@hack/record.sh

##@ Measurements

MEMORY_FLAGS ?=

.PHONY: memory
memory: cluster-binaries build ## Measure what the server takes with 5,000 nodes and 150,000 pods (40 minutes, 8 GB; MEMORY_FLAGS='--nodes=500 --pods=15000 --drain=25 --rest=10s')
	$(GO) build $(GO_BUILD_FLAGS) -o $(BIN)/memory ./test/bench/memory
	@$(BIN)/memory $(MEMORY_FLAGS)

# What bin/bench and bin/rollout are told: the flags that `--help` explains.
BENCH_FLAGS ?=
ROLLOUT_FLAGS ?=

# bin/rollout runs all of these.
.PHONY: bench-programs
bench-programs: cluster-binaries build
	$(GO) build $(GO_BUILD_FLAGS) -o $(BIN)/bench ./test/bench/drain
	$(GO) build $(GO_BUILD_FLAGS) -o $(BIN)/memory ./test/bench/memory
	$(GO) build $(GO_BUILD_FLAGS) -o $(BIN)/rollout ./test/bench/rollout
	$(GO) test -c $(GO_BUILD_FLAGS) -o $(BIN)/next.test ./pkg/rollout/next
	$(GO) test -c $(GO_BUILD_FLAGS) -o $(BIN)/plan.test ./pkg/drain/plan

.PHONY: bench
bench: bench-programs ## Drain the same pods by kubectl, a bare loop and a NodeMaintenance and compare (half an hour; BENCH_FLAGS='--pods=60 --nodes=6 --repetitions=4'); without BENCH_FLAGS, then the same as rollouts
	@$(BIN)/bench $(BENCH_FLAGS)
	@$(if $(BENCH_FLAGS),:,$(BIN)/rollout $(ROLLOUT_FLAGS))

.PHONY: rollouts
rollouts: bench-programs ## Measure the speed, the writes, the decisions and the memory of rollouts (an hour, 8 GB; ROLLOUT_FLAGS='--parts=trips,writes,decision')
	@$(BIN)/rollout $(ROLLOUT_FLAGS)

# What bin/clients is told: the flags that `bin/clients --help` explains.
CLIENTS_FLAGS ?=

.PHONY: clients
clients: cluster-binaries build ## Measure what 200 clients of the API see that list, watch and create (13 minutes; CLIENTS_FLAGS='--clients=20 --duration=30s --rest=3m')
	$(GO) build $(GO_BUILD_FLAGS) -o $(BIN)/clients ./test/bench/clients
	@$(BIN)/clients $(CLIENTS_FLAGS)

# What bin/idle is told: the flags that `bin/idle --help` explains.
IDLE_FLAGS ?=

.PHONY: idle
idle: cluster-binaries build ## Measure what 10,000 pods cost that cannot leave (a quarter of an hour; IDLE_FLAGS='--pods=200 --budgets=4 --nodes=5')
	$(GO) build $(GO_BUILD_FLAGS) -o $(BIN)/idle ./test/bench/idle
	@$(BIN)/idle $(IDLE_FLAGS)

##@ Checks

# What go test is told: RUN is a pattern of test names, COUNT how often each runs, the FLAGS
# anything else that it takes.
RUN ?=
COUNT ?= 1
UNIT_FLAGS ?=
# With RACE=all, unit runs these packages with the race detector: they start goroutines. RACE=2/5 is
# every fifth of those whose tests compile no server, which would be compiled once more for it,
# beginning with the second.
RACE ?=
RACE_PACKAGES := /pkg/(agent|controller|evacuator|host|worker)(/|$$)
RACE_SERVERS := /pkg/(apiserver|cmd/server|host/previewer)(/|$$)
# Random searches in one of these packages, of code without goroutines. With RACE=2/5 they run
# without the race detector, which makes them take nine times as long (191 s in place of 21).
RACE_SEARCHES := ^(TestDrainStartsOnePodForEachThatLeaves|TestExchange.*|TestPodsOfACancelledDrainStay|TestSurgeEndsWithAvailablePods|TestWhateverHappensTheUsersNumberStands)$$
RACE_SEARCHES_PACKAGE := ./pkg/controller/evacuators/deployment
MONITORING_FLAGS ?=
E2E_FLAGS ?=
E2E_TIMEOUT ?= 40m

.PHONY: test
test: ## Run all tests: unit, registry, then end to end on a development cluster
	@hack/test-all.sh '$(MAKE)' unit e2e

FUZZ_TIME ?= 10s

.PHONY: fuzz
fuzz: ## Search for input that breaks a reader (FUZZ_TIME=10m for each target, in all packages); what is found is written to testdata/fuzz
	@hack/fuzz.sh '$(FUZZ_TIME)'

# End-to-end tests are compiled, too. All tests are vetted by make lint or make gitops. Like the
# compiler, the tests collect garbage less often: many leave much of it on a small heap.
.PHONY: unit
unit: ## Run the tests that need no cluster, of all modules
	@$(GO) list -test -export ./test/... >/dev/null
	@$(GO) list -test -export -tags=kubeadm,helm ./test/e2e/realnodes >/dev/null
	@# A failure in one module hides none in another: all are run, and then it fails.
	export GOGC=400; failed=; searches=; packages="$$(go list ./... | grep -Ev '/test/(e2e|faults)')"; \
	case '$(RACE)' in \
	'') race= ;; \
	all) race="$$(grep -E '$(RACE_PACKAGES)|$(RACE_SERVERS)' <<<"$$packages")" ;; \
	[1-9]/[1-9]|[1-9]/10|10/10) race="$$(grep -E '$(RACE_PACKAGES)' <<<"$$packages" | grep -Ev '$(RACE_SERVERS)' | awk -v part='$(RACE)' 'BEGIN { split(part, p, "/") } NR % p[2] == p[1] % p[2]')"; \
		[[ -n "$$race" ]] || { echo 'Error: RACE=$(RACE) has no package' >&2; exit 2; }; \
		[[ "$$race" != *$(notdir $(RACE_SEARCHES_PACKAGE))* ]] || searches='$(RACE_SEARCHES)' ;; \
	*) echo 'Error: RACE=$(RACE) must be all, or a part such as 2/5' >&2; exit 2 ;; \
	esac; \
	if [[ -n "$$race" ]]; then \
		hack/test.sh -race -skip="$$searches" $(UNIT_FLAGS) $$race || failed=1; \
		packages="$$(grep -vxF "$$race" <<<"$$packages")"; \
	fi; \
	if [[ -n "$$searches" ]]; then \
		hack/test.sh $(UNIT_FLAGS) -run="$$searches" $(RACE_SEARCHES_PACKAGE) || failed=1; \
	fi; \
	hack/test.sh $(UNIT_FLAGS) $$packages || failed=1; \
	(cd $(CLUSTER_MODULE) && ../../hack/test.sh $(UNIT_FLAGS) ./...) || failed=1; \
	(cd scheduler && ../hack/test.sh $(UNIT_FLAGS) ./...) || failed=1; \
	(cd test/monitoring && ../../hack/test.sh $(MONITORING_FLAGS) ./...) || failed=1; \
	(cd hack/image && ../../hack/test.sh $(UNIT_FLAGS) ./...) || failed=1; \
	(cd hack/chart && ../../hack/test.sh $(UNIT_FLAGS) ./...) || failed=1; \
	test -z "$$failed"

# Not part of unit: the libraries of Flux take minutes to compile.
.PHONY: gitops
gitops: ## Run the health checks and comparisons of kstatus, Flux and Argo CD on objects of the API, and lint them
	cd test/gitops && ../../hack/test.sh $(UNIT_FLAGS) ./...
	hack/verify-lint.sh test/gitops

.PHONY: race
race: ## Run the tests that need no cluster, those of code with goroutines with the race detector (needs a C compiler)
	@$(MAKE) --no-print-directory unit RACE=all

# Only root can start real nodes; their tests are left out without.
ifeq ($(shell id -u),0)
E2E_NEEDS := node-binaries
endif

# Tests that do not run, as a pattern.
SKIP ?=

# The tests on real nodes mostly wait, so those of preemption, Windows and the pages run beside
# them. On an older Kubernetes run the tests that depend on it: haulout-scheduler is built from
# kube-scheduler 1.37, and the tests of faults, Windows and the pages are about our own programs.
KUBE_PACKAGES := : -p=1 ./test/e2e : ./test/e2e/realnodes
ifeq ($(KUBE),1.37)
E2E_PACKAGES ?= : -p=1 ./test/e2e ./test/faults : -p=2 ./test/e2e/realnodes ./test/e2e/preemption ./test/e2e/pages ./test/e2e/windowsagent
else
E2E_PACKAGES ?= $(KUBE_PACKAGES)
endif
ifneq ($(E2E_PACKAGES),$(KUBE_PACKAGES))
E2E_NEEDS += windows-agent scheduler
ifeq ($(findstring TestSideBySide,$(SKIP)),)
E2E_NEEDS += previous
endif
endif

PREVIOUS ?=

.PHONY: previous
previous: ## Build the server of an earlier commit, which the end-to-end tests run beside the present one (PREVIOUS=commit)
	@PREVIOUS='$(PREVIOUS)' hack/previous.sh

.PHONY: e2e
e2e: cluster-binaries build $(E2E_NEEDS) ## Run the end-to-end tests (RUN=pattern, SKIP=pattern, COUNT=n; KUBE=1.35 on that Kubernetes; E2E_CLUSTER_DIR=dir uses that running cluster, E2E_FULL=1 the large sizes)
	hack/test.sh -v -count='$(COUNT)' -run='$(RUN)' -skip='$(SKIP)' -timeout='$(E2E_TIMEOUT)' -parallel=12 $(E2E_FLAGS) \
		$(E2E_PACKAGES)

# Random searches, which are about our own code.
KUBE_SKIP ?= ^(TestNothingDiffersAfterManyDrains|TestOverlappingMaintenances)\z

.PHONY: kube
kube: ## Run the end-to-end tests on each version of Kubernetes, and end with a table for README (KUBE_VERSIONS='1.34 1.36')
	@SKIP='$(KUBE_SKIP)' E2E_PACKAGES='$(KUBE_PACKAGES)' hack/kube.sh '$(MAKE)' $(KUBE_VERSIONS)

# Not part of e2e: it needs a cluster of its own, with a feature gate that is off by default.
.PHONY: evictionrequests
evictionrequests: cluster-binaries build ## Drain pods with eviction responders, where Kubernetes has them (one minute)
	hack/test.sh -v -count='$(COUNT)' -run='$(RUN)' -timeout='$(E2E_TIMEOUT)' ./test/e2e/upstream

# How many seeds faults plays.
FAULT_SEEDS ?= 200

.PHONY: faults
faults: cluster-binaries build ## Drain nodes while things fail at random, 200 times (an hour and a half; FAULT_SEEDS=20)
	E2E_SEEDS='$(FAULT_SEEDS)' hack/test.sh -v -count=1 -run='^TestRandomFaults$$' -timeout=6h ./test/faults

.PHONY: full
full: ## Run the end-to-end tests and the worlds of rollouts in their large sizes, without what faults runs (two hours)
	E2E_FULL=1 hack/test.sh -v -count=1 -run='^(TestWorlds|TestRandomInterruptions)$$' -timeout=2h \
		./pkg/rollout/next ./pkg/controller/nodetask ./pkg/controller/rollout
	@$(MAKE) --no-print-directory e2e E2E_FULL=1 E2E_TIMEOUT=6h SKIP='^TestRandomFaults\z'

.PHONY: codegen
codegen: ## Generate all code in a copy of the tree and compare, also if nothing has changed since it was generated
	@hack/verify-codegen.sh --full

# What takes too long for .ci/run, and what .ci/run does in part.
NIGHTLY ?= codegen unit race gitops fuzz full faults kube kubeadm helm cgroup2 reboots kured bench memory clients idle evictionrequests

.PHONY: nightly
nightly: ## Run everything that takes long, and end with a table of what came of it (nine hours; needs Debian and root; NIGHTLY='fuzz kubeadm')
	@FUZZ_TIME="$${FUZZ_TIME:-5m}" hack/nightly.sh '$(MAKE)' $(NIGHTLY)

.PHONY: verify
verify: ## Check generated code and pages, formatting, lint, manifests, go.mod and licence headers; change nothing
	@hack/verify.sh

.PHONY: update
update: ## Rewrite generated code and pages, go.mod and licence headers, format everything
	hack/update-codegen.sh
	hack/update-docs.sh
	hack/update-boilerplate.sh
	hack/update-tidy.sh
	hack/update-format.sh

.PHONY: lint
lint: ## Run the linters alone
	@hack/verify.sh lint

.PHONY: lines
lines: ## Count the lines of Go that people write
	@hack/lines.sh

.PHONY: fmt
fmt: ## Format the Go files
	hack/update-format.sh

.PHONY: tools
tools: ## Fetch and build the tools of verify and update
	@hack/tools.sh
