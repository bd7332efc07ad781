package main

import (
	"os/exec"
	"strings"
	"testing"
)

// gRPC's tracing page executes templates, which call methods by name. With that the linker keeps
// every exported method of every type: a third more binary and resident memory. The build tag
// that the image is built with (deployments/container/build-binaries.sh) leaves the page out.
// (cobra imports text/template too, but runs none unless it is given one.)
func TestTheProgramHasNoTracingPage(t *testing.T) {
	out, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-tags", "grpcnotrace", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, dep := range strings.Fields(string(out)) {
		if dep == "golang.org/x/net/trace" || dep == "html/template" {
			t.Errorf("%s is linked in", dep)
		}
	}
}
