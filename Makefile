# "make help" lists the targets.

SHELL  := /bin/bash
GO     ?= go
TOOLS  := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/egressway/tools
LINTER := v2.15.0
HELM      := v4.3.1
KUSTOMIZE := v5.8.2
NFPM      := v2.43.4
CRANE     := v0.22.1
AXE       := 4.14.1
AXE_SUM   := e6b0ce02b84d892e2e33e403485e7f3d6c29e2be6df65daf44d89ba564139745
METALLB   := v0.15.2
FLANNEL   := v0.28.10
CILIUM    := v1.18.4
CALICO    := v1.11.0-cni-plugin.0.20250813170300-a0db560f0520

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
MODULE  := github.com/egressway/egressway

# gRPC's pages for tracing use templates, for which the linker keeps every method of every type: that makes the program half as large again.
TAGS := grpcnotrace

# Tests of these packages make devices, routes or nodes: labexec runs them as root on a kernel with VRF.
LAB  = $(addprefix $(MODULE)/,internal/bgp internal/flows internal/kernel internal/kernel/conntrack internal/kernel/link internal/kernel/nft internal/kernel/queue internal/kernel/route internal/kernel/walk lab) $(shell $(GO) list ./test/... 2>/dev/null)
UNIT = $(filter-out $(LAB),$(shell $(GO) list ./... 2>/dev/null))
# These have no goroutine and no lock, and the race detector would take minutes for their tests.
PURE = $(addprefix $(MODULE)/,internal/election internal/firewall internal/picture internal/plan internal/qos internal/sorted)

# The lab starts this daemon on its nodes.
export LAB_BIN := $(CURDIR)/bin/egressway

.NOTPARALLEL:
.PHONY: help figures deps lab-kernel kubelab build generate lint fmt tools unit lab test demo failover image clean bin/egressway bin/egressway-next bin/labexec bin/suite bin/demo chaos bin/chaos bench-changes bin/bench-changes bench-packets bin/bench-packets

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

deps: ## install missing Debian packages that the lab and the tests need (as root)
	@lab/setup

lab-kernel: bin/labexec ## build the lab's kernel, unless it is cached or this one has VRF (7 to 15 minutes on 2 cores)
	@LAB_VERBOSE=1 bin/labexec true 2>&1 | grep -q 'mode native' || lab/kernel/build.sh

kubelab: ## build the API server of the tests, unless it is cached (6 minutes on 2 cores), and print its path
	@lab/kubelab/build.sh

build: bin/egressway ## bin/egressway

bin/egressway:
	CGO_ENABLED=0 $(GO) build -trimpath -tags $(TAGS) -ldflags '-X main.version=$(VERSION)' -o $@ ./cmd/egressway

# The same in another version, for tests of upgrades.
bin/egressway-next:
	CGO_ENABLED=0 $(GO) build -trimpath -tags $(TAGS) -ldflags '-X main.version=v-next' -o $@ ./cmd/egressway

bin/labexec:
	CGO_ENABLED=0 $(GO) build -o $@ ./lab/labexec

bin/suite:
	CGO_ENABLED=0 $(GO) build -o $@ ./lab/suite

bin/demo:
	CGO_ENABLED=0 $(GO) build -o $@ ./lab/demo

bin/chaos:
	CGO_ENABLED=0 $(GO) build -ldflags '-X main.version=$(VERSION)' -o $@ ./lab/runchaos

bin/bench-packets:
	CGO_ENABLED=0 $(GO) build -o $@ ./lab/bench/packets

generate: ## generate deepcopy functions, the CRD, the tables of docs/configuration.md, the JSON Schema, and copies of the CRDs, the alerts and the dashboard
	$(GO) generate ./api/... ./internal/config
	cp config/crd/egressway.io_egressnodes.yaml config/crd/k8s.ovn.org_egressfirewalls.yaml config/crd/k8s.ovn.org_egressips.yaml config/crd/k8s.ovn.org_egressqoses.yaml config/crd/k8s.ovn.org_egressservices.yaml deploy/helm/egressway/crds/
	cp deploy/grafana/egressway.json deploy/helm/egressway/files/
	deploy/prometheus/prometheusrule.sh

