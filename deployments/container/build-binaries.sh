#!/bin/sh
# Builds the programs of the driver's image into $OUT, for $GOARCH with the C compiler $CC.
# The Dockerfile and the make target `image` both run it, so flags live in one place.
#   OUT=dist/bin VERSION=v0.1.0 deployments/container/build-binaries.sh
set -eu
: "${OUT:?set OUT to the folder for the programs}"
VERSION=${VERSION:-dev}
mkdir -p "$OUT"
OUT=$(cd "$OUT" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
export CGO_ENABLED=1 GOFLAGS="${GOFLAGS:-} -buildvcs=false -trimpath"

# quiet runs a command and shows what it said only if it failed: cgo warns by the hundred
# about wrappers of deprecated NVML calls.
quiet() {
  log=$(mktemp)
  "$@" 2>"$log" || { cat "$log" >&2; rm -f "$log"; exit 1; }
  rm -f "$log"
}

# Lazy binding is required: NVML is loaded with dlopen, and a linker that defaults to
# binding at start would look for its functions before that and end the program.
cd "$here/../.."
# grpcnotrace: gRPC's tracing page pulls in text/template, whose calls by name keep the linker
# from leaving out any exported method: 60 MB instead of 38.
quiet go build -tags grpcnotrace -ldflags "-s -w -X main.version=$VERSION -extldflags -Wl,-z,lazy" -o "$OUT/gpu-kubelet-plugin" ./cmd/gpu-kubelet-plugin

CGO_ENABLED=0 quiet go build -ldflags "-s -w -X main.version=$VERSION" -o "$OUT/gpu-webhook" ./cmd/gpu-webhook
CGO_ENABLED=0 quiet go build -ldflags "-s -w -X main.version=$VERSION" -o "$OUT/gpu-mps-daemon" ./cmd/gpu-mps-daemon
CGO_ENABLED=0 quiet go build -ldflags "-s -w -X main.version=$VERSION" -o "$OUT/gpu-limit-hook" ./cmd/gpu-limit-hook

# Static, since it is copied to the host and runs there whatever glibc the host has. Its
# only use of NVML, the hook apply-cuda-memory-limits, would need a dynamic program.
cd "$here"
toolkit=github.com/NVIDIA/nvidia-container-toolkit
quiet go build -tags netgo,osusergo \
  -ldflags "-s -w -X $toolkit/internal/info.version=$(go list -m -f '{{.Version}}' $toolkit) -linkmode external -extldflags '-static -Wl,-z,lazy'" \
  -o "$OUT/nvidia-cdi-hook" $toolkit/cmd/nvidia-cdi-hook
