// Package build makes the programs and base images of a cluster from pinned Go modules and
// Debian packages, and skips what is built already. It does not start anything.
package build

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// Component is one program to build.
type Component struct {
	// Group is the name by which a person asks for it.
	Group string
	// Module is the folder below modules/ that pins it, Package the main package.
	Module, Package string
	// Output is the path below the folder of programs.
	Output string
	// Version is the module whose pinned version is linked in, if any.
	Version string
	// Flags are further flags of the linker; %s stands for the version.
	Flags string
	// Tags are build tags.
	Tags string
	// CGO is for the one program with C in it.
	CGO bool
	// Optional ones are built only when asked for.
	Optional bool
}

// The flags that say which version a program is. Kubernetes compares versions between its
// components and calls itself v0.0.0 without them. The date is fixed: equal sources give
// equal programs.
const kubernetesVersion = "-X k8s.io/component-base/version.gitVersion=%[1]s " +
	"-X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=%[2]s " +
	"-X k8s.io/component-base/version.gitTreeState=clean " +
	"-X k8s.io/component-base/version.gitCommit=0000000000000000000000000000000000000000 " +
	"-X k8s.io/component-base/version.buildDate=2026-01-01T00:00:00Z"

const (
	containerd = "github.com/containerd/containerd/v2"
	kubernetes = "k8s.io/kubernetes"
	runc       = "github.com/opencontainers/runc"
	plugins    = "github.com/containernetworking/plugins/plugins"
)

// Components returns every program, small ones first so that a fault of the machine shows
// early.
func Components() []Component {
	list := []Component{
		{Group: "cni", Module: "cni", Package: plugins + "/main/bridge", Output: "cni/bridge"},
		{Group: "cni", Module: "cni", Package: plugins + "/main/loopback", Output: "cni/loopback"},
		{Group: "cni", Module: "cni", Package: plugins + "/ipam/host-local", Output: "cni/host-local"},
		{
			// cgo: runc enters namespaces in C before Go starts.
			Group: "runc", Module: "runc", Package: runc, Output: "runc", CGO: true,
			Version: runc, Flags: "-X main.version=%[3]s", Tags: "seccomp,urfave_cli_no_docs",
		},
	}
	for _, name := range []string{"containerd", "containerd-shim-runc-v2", "ctr"} {
		list = append(list, Component{
			Group: "containerd", Module: "containerd", Package: containerd + "/cmd/" + name, Output: name,
			Version: containerd, Flags: "-X " + containerd + "/version.Version=%[1]s -X " + containerd + "/version.Package=" + containerd,
			Tags: "no_btrfs,no_devmapper,no_zfs,no_aufs,no_systemd,osusergo,netgo,static_build",
		})
	}
	list = append(list,
		Component{Group: "etcd", Module: "etcd", Package: "go.etcd.io/etcd/server/v3", Output: "etcd"},
		Component{Group: "etcd", Module: "etcd", Package: "go.etcd.io/etcd/etcdctl/v3", Output: "etcdctl"})
	for _, name := range []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kubectl"} {
		list = append(list, Component{
			Group: "k8s", Module: "k8s", Package: kubernetes + "/cmd/" + name, Output: name,
			Version: kubernetes, Flags: kubernetesVersion,
		})
	}
	return append(list, Component{
		Group: "dra-test-driver", Module: "k8s", Package: kubernetes + "/test/e2e/dra/test-driver", Output: "dra-test-driver",
		Version: kubernetes, Flags: kubernetesVersion, Optional: true,
	})
}

// Select returns the components of the named groups, or all that are not optional.
func Select(groups []string) ([]Component, error) {
	var chosen []Component
	known := []string{Images}
	for _, c := range Components() {
		known = append(known, c.Group)
		if slices.Contains(groups, c.Group) || len(groups) == 0 && !c.Optional {
			chosen = append(chosen, c)
		}
	}
	known = slices.Compact(known)
	for _, g := range groups {
		if !slices.Contains(known, g) {
			return nil, fmt.Errorf("unknown group %q: must be one of %s", g, strings.Join(known, ", "))
		}
	}
	return chosen, nil
}

// pinned finds the version of a module in a go.mod file.
func pinned(gomod, module string) (string, error) {
	m := regexp.MustCompile(`(?m)^(?:require)?\s*` + regexp.QuoteMeta(module) + ` (v\S+)`).FindStringSubmatch(gomod)
	if m == nil {
		return "", fmt.Errorf("go.mod requires no %s", module)
	}
	return m[1], nil
}

// linkerFlags are the component's flags with its version filled in.
func (c Component) linkerFlags(gomod string) (string, error) {
	const strip = "-s -w"
	if c.Version == "" {
		return strip, nil
	}
	version, err := pinned(gomod, c.Version)
	if err != nil {
		return "", fmt.Errorf("%s: %w", c.Output, err)
	}
	minor := strings.Split(version+"..", ".")[1]
	replace := strings.NewReplacer("%[1]s", version, "%[2]s", minor, "%[3]s", strings.TrimPrefix(version, "v"))
	return strip + " " + replace.Replace(c.Flags), nil
}

// arguments are those of the go command.
func (c Component) arguments(out, linkerFlags string) []string {
	args := []string{"build", "-v", "-trimpath", "-o", out, "-ldflags", linkerFlags}
	if c.Tags != "" {
		args = append(args, "-tags", c.Tags)
	}
	return append(args, c.Package)
}

// environment is what the build must not take from the caller.
func (c Component) environment() []string {
	cgo := "CGO_ENABLED=0"
	if c.CGO {
		cgo = "CGO_ENABLED=1"
	}
	return []string{cgo, "GOFLAGS=-buildvcs=false", "GOWORK=off"}
}