lint: $(TOOLS)/golangci-lint-$(LINTER) ## golangci-lint; .golangci.yml has the rules, import directions among them
	$< run ./...

figures: ## measure how dense and readable each package is; SHOW=internal/plan prints its dense functions, and its sentences that need plain English
	$(GO) run ./lab/figures -show '$(SHOW)'

fmt: $(TOOLS)/golangci-lint-$(LINTER) ## gofumpt and goimports
	$< fmt ./...

# toolbuild installs a program from the Go module proxy: its name, its package, its version, further flags. A temporary module counts the
# packages, since go list accepts no version.
toolbuild = count=$$(mktemp -d) && trap 'rm -rf "$$count"' EXIT && \
	(cd "$$count" && $(GO) mod init count && $(GO) get $2@$3) >"$$count/said" 2>&1 || { cat "$$count/said" >&2; exit 1; }; \
	export CGO_ENABLED=0 TOTAL=$$(cd "$$count" && $(GO) list -mod=mod -deps $2 | wc -l) GOBIN=$(TOOLS)/build; lab/gobuild $1 nice $(GO) install -v $4 $2@$3

# Built from the Go module proxy, once: about 2 minutes on 2 cores.
$(TOOLS)/golangci-lint-$(LINTER):
	@echo "building golangci-lint $(LINTER), once"
	mkdir -p $(TOOLS)/build
	@$(call toolbuild,golangci-lint,github.com/golangci/golangci-lint/v2/cmd/golangci-lint,$(LINTER))
	mv $(TOOLS)/build/golangci-lint $@

tools: $(TOOLS)/helm-$(HELM) $(TOOLS)/kustomize-$(KUSTOMIZE) $(TOOLS)/nfpm-$(NFPM) $(TOOLS)/crane-$(CRANE) $(TOOLS)/promtool $(TOOLS)/axe-$(AXE).js ## build helm, kustomize, nfpm and crane, and fetch promtool and axe, for the tests of deploy and of the page, once

# Programs from the Go module proxy, kept with their version in the name.
$(TOOLS)/helm-%:
	$(call install,helm,helm.sh/helm/v4/cmd/helm@$*)

$(TOOLS)/kustomize-%:
	$(call install,kustomize,sigs.k8s.io/kustomize/kustomize/v5@$*)

$(TOOLS)/nfpm-%:
	$(call install,nfpm,github.com/goreleaser/nfpm/v2/cmd/nfpm@$*)

$(TOOLS)/crane-%:
	$(call install,crane,github.com/google/go-containerregistry/cmd/crane@$*)

# promtool comes out of Debian's package, whose installation would start a server: "go install" refuses a module that replaces others, as
# that of Prometheus does.
$(TOOLS)/promtool:
	@echo "fetching promtool from Debian's package prometheus, once"
	mkdir -p $(TOOLS)/build
	cd $(TOOLS)/build && rm -f prometheus_*.deb && { apt-get download -qq prometheus || { apt-get update -qq && apt-get download -qq prometheus; }; }
	dpkg-deb --fsys-tarfile $(TOOLS)/build/prometheus_*.deb | tar -xO ./usr/bin/promtool >$(TOOLS)/build/promtool
	chmod 755 $(TOOLS)/build/promtool && rm $(TOOLS)/build/prometheus_*.deb
	mv $(TOOLS)/build/promtool $@

# axe checks the status page for accessibility, in a browser.
$(TOOLS)/axe-%.js:
	@echo "fetching axe-core $* from the npm registry, once"
	mkdir -p $(TOOLS)/build
	cd $(TOOLS)/build && npm pack --silent axe-core@$* && echo '$(AXE_SUM)  axe-core-$*.tgz' | sha256sum --check --quiet
	tar -xzOf $(TOOLS)/build/axe-core-$*.tgz package/axe.min.js >$(TOOLS)/build/axe.js
	rm $(TOOLS)/build/axe-core-$*.tgz && mv $(TOOLS)/build/axe.js $@

define install
	@echo "building $(@F), once"
	mkdir -p $(TOOLS)/build
	@$(call toolbuild,$1,$(firstword $(subst @, ,$2)),$(lastword $(subst @, ,$2)),-ldflags '-s -w')
	mv $(TOOLS)/build/$1 $@
