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

# What takes long says that it is alive, and for how long.
export STEPS_BEGAN := $(shell date +%s)
STEP := $(CURDIR)/tools/step

.PHONY: help
help: ## List the targets
	@grep -hE '^[a-z][a-z0-9-]*:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 20

.PHONY: build
build: ## Build the programs into bin/
	@OUT=$(OUT) VERSION=$(VERSION) $(STEP) 'programs of the image' deployments/container/build-binaries.sh
	@CGO_ENABLED=0 $(STEP) 'kubectl gpu' $(GO) build -trimpath -ldflags "-s -w -X main.version=$(VERSION)" -o $(OUT)/kubectl-gpu ./cmd/kubectl-gpu
	@$(STEP) 'simulator of GPU nodes' $(GO) build -o $(OUT)/gpusim ./test/gpusim/cmd/gpusim
	@$(STEP) 'test cluster' $(GO) build -o $(OUT)/cluster ./test/cluster/cmd/cluster
	@echo; echo 'The programs are in bin/. Next: bin/kubectl-gpu --help, or make demo'

PACKAGES = jq runc busybox-static gcc libc6-dev libseccomp-dev pkg-config iproute2 openssl

.PHONY: packages
packages: ## Install the Debian packages that tests and demo need
	@missing=""; for p in $(PACKAGES); do \
	  dpkg-query -W -f '$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ]; then install="apt-get install -y --no-install-recommends $$missing >/dev/null"; \
	  $(STEP) "install$$missing" bash -c "$$install 2>&1 || { apt-get update >/dev/null && $$install; }"; fi

.PHONY: demo
demo: packages ## The main job without Kubernetes: four GPUs of one NVLink domain in a container
	@$(STEP) 'build the demo (minutes the first time)' $(GO) build -trimpath -o $(OUT)/run-demo ./demo/cmd/demo
	@$(OUT)/run-demo $(ARGS)

.PHONY: test
test: packages ## Unit, property, simulator, allocator, process and crash tests, with the race detector
	@$(STEP) 'product and test packages' $(GO) test -race -ldflags '$(LINK)' -timeout 20m ./...
	@$(STEP) 'image builder' $(GO) -C deployments/container test -race ./...
	@$(STEP) 'alerts and dashboard against recorded metrics' $(GO) -C test/chart/monitoring test ./...
	@echo; echo 'All passed. Next: make test-e2e, the same on a real Kubernetes.'

.PHONY: lint
lint: ## Vet, format and lint every module
	@$(STEP) 'build golangci-lint (minutes the first time)' $(GO) -C tools/lint build -o $(OUT)/golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint
	@$(STEP) 'lint the product' $(OUT)/golangci-lint run ./...
	@for m in $(NESTED); do (cd $$m && $(STEP) "lint $$m" $(OUT)/golangci-lint run --config $(CURDIR)/.golangci.yml ./...); done
	@for m in . $(NESTED); do $(STEP) "is the module in $$m tidy?" $(GO) -C $$m mod tidy -diff; done
	@$(STEP) 'are generated pages current?' $(GO) run ./docs/gen -check
	@echo; echo 'Nothing found. Next: make test'

.PHONY: docs
docs: ## Write the generated reference pages anew
	@$(STEP) 'reference pages' $(GO) run ./docs/gen
	@$(STEP) "the chart's table of values" $(GO) -C test/chart run ./cmd/chartctl docs $(CURDIR)/$(CHART)
	@echo; echo 'Next: git diff docs deployments/helm'

.PHONY: image
image: ## Build the image, without a container engine, into dist/
	@OUT=$(DIST)/bin VERSION=$(VERSION) $(STEP) 'programs of the image' deployments/container/build-binaries.sh
	@$(STEP) 'image builder' $(GO) -C deployments/container build -o $(DIST)/imagebuild ./cmd/imagebuild
	@$(STEP) 'image' $(DIST)/imagebuild --config deployments/container/image.yaml --define BIN=$(DIST)/bin --define VERSION=$(VERSION) \
	  --name $(IMAGE) --out $(DIST)/gpu-dra-driver.tar
	@echo; echo 'Next: ctr images import dist/gpu-dra-driver.tar, or make demo-cluster'

.PHONY: image-arm64
image-arm64: PACKAGES = gcc-aarch64-linux-gnu libc6-dev-arm64-cross
image-arm64: packages ## The same image for arm64 nodes, cross-compiled
	@OUT=$(DIST)/bin-arm64 VERSION=$(VERSION) GOARCH=arm64 CC=aarch64-linux-gnu-gcc \
	  $(STEP) 'programs of the image for arm64' deployments/container/build-binaries.sh
	@$(STEP) 'image builder' $(GO) -C deployments/container build -o $(DIST)/imagebuild ./cmd/imagebuild
	@$(STEP) 'image for arm64' $(DIST)/imagebuild --config deployments/container/image.yaml --platform linux/arm64 \
	  --define BIN=$(DIST)/bin-arm64 --define VERSION=$(VERSION) --name $(IMAGE)-arm64 --out $(DIST)/gpu-dra-driver-arm64.tar
	@echo; echo 'Next: ctr images import dist/gpu-dra-driver-arm64.tar on an arm64 node'

