# Targets for people; `make help` lists them. Everything is built from the Go module proxy and
# Debian packages; nothing needs a container engine or a GPU.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VERSION ?= $(shell cat VERSION)
IMAGE ?= localhost/gpu-dra-driver:$(VERSION)
OUT := $(CURDIR)/bin
DIST := $(CURDIR)/dist
CHART := deployments/helm/gpu-dra-driver
GO ?= go
export GOFLAGS := $(GOFLAGS) -buildvcs=false
# NVML is loaded with dlopen: a linker that binds at start would end the program before that.
LINK := -extldflags=-Wl,-z,lazy
# Nested modules: heavy things that only tests and tools need.
NESTED := test/apivalidation test/apivalidation134 test/chart test/chart/monitoring deployments/container

step = @printf '\n==> %s\n' "$(1)"

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z][a-z0-9-]*:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 20

.PHONY: build
build: ## Build the programs into bin/
	OUT=$(OUT) VERSION=$(VERSION) deployments/container/build-binaries.sh
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o $(OUT)/kubectl-gpu ./cmd/kubectl-gpu
	$(GO) build -o $(OUT)/gpusim ./test/gpusim/cmd/gpusim
	$(GO) build -o $(OUT)/cluster ./test/cluster/cmd/cluster
	@printf 'Built %s. Next: make demo\n' "$(OUT)"

.PHONY: packages
packages: ## Install the Debian packages that tests and demo need
	@missing=""; for p in jq runc busybox-static gcc libc6-dev libseccomp-dev pkg-config iproute2 openssl; do \
	  dpkg-query -W -f '$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ]; then echo "==> installing$$missing"; \
	  apt-get install -y --no-install-recommends $$missing >/dev/null 2>&1 || \
	  { apt-get update >/dev/null && apt-get install -y --no-install-recommends $$missing >/dev/null; }; fi

.PHONY: demo
demo: packages ## The main job without Kubernetes: four GPUs of one NVLink domain in a container
	@echo '==> building the demo (minutes the first time)'
	@$(GO) run -trimpath ./demo/cmd/demo $(ARGS)

.PHONY: test
test: packages ## Unit, property, simulator, allocator, process and crash tests, with the race detector
	$(call step,product and test packages)
	$(GO) test -race -ldflags '$(LINK)' -timeout 20m ./...
	$(call step,image builder)
	cd deployments/container && $(GO) test -race ./...
	$(call step,alerts and dashboard against recorded metrics)
	cd test/chart/monitoring && $(GO) test ./...
	@echo; echo 'All passed. Next: make test-e2e, the same on a real Kubernetes.'

.PHONY: lint
lint: ## Vet, format and lint every module
	$(call step,golangci-lint)
	cd tools/lint && $(GO) build -o $(OUT)/golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	$(OUT)/golangci-lint run ./...
	for m in $(NESTED); do (echo "==> $$m"; cd $$m && $(OUT)/golangci-lint run --config $(CURDIR)/.golangci.yml ./...); done
	$(call step,modules are tidy)
	$(GO) mod tidy -diff
	for m in $(NESTED); do (cd $$m && $(GO) mod tidy -diff); done
	$(call step,generated pages are current)
	$(GO) run ./docs/gen -check

.PHONY: docs
docs: ## Write the generated reference pages anew
	$(GO) run ./docs/gen
	cd test/chart && $(GO) run ./cmd/chartctl docs $(CURDIR)/$(CHART)

.PHONY: image
image: ## Build the image, without a container engine, into dist/
	OUT=$(DIST)/bin VERSION=$(VERSION) deployments/container/build-binaries.sh
	cd deployments/container && $(GO) build -o $(DIST)/imagebuild ./cmd/imagebuild
	$(DIST)/imagebuild --config deployments/container/image.yaml --define BIN=$(DIST)/bin --define VERSION=$(VERSION) \
	  --name $(IMAGE) --out $(DIST)/gpu-dra-driver.tar
	@echo 'Next: ctr images import dist/gpu-dra-driver.tar, or make demo-cluster'

.PHONY: chart
chart: ## Test the Helm chart and package it into dist/
	cd test/chart && $(GO) test ./... && $(GO) build -o $(OUT)/chartctl ./cmd/chartctl
	mkdir -p $(DIST) && $(OUT)/chartctl package -d $(DIST) $(CHART)

.PHONY: validation
validation: ## Hold the slices against the API server's own validation
	cd test/apivalidation && $(GO) test ./...
	cd test/apivalidation134 && $(GO) test ./...

.PHONY: demo-cluster
demo-cluster: packages ## The main job on a real one-node Kubernetes, through chart and image
	@echo '==> building the demo'
	@$(GO) run -trimpath ./demo/cmd/democluster up

.PHONY: demo-cluster-down
demo-cluster-down: ## End what demo-cluster started and leave the machine as it was
	@$(GO) run -trimpath ./demo/cmd/democluster down

.PHONY: test-e2e
test-e2e: packages chart validation ## End-to-end tests on a real one-node Kubernetes
	$(call step,end-to-end tests)
	$(GO) test -tags e2e -timeout 60m -v ./test/e2e/...

.PHONY: bench
bench: packages ## Measure what docs/performance.md states
	$(GO) run ./test/bench/cmd/bench

.PHONY: matrix
matrix: packages ## Every row of the crash matrix and of the matrix of steps that fail
	CRASH_MATRIX=all $(GO) test -race -ldflags '$(LINK)' -timeout 4h -v -run 'TestCrashMatrix|TestDiskFaults|TestStepsThatFail' ./test/process

.PHONY: model
model: packages ## 10,000 random operations against a model, through the real process
	MODEL_OPERATIONS=10000 $(GO) test -race -ldflags '$(LINK)' -timeout 4h -v -run 'TestModel$$' ./test/process

.PHONY: soak
soak: packages ## 5,000 claims of mixed kinds on a simulated node, then a fifth of that with kills
	SOAK_CYCLES=5000 $(GO) test -race -ldflags '$(LINK)' -timeout 2h -v -run TestSoak ./test/process

.PHONY: soak-cluster
soak-cluster: packages ## 300 pods on a real Kubernetes of four nodes, with kills of plugins and kubelets
	SOAK_PODS=300 $(GO) test -tags e2e,soak -timeout 2h -v -run TestSoakOnACluster ./test/e2e/

.PHONY: clean
clean: ## Remove what was built here
	rm -rf $(OUT) $(DIST)