endef

# The slowest package begins first, and four run at once: most of them wait most of the time. Tests of floods measure memory, which the race
# detector would falsify. The timeout ends a test that hangs; it does not require a fast machine.
unit: tools kubelab bin/suite ## tests that need no lab, most with the race detector
	KUBELAB=$$(lab/kubelab/build.sh) bin/suite \
		"$(GO) test -json -count=1 -timeout 1h -run 'TestHostileFloods|TestDeafPeer' ./internal/speaker" \
		"$(GO) test -json -race -count=1 -p 4 -timeout 1h $(MODULE)/internal/speaker $(filter-out $(MODULE)/internal/speaker $(PURE),$(UNIT))" \
		"$(GO) test -json -count=1 -timeout 1h $(PURE)"

# Two at once: a kernel of the lab has one processor.
lab: lab-kernel kubelab bin/egressway bin/egressway-next bin/labexec bin/suite ## tests in the lab: namespaces, FRR, packets, an API server, kube-proxy
	KUBELAB=$$(lab/kubelab/build.sh) KUBEBIN=$$(lab/cluster/kubebin/build.sh) LAB_API=1 bin/suite -jobs 2 -lab bin/labexec $(MODULE)/test/e2e $(filter-out $(MODULE)/test/e2e,$(LAB))

test: deps build lint lab-kernel kubelab unit lab cluster-test ## all checks and tests of the CI

demo: deps lab-kernel build bin/labexec bin/demo ## three nodes, two networks beside the default, routers, packets: ends with a table of results
	bin/labexec bin/demo

chaos: deps lab-kernel kubelab build bin/labexec bin/chaos ## break the lab in random order under traffic: SEED=n (random), MINUTES=n (10), FAULTS=kind,kind (all), ARGS='-slower 4 -slack 1s' (on a slow machine)
	KUBELAB=$$(lab/kubelab/build.sh) LAB_API=1 bin/labexec bin/chaos -seed '$(or $(SEED),0)' -minutes '$(or $(MINUTES),10)' -faults '$(FAULTS)' $(ARGS)

image: ## the image: dist/egressway.tar, for docker, ctr, kind and skopeo to load: ARCH=arm64 (this machine's)
	@mkdir -p dist/image
	$(call RELEASE,$(or $(ARCH),$(shell $(GO) env GOARCH))) -o dist/image/egressway ./cmd/egressway
	$(GO) run ./release/image -version '$(VERSION)' -created $$(git log -1 --format=%ct) dist/image/egressway >dist/egressway.tar

# The topologies as containers.
.PHONY: images topologies topologies-schema dist/images.tar bin/topologies
dist/images.tar: bin/egressway
	@mkdir -p dist
	lab/topologies/images.sh bin/egressway >$@.new && mv $@.new $@

images: dist/images.tar ## dist/images.tar, for docker to load: the images that containerlab/*.clab.yml name, with Debian's FRR and tools

bin/topologies:
	CGO_ENABLED=0 $(GO) build -o $@ ./lab/topologies

