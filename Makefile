# What there is to do: make help.

SHELL  := /bin/bash
GO     ?= go
TOOLS  := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/egressway/tools
LINTER := v2.15.0

VERSION := $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
MODULE  := github.com/egressway/egressway

# Packages whose tests make devices, routes or nodes run as root on a kernel with VRF; labexec gives them one.
LAB  = $(addprefix $(MODULE)/,internal/bgp internal/kernel internal/lab) $(shell $(GO) list ./test/... 2>/dev/null)
UNIT = $(filter-out $(LAB),$(shell $(GO) list ./... 2>/dev/null))

# The lab starts this daemon on its nodes.
export EGRESSWAY_BIN := $(CURDIR)/bin/egressway

.NOTPARALLEL:
.PHONY: help deps lab-kernel build generate lint fmt unit lab test demo clean bin/egressway bin/labexec bin/demo

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

deps: ## install the Debian packages that the lab and the tests need, where they are missing (as root)
	@lab/setup

lab-kernel: bin/labexec ## build the lab's kernel, unless it is cached or this one has VRF (7 to 15 minutes on 2 cores)
	@LAB_VERBOSE=1 bin/labexec true 2>&1 | grep -q 'mode native' || lab/kernel/build.sh

build: bin/egressway ## bin/egressway

bin/egressway:
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-X main.version=$(VERSION)' -o $@ ./cmd/egressway

bin/labexec:
	CGO_ENABLED=0 $(GO) build -o $@ ./lab/labexec

bin/demo:
	CGO_ENABLED=0 $(GO) build -o $@ ./lab/demo

generate: ## write deepcopy functions and the CRD anew
	$(GO) generate ./api/...

lint: $(TOOLS)/golangci-lint-$(LINTER) ## golangci-lint; .golangci.yml has the rules, import directions among them
	$< run ./...

fmt: $(TOOLS)/golangci-lint-$(LINTER) ## gofumpt and goimports
	$< fmt ./...

# Built from the Go module proxy, once: about 2 minutes on 2 cores.
$(TOOLS)/golangci-lint-$(LINTER):
	@echo "building golangci-lint $(LINTER), once"
	mkdir -p $(TOOLS)/build
	GOBIN=$(TOOLS)/build CGO_ENABLED=0 nice $(GO) install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(LINTER)
	mv $(TOOLS)/build/golangci-lint $@

unit: ## tests that need no lab, with the race detector
	$(GO) test -race -count=1 -timeout 10m $(UNIT)

lab: lab-kernel bin/egressway bin/labexec ## tests in the lab: namespaces, FRR, packets
	$(GO) test -count=1 -p 2 -timeout 15m -exec $(CURDIR)/bin/labexec $(LAB)

test: deps build lint lab-kernel unit lab ## everything that the CI runs

demo: deps lab-kernel build bin/labexec bin/demo ## two nodes, two networks, routers, packets: ends with a table of what was seen
	bin/labexec bin/demo

clean: ## remove what was built here; the caches under ~/.cache stay
	rm -rf bin