.PHONY: chart
chart: ## Test the Helm chart and package it into dist/
	@$(STEP) 'tests of the chart' $(GO) -C test/chart test ./...
	@$(STEP) 'package the chart' $(GO) -C test/chart run ./cmd/chartctl package -d $(DIST) $(CURDIR)/$(CHART)
	@echo; echo 'Next: helm install gpu-dra-driver dist/gpu-dra-driver-*.tgz; docs/install.md has what it needs'

.PHONY: validation
validation: ## Hold the slices against the API server's own validation
	@$(STEP) 'validation of Kubernetes 1.37' $(GO) -C test/apivalidation test ./...
	@$(STEP) 'validation of Kubernetes 1.34' $(GO) -C test/apivalidation134 test ./...
	@echo; echo 'All slices are valid. Next: make test-e2e'

.PHONY: demo-cluster
demo-cluster: packages ## The main job on a real one-node Kubernetes, through chart and image
	@$(STEP) 'build the demo (minutes the first time)' $(GO) build -trimpath -o $(OUT)/run-demo-cluster ./demo/cmd/democluster
	@$(OUT)/run-demo-cluster up

.PHONY: demo-cluster-down
demo-cluster-down: ## End what demo-cluster started and leave the machine as it was
	@$(STEP) 'build the demo (minutes the first time)' $(GO) build -trimpath -o $(OUT)/run-demo-cluster ./demo/cmd/democluster
	@$(OUT)/run-demo-cluster down

.PHONY: test-e2e
test-e2e: packages chart validation ## End-to-end tests on a real one-node Kubernetes
	@$(STEP) 'end-to-end tests' $(GO) test -tags e2e -timeout 60m -v ./test/e2e/...
	@echo; echo 'All passed. Next: make demo-cluster, to look at it; make bench, to measure it'

.PHONY: test-cluster
test-cluster: packages ## The test cluster itself, without the driver
	@$(STEP) 'build what is missing (minutes the first time)' $(GO) run ./test/cluster/cmd/cluster build
	@$(STEP) 'two clusters' $(GO) test -tags cluster -run TestCluster -count 1 ./test/cluster/
	@echo; echo 'All passed. Next: make test-e2e'

.PHONY: bench
bench: packages ## Measure what docs/performance.md states
	@$(STEP) 'build the measurement (minutes the first time)' $(GO) build -trimpath -o $(OUT)/run-bench ./test/bench/cmd/bench
	@$(OUT)/run-bench $(ARGS)
	@{ echo; echo 'Next: hold the tables against docs/performance.md'; } >&2

.PHONY: monitoring
monitoring: packages ## A real Prometheus on the plugin's process: rules, alerts, every query of the dashboard
	@$(STEP) 'build Prometheus (minutes the first time)' $(GO) -C test/chart/prometheus build -trimpath -o $(OUT)/prometheus github.com/prometheus/prometheus/cmd/prometheus
	@PROMETHEUS=$(OUT)/prometheus $(STEP) 'scrape the plugin' $(GO) test -tags prometheus -count=1 -ldflags '$(LINK)' -run TestWithPrometheus ./test/process
	@echo; echo 'All passed. Next: make test'

.PHONY: matrix
matrix: packages ## Every row of the crash matrix and of the matrix of steps that fail
	@CRASH_MATRIX=all $(STEP) 'every row' $(GO) test -race -ldflags '$(LINK)' -timeout 4h -v -run 'TestCrashMatrix|TestDiskFaults|TestSlowDisk|TestStepsThatFail' ./test/process
	@echo; echo 'All passed. Next: make model, make soak'

.PHONY: model
model: packages ## 10,000 random operations against a model, through the real process
	@MODEL_OPERATIONS=10000 $(STEP) '10,000 operations' $(GO) test -race -ldflags '$(LINK)' -timeout 4h -v -run 'TestModel$$' ./test/process
	@echo; echo 'All passed. Next: make soak'

.PHONY: soak
soak: packages ## 5,000 claims of mixed kinds on a simulated node, then a fifth of that with kills
	@SOAK_CYCLES=5000 $(STEP) '5,000 claims' $(GO) test -race -ldflags '$(LINK)' -timeout 2h -v -run TestSoak ./test/process
	@echo; echo 'All passed. Next: make soak-cluster'

.PHONY: soak-cluster
soak-cluster: packages ## 300 pods on a real Kubernetes of four nodes, with kills of plugins and kubelets
	@SOAK_PODS=300 $(STEP) '300 pods' $(GO) test -tags e2e,soak -timeout 2h -v -run TestSoakOnACluster ./test/e2e/
	@echo; echo 'All passed. Next: hold the figures against docs/reliability.md'

.PHONY: clean
clean: ## Remove what was built here
	rm -rf $(OUT) $(DIST)