topologies: lab-kernel bin/labexec bin/box bin/topologies images ## deploy containerlab/*.clab.yml as containerlab does, on a Docker engine in the lab's kernel, and check where packets go (root)
	TREE=$$(lab/cluster/tree.sh) LAB_MEM=4G bin/labexec lab/topologies/run.sh $(CURDIR)/dist/images.tar $(wildcard containerlab/*.clab.yml)

topologies-schema: ## judge containerlab/*.clab.yml by SCHEMA=FILE, the schemas/clab.schema.json of containerlab's repository
	@[ -n "$(SCHEMA)" ] || { echo 'usage: make topologies-schema SCHEMA=FILE' >&2; exit 2; }
	$(GO) run ./lab/topologies -schema '$(SCHEMA)' $(wildcard containerlab/*.clab.yml containerlab/kind/*.clab.yml)

# The program in a real cluster's nodes and pods.
.PHONY: cluster cluster-down cluster-kind dist/agnhost.tar cluster-figures cluster-lab cluster-matrix cluster-test bin/box bin/matrix dist/box.tar
bin/box:
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w' -o $@ ./lab/cluster/box

dist/box.tar: bin/box
	@mkdir -p dist
	$(GO) run ./release/image -version '$(VERSION)' bin/box >$@

# Other projects' programs in the cluster. Each target prints where they are, and the folder of their module, which has its manifests.
$(TOOLS)/controller-%:
	$(call install,controller,go.universe.tf/metallb/controller@$*)

$(TOOLS)/flannel-%:
	@echo "building $(@F), once"
	@lab/cluster/flannel/build.sh '$*' $@.new && mv $@.new $@

$(TOOLS)/calico-%:
	@echo "building $(@F), once"
	@rm -rf $@.new && lab/cluster/calico/build.sh '$*' $@.new && mv $@.new $@

$(TOOLS)/cilium-%:
	@echo "building $(@F), once"
	@rm -rf $@.new && lab/cluster/cilium/build.sh '$*' $@.new && mv $@.new $@

moduledir = $$($(GO) mod download -json $1 | sed -n 's/.*"Dir": "\(.*\)".*/\1/p')
.PHONY: metallb flannel calico cilium
metallb: $(TOOLS)/controller-$(METALLB)
	@echo $< $(call moduledir,go.universe.tf/metallb@$(METALLB))

flannel: $(TOOLS)/flannel-$(FLANNEL)
	@echo $< $(call moduledir,github.com/flannel-io/flannel@$(FLANNEL))

calico: $(TOOLS)/calico-$(CALICO)
	@echo $< $(call moduledir,github.com/projectcalico/calico@$(CALICO))

cilium: $(TOOLS)/cilium-$(CILIUM)
	@echo $< $(call moduledir,github.com/cilium/cilium@$(CILIUM))

bin/matrix:
	CGO_ENABLED=0 $(GO) build -o $@ ./lab/cluster/matrix

cluster: ## three real nodes with containerd, kubelet and kube-proxy, FRR outside, Egressway deployed (root): CNI=static|flannel|flannel-host-gw|calico|cilium PROXY=nftables|iptables|ipvs
	@lab/cluster/up.sh '$(or $(CNI),static)' '$(or $(PROXY),nftables)'

# A CNI and a mode of kube-proxy for each cluster. Calico and Cilium, which keep two processors busy, have tables of their own.
MATRIX = static:nftables static:iptables flannel:iptables
OWN    = $(filter calico cilium,$(firstword $(subst :, ,$(MATRIX))))
BLOCK  = cluster-matrix$(OWN:%=-%)

cluster-matrix: bin/matrix bin/bench-report ## check a table of behaviour on clusters of real nodes, one after another, and write it to docs/compatibility.md (root): MATRIX='static:nftables' for some
	@lab/cluster/matrix.sh $(MATRIX); code=$$?; \
	bin/matrix -table $(foreach m,$(MATRIX),dist/matrix/$(subst :,-,$(m)).json) | \
		bin/bench-report -file docs/compatibility.md -block $(BLOCK) -commit '$(VERSION)' -command 'make cluster-matrix$(if $(filter file,$(origin MATRIX)),, MATRIX="$(MATRIX)")' && exit $$code

# The lab's kernel has VRF devices and IPVS, and one processor.
LABMATRIX = $(if $(filter file,$(origin MATRIX)),static:ipvs,$(MATRIX))
cluster-lab: lab-kernel bin/labexec bin/matrix bin/bench-report ## the same in the lab's kernel, where the network red is a VRF and lost packets fail no row: MATRIX='static:ipvs' (root)
	@lab/cluster/lab.sh matrix.sh -patient $(LABMATRIX); code=$$?; \
	bin/matrix -table $(foreach m,$(LABMATRIX),dist/matrix-lab/$(subst :,-,$(m)).json) | \
		bin/bench-report -file docs/compatibility.md -block cluster-lab -commit '$(VERSION)' -command 'make cluster-lab$(if $(filter file,$(origin MATRIX)),, MATRIX="$(MATRIX)")' \
		-kernel "$$(bin/labexec uname -r) (the lab's: user-mode, one processor)" && exit $$code

# What a change breaks most easily, and of that what depends on kube-proxy. The machine may be slow, so lost packets fail no row, but those
# that arrive have to be right.
ROWS      = ^(pods leave|`network: red`|`sourceIPBy|pod |the ingress IPs|`externalTrafficPolicy|ClusterIP|NodePort|EgressIP: |EgressFirewall|planned move: `kubectl|daemon|Egressway removed)
PROXYROWS = ^(pods leave|`network: red`|`sourceIPBy|the ingress IPs|`externalTrafficPolicy|ClusterIP|NodePort|planned move: `kubectl|Egressway removed)
cluster-test: lab-kernel bin/labexec bin/matrix ## check the part of that table that needs no more than a few minutes, on a cluster for each mode of kube-proxy, the one with IPVS in the lab's kernel (root)
	@lab/cluster/test.sh '$(ROWS)' '$(PROXYROWS)'

dist/agnhost.tar: bin/box
	@mkdir -p dist
	lab/cluster/agnhost.sh bin/box >$@.new && mv $@.new $@

cluster-kind: lab-kernel bin/labexec bin/topologies images dist/agnhost.tar ## follow containerlab/kind/README.md on real nodes in the lab's kernel (root)
	@lab/cluster/lab.sh kind.sh static:iptables

cluster-figures: bin/matrix bin/bench-report ## measure RUNS (20) new pods, changes and, a quarter of them, dead hosts on a cluster of real nodes, into docs/compatibility.md (root)
	@lab/cluster/up.sh static nftables
	@bin/matrix -figures $(or $(RUNS),20) | \
		bin/bench-report -file docs/compatibility.md -block cluster-figures -commit '$(VERSION)' -command 'make cluster-figures'; \
	code=$$?; lab/cluster/down.sh; exit $$code

cluster-down: ## remove the cluster that "make cluster" made (root)
	@lab/cluster/down.sh

failover: lab-kernel kubelab build bin/labexec ## kill the host RUNS times (50) under traffic, and print the duration of each stage
	KUBELAB=$$(lab/kubelab/build.sh) LAB_API=1 FAILOVER_RUNS=$(or $(RUNS),50) \
		$(GO) test -count=1 -timeout 3h -exec $(CURDIR)/bin/labexec ./test/e2e -run 'TestFailover$$|TestFailoverOfEgressIP$$' -v

bin/bench-changes:
	CGO_ENABLED=0 $(GO) build -ldflags '-X main.version=$(VERSION)' -o $@ ./lab/bench/changes

bin/bench-bgp bin/bench-pods bin/bench-report bin/bench-requests bin/bench-steered: bin/bench-%:
	CGO_ENABLED=0 $(GO) build -o $@ ./lab/bench/$*

# Benchmarks, with their minutes. They print Markdown; with "make bench", bench-report runs each of them and writes its output into
# its block of docs/benchmarks.md.
BENCHES = packets:6 packets-lab:8 changes:11 bgp:16 steered:4 pods:4 requests:10
BENCH   = $(foreach b,$(BENCHES),$(firstword $(subst :, ,$b)))
into    = $(if $(WRITE),bin/bench-report -block $1 -commit '$(VERSION)' -command 'make bench-$1$(given)' $2)
given   = $(if $(ARGS), ARGS="$(ARGS)")
bench-packets bench-packets-lab: given = $(if $(ROUNDS), ROUNDS=$(ROUNDS))

.PHONY: plots
plots: ## draw the figures of docs/benchmarks.md: docs/pictures/bench-*.svg
	$(GO) run ./lab/bench/plots

.PHONY: bench bench-bgp bench-packets-lab bench-steered bin/bench-bgp bin/bench-report bin/bench-steered bench-pods bench-requests bin/bench-pods bin/bench-requests
bench: bin/bench-report ## all benchmarks, one after another, into docs/benchmarks.md (root, about an hour): BENCH='packets bgp' for some
	@minutes=0; for b in $(BENCH); do \
		m=$$(tr ' ' '\n' <<<'$(BENCHES)' | sed -n "s/^$$b://p"); \
		[ -n "$$m" ] || { echo "BENCH: $$b: must be some of $(foreach b,$(BENCHES),$(firstword $(subst :, ,$b)))" >&2; exit 2; }; \
		minutes=$$((minutes + m)); \
	done; echo "$(BENCH): about $$minutes minutes, not counting builds; other load on the machine shows in the figures"
	@failed=; for b in $(BENCH); do \
		echo "== $$b"; $(MAKE) --no-print-directory bench-$$b WRITE=1 VERSION='$(VERSION)' || failed="$$failed $$b"; \
	done; $(MAKE) --no-print-directory plots; [ -z "$$failed" ] || { echo "failed, their blocks stay as they were:$$failed" >&2; exit 1; }

bench-changes: kubelab build bin/bench-changes ## measure a change and a start of the daemon on a node of a large cluster (10 minutes, as root): ARGS='-services 200 -nodes 20', see -h
	KUBELAB=$$(lab/kubelab/build.sh) $(call into,changes) bin/bench-changes $(ARGS)

bench-packets: bin/bench-packets ## measure the cost of a packet on this machine's kernel (root, 6 minutes): docs/benchmarks.md explains the comparison
	$(call into,packets) bin/bench-packets -rounds $(or $(ROUNDS),20)

bench-packets-lab: lab-kernel bin/labexec bin/bench-packets ## the same in the lab's kernel, with VRF devices too (8 minutes)
	$(call into,packets-lab,-kernel "$$(bin/labexec uname -r) (the lab's: user-mode, one processor)") bin/labexec bin/bench-packets -wall -packets 2048 -rounds $(or $(ROUNDS),15)

bench-bgp: deps build bin/bench-bgp ## 10,000 prefixes announced, 100,000 learned, changed and lost (root, 16 minutes): ARGS='-prefixes 5000 -churn 10s', see -h
	$(call into,bgp) bin/bench-bgp $(ARGS)

bench-steered: build bin/bench-steered ## measure the throughput of steered pods (root, 4 minutes): ARGS='-rounds 3', see -h
	$(call into,steered) bin/bench-steered $(ARGS)

bench-pods: kubelab build bin/bench-pods ## new pods whose first act is a SYN: packets with a wrong source, and the time to the right one (root, 4 minutes): ARGS='-services 10000', see -h
	KUBELAB=$$(lab/kubelab/build.sh) $(call into,pods) bin/bench-pods $(ARGS)

bench-requests: kubelab build bin/bench-requests ## count the daemons' requests to the API server, and extrapolate to 1,000 daemons; simulate as many (root, 10 minutes): ARGS='-daemons 5,10', see -h
	KUBELAB=$$(lab/kubelab/build.sh) $(call into,requests) bin/bench-requests $(ARGS)

clean: ## remove bin and dist; the caches under ~/.cache stay
	rm -rf bin dist

# The fuzz targets: package and name.
FUZZ = bgp:FuzzUpdate bfd:FuzzPacket cluster/manifests:FuzzRead config:FuzzParse flows:FuzzRecords plan:FuzzBuild plan:FuzzInvariants speaker:FuzzMessages status:FuzzRequest

# By default Go spends up to a minute on minimizing each new input, and so most of the time.
.PHONY: fuzz
fuzz: ## feed every parser with random input, each for TIME=30s; inputs that fail stay in testdata/fuzz
	@for f in $(FUZZ); do \
		echo "$$f"; $(GO) test -run '^$$' -fuzz "^$${f#*:}\$$" -fuzztime $(or $(TIME),30s) -fuzzminimizetime 2s ./internal/$${f%:*} || failed="$$failed $$f"; \
	done; test -z "$$failed" || { echo "failed:$$failed"; exit 1; }

GOVULNCHECK := v1.9.0

$(TOOLS)/govulncheck-%:
	$(call install,govulncheck,golang.org/x/vuln/cmd/govulncheck@$*)

# The same source gives the same bytes on every machine: no paths, no clock, and a given version.
RELEASE = CGO_ENABLED=0 GOOS=linux GOARCH=$1 GOFLAGS= GOAMD64=v1 GOARM64=v8.0 $(GO) build -trimpath -buildvcs=false -tags $(TAGS) -ldflags '-s -w -buildid= -X main.version=$(VERSION)'

# The folder that a release is built in.
DIST ?= dist/release

.PHONY: release publish reproducible vulnerabilities
release: $(TOOLS)/nfpm-$(NFPM) $(TOOLS)/helm-$(HELM) ## dist/release: for amd64 and arm64 programs, archives, packages (deb, rpm) and an image; the chart; the parts (SPDX 2.3) and licences of each program, SHA-256 sums
	rm -rf '$(DIST)' && mkdir -p '$(DIST)'
	@for arch in amd64 arm64; do \
		program='$(DIST)'/egressway-linux-$$arch; echo "building $$program"; \
		$(call RELEASE,$$arch) -o $$program ./cmd/egressway && \
		$(GO) run ./release/sbom -version '$(VERSION)' -created $$(git log -1 --format=%ct) -licenses $$program.licenses.txt $$program > $$program.spdx.json || exit 1; \
	done
	@for arch in amd64 arm64; do deploy/packages/build.sh $(TOOLS)/nfpm-$(NFPM) '$(VERSION)' $$arch '$(DIST)'/egressway-linux-$$arch '$(DIST)' || exit 1; done
	@for arch in amd64 arm64; do release/archive.sh '$(VERSION)' $$arch '$(DIST)' || exit 1; done
	$(GO) run ./release/image -version '$(VERSION)' -tag '$(VERSION)' -name egressway -created $$(git log -1 --format=%ct) '$(DIST)'/egressway-linux-amd64 '$(DIST)'/egressway-linux-arm64 >'$(DIST)'/egressway-image.tar
	release/chart.sh $(TOOLS)/helm-$(HELM) '$(VERSION)' '$(DIST)'
	cd '$(DIST)' && sha256sum egressway* > SHA256SUMS && cat SHA256SUMS

publish: $(TOOLS)/crane-$(CRANE) $(TOOLS)/helm-$(HELM) ## push image and chart of dist/release to REGISTRY, such as ghcr.io/egressway: REGISTRY=127.0.0.1:5000 PLAIN=1 without TLS
	@[ -n '$(REGISTRY)' ] || { echo 'publish: REGISTRY is needed, such as ghcr.io/egressway' >&2; exit 2; }
	release/publish.sh $(TOOLS)/crane-$(CRANE) $(TOOLS)/helm-$(HELM) '$(VERSION)' '$(DIST)' '$(REGISTRY)' $(if $(PLAIN),plain)

reproducible: ## build in two folders, and compare every byte
	@set -e; here=$$(mktemp -d); there=$$(mktemp -d); trap 'rm -rf "$$here" "$$there"' EXIT; \
	mkdir "$$there/elsewhere"; git ls-files -z --cached --others --exclude-standard | while IFS= read -r -d '' f; do [ ! -f "$$f" ] || printf '%s\0' "$$f"; done | tar --null -T - -cf - | tar -xf - -C "$$there/elsewhere"; \
	for arch in amd64 arm64; do \
		$(call RELEASE,$$arch) -o "$$here/$$arch" ./cmd/egressway; \
		(cd "$$there/elsewhere" && GOCACHE="$$there/cache" && export GOCACHE && $(call RELEASE,$$arch) -o "$$there/$$arch" ./cmd/egressway); \
		cmp "$$here/$$arch" "$$there/$$arch"; echo "$$arch: the same, $$(sha256sum < "$$here/$$arch" | cut -c1-16)"; \
	done

# GOVULNDB names another database than vuln.go.dev: an address, or file:///folder of a copy.
GOVULNDB ?= https://vuln.go.dev

.PHONY: vulndb
vulndb:
	@case '$(GOVULNDB)' in file:*) ;; *) curl -fsS -o /dev/null --max-time 30 '$(GOVULNDB)/index/db.json' || { \
		echo 'vulnerabilities: $(GOVULNDB) does not answer: the Go vulnerability database is needed. GOVULNDB may name another, or a copy as file:///folder' >&2; exit 1; } ;; esac

vulnerabilities: vulndb $(TOOLS)/govulncheck-$(GOVULNCHECK) ## list known vulnerabilities in called functions; asks vuln.go.dev, or GOVULNDB
	$(TOOLS)/govulncheck-$(GOVULNCHECK) -db '$(GOVULNDB)' ./...
